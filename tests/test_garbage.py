"""When nobody looks for garbage, and how seldom a master does."""

import gc

import pytest

from hpcrl.garbage import SELDOM, kept, seldom_collected, uncollected


def test_what_is_changed_is_as_before_afterwards() -> None:
    before = gc.get_threshold()
    with seldom_collected(), uncollected():
        assert gc.get_threshold() == (SELDOM, *before[1:]) and not gc.isenabled()
    assert gc.get_threshold() == before and gc.isenabled()


def test_what_was_made_while_nobody_looked_is_old_afterwards() -> None:
    gc.unfreeze()
    with uncollected():
        made = [[]]
    assert any(found is made for found in gc.get_objects(generation=2))


def test_among_what_is_kept_nobody_looks_for_garbage_then_or_later() -> None:
    with kept():
        assert not gc.isenabled()
        imported = [[]]
    assert gc.isenabled()
    assert not any(found is imported for found in gc.get_objects())


def test_what_could_not_be_imported_is_not_kept() -> None:
    with pytest.raises(ImportError), kept():
        imported = [[]]
        raise ImportError
    assert gc.isenabled()
    assert any(found is imported for found in gc.get_objects())
