"""Where a run can be made is known before anything is."""

import pytest

from hpcrl.durable import place
from hpcrl.durable.place import make_place, nearest_folder, refuse_place
from hpcrl.errors import ConfigurationError


def test_a_place_that_is_not_refused_can_be_made(tmp_path):
    root = tmp_path / "a" / "b"
    refuse_place(root)
    make_place(root)
    refuse_place(root)
    assert root.stat().st_mode & 0o777 == 0o700 and nearest_folder(root / "c" / "d") == root


def test_a_folder_that_the_user_may_not_write_to_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(place.os, "access", lambda *_: False)
    with pytest.raises(
        ConfigurationError, match=f"you may not write to {tmp_path}. Choose another --run-dir or run_root"
    ):
        refuse_place(tmp_path / "runs" / "mine")


def test_a_link_that_leads_nowhere_is_no_folder(tmp_path):
    (tmp_path / "runs").symlink_to(tmp_path / "unmounted")
    for refuse in (refuse_place, make_place):
        with pytest.raises(ConfigurationError, match="cannot be made"):
            refuse(tmp_path / "runs" / "mine")
