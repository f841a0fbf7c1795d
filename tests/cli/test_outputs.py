"""What a command line names to be written."""

from pathlib import Path

import pytest

from hpcrl.cli.outputs import written_whole


def test_a_file_is_replaced_once_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "page"
    path.write_bytes(b"old")
    with pytest.raises(RuntimeError), written_whole("--html", path) as file:
        file.write(b"half")
        raise RuntimeError
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]
    with written_whole("--html", path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new" and list(tmp_path.iterdir()) == [path]


def test_a_link_stays_and_its_file_is_written(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("page")
    with written_whole("--html", tmp_path / "link") as file:
        file.write(b"new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "page").read_bytes() == b"new"
