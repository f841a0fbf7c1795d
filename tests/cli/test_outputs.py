"""What a command line names to be written."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.kept_run import kept_run, response
from support.made_run import ended_run

from hpcrl.cli.main import main
from hpcrl.cli.outputs import written
from hpcrl.errors import ExitCode

ROOM = 256
"""Bytes that a file may have where there is hardly any room."""


@contextmanager
def hardly_any_room() -> Iterator[None]:
    """Whoever writes more than `ROOM` bytes into a file fails half-way."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_what_fails_half_way_leaves_what_the_name_had(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, kept = tmp_path / "made", tmp_path / "kept"
    ended_run(made)
    kept_run(kept, {1: {"7@0": response("1+1=", "2", reward=1.0)}})
    out = tmp_path / "out"
    commands = {
        "page.html": ["inspect", str(made), "report", "--html"],
        "timeline.html": ["inspect", str(made), "timeline", "--html"],
        "trace": ["inspect", str(made), "timeline", "--perfetto"],
        "samples.html": ["samples", str(kept), "--html"],
        "samples.parquet": ["samples", str(kept), "--parquet"],
    }
    out.mkdir()
    for name, words in commands.items():
        (out / name).write_bytes(b"old")
        with hardly_any_room():
            assert main([*words, str(out / name)]) == ExitCode.INTERNAL, name
        assert f"{words[-1]} {out / name}: File too large" in capsys.readouterr().err, name
        assert (out / name).read_bytes() == b"old"
        assert main([*words, str(out / name)]) == ExitCode.DONE, name
        assert len((out / name).read_bytes()) > ROOM
    assert sorted(path.name for path in out.iterdir()) == sorted(commands)


def test_curves_are_written_whole(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    run = ended_run(tmp_path / "run").run
    with hardly_any_room():
        assert main(["inspect", str(run.root), "--plot"]) == ExitCode.INTERNAL
    assert not [path for path in run.root.iterdir() if "curves" in path.name or path.name.startswith(".hpcrl")]


def test_a_file_is_replaced_once_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 255)
    path.write_bytes(b"old")
    with pytest.raises(RuntimeError), written("--html", path) as file:
        file.write(b"half")
        raise RuntimeError
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]
    with written("--html", path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new" and list(tmp_path.iterdir()) == [path]


def test_a_link_stays_and_its_file_is_written(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("page")
    with written("--html", tmp_path / "link") as file:
        file.write(b"new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "page").read_bytes() == b"new"
