"""The keys of a run: who may read them, and what is said where they are lost."""

import os
from pathlib import Path

import pytest
from support.miniature import make_run

from hpcrl.durable.keys import has_key, read_key
from hpcrl.durable.records import KeyPair
from hpcrl.errors import InternalError


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o622])
def test_key_that_others_can_read_is_refused(root: Path, mode: int) -> None:
    run = make_run(root / "run")
    run.key_json.chmod(mode)
    with pytest.raises(InternalError, match=f"mode {mode:04o}.*chmod 600"):
        read_key(run)


def test_key_behind_a_symbolic_link_is_refused(root: Path) -> None:
    run = make_run(root / "run")
    run.key_json.rename(root / "elsewhere")
    run.key_json.symlink_to(root / "elsewhere")
    with pytest.raises(InternalError, match=r"key\.json cannot be read: Too many levels of symbolic links"):
        read_key(run)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_key_of_another_user_is_refused(root: Path) -> None:
    run = make_run(root / "run")
    os.chown(run.key_json, 12345, -1)
    with pytest.raises(InternalError, match="owner 12345"):
        read_key(run)


def test_lost_keys_are_replaced_and_damaged_ones_stay(root: Path) -> None:
    run = make_run(root / "run")
    run.key_json.write_text("{")
    assert has_key(run)
    with pytest.raises(InternalError, match=r"key\.json is damaged.*`hpcrl resume .*/run` makes new keys"):
        read_key(run)
    run.key_json.unlink()
    assert not has_key(run)
    run.write_key(KeyPair("p", "s"))
    assert read_key(run) == KeyPair("p", "s")
