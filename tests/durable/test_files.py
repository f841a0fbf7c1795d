import errno
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from support.kills import FullAt, KillAt, Recorder, in_child

from hpcrl.durable import files as files_module
from hpcrl.durable.append_log import DiskFullError
from hpcrl.durable.exclusive import AlreadyPublishedError
from hpcrl.durable.files import DamagedFileError, FileRef, Files, is_temporary
from hpcrl.errors import ExitCode


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def visible(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*"))


def test_published_file_has_name_size_and_crc_and_nothing_is_left_beside_it(root: Path) -> None:
    files = Files(root)
    ref = files.publish(root / "a" / "b", b"123456789", "x")
    assert ref == FileRef("a/b", 9, 0xCBF43926)
    assert visible(root) == ["a", "a/b"]
    assert files.read_verified(ref) == b"123456789"


def test_chunks_make_the_same_file_as_their_concatenation(root: Path) -> None:
    files = Files(root)
    chunks = [b"", b"ab", memoryview(b"cdef"), b""]
    whole, chunked = files.publish(root / "w", b"abcdef", "x"), files.publish_chunks(root / "c", chunks, "x")
    assert (whole.size, whole.crc32) == (chunked.size, chunked.crc32)
    assert files.publish(root / "e", b"", "x") == FileRef("e", 0, 0)


def test_large_content_is_written_in_pieces(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_module, "PIECE_BYTES", 7)
    files = Files(root)
    data = bytes(range(256))
    ref = files.publish(root / "f", data, "x")
    assert files.read_verified(ref) == data
    assert files.damage(ref) is None


def test_checksum_taken_beside_the_writing_equals_the_one_taken_after_it(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks = [bytes(range(256)), b"", memoryview(b"more")]
    after = Files(root).publish_chunks(root / "after", chunks, "x")
    monkeypatch.setattr(files_module, "BESIDE_BYTES", 0)
    beside = Files(root).publish_chunks(root / "beside", chunks, "x")
    assert beside.crc32 == after.crc32
    assert Files(root).damage(beside) is None


def test_second_publication_of_a_name_is_refused_and_changes_nothing(root: Path) -> None:
    files = Files(root)
    ref = files.publish(root / "f", b"first", "x")
    with pytest.raises(AlreadyPublishedError, match="never replaced"):
        files.publish(root / "f", b"second", "x")
    assert files.damage(ref) is None
    assert visible(root) == ["f"]


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_modes_do_not_depend_on_the_umask(root: Path, umask: int) -> None:
    files = Files(root)
    before = os.umask(umask)
    try:
        files.publish(root / "d" / "e" / "f", b"", "x")
        files.open_log(root / "d" / "log", "x").close()
        files.publish_folder(root / "d" / "g", 0, lambda path: path.joinpath("h").write_bytes(b"") and None, "x")
    finally:
        os.umask(before)
    assert [mode(root / name) for name in ("d", "d/e", "d/g")] == [0o700] * 3
    assert [mode(root / name) for name in ("d/e/f", "d/log", "d/g/h")] == [0o600] * 3


def test_kill_at_any_point_of_publication_leaves_the_whole_file_or_none(root: Path) -> None:
    recorder = Recorder()
    Files(root, recorder).publish(root / "all", b"data", "x")
    assert recorder.points == ["x.write", "x.write", "x.synced", "x.published"]
    for number in range(len(recorder.points)):
        name = root / f"f{number}"
        code = in_child(lambda n=number, path=name: Files(root, KillAt(n)).publish(path, b"data", "x"))
        assert code == -9
        assert not name.exists() or name.read_bytes() == b"data"
        Files(root).publish(root / f"after{number}", b"data", "x")
    assert (root / "f3").exists() and not (root / "f2").exists()


@pytest.mark.parametrize("number", range(4))
def test_full_disk_names_path_and_bytes_and_leaves_nothing_behind(root: Path, number: int) -> None:
    with pytest.raises(DiskFullError, match=r"no room for .*/f: it needs 4 bytes, \d+ bytes are free") as raised:
        Files(root, FullAt(number)).publish(root / "f", b"data", "x")
    assert raised.value.exit_code == ExitCode.INTERNAL
    assert visible(root) == (["f"] if number == 3 else [])


def test_other_errors_of_the_disk_are_not_called_a_full_disk(root: Path) -> None:
    def broken(_point: str) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(OSError, match="Input/output error"):
        Files(root, broken).publish(root / "f", b"data", "x")
    assert visible(root) == []


def test_publication_works_where_hard_links_do_not(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_args: object, **_kwargs: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    files = Files(root)
    ref = files.publish(root / "f", b"data", "x")
    assert files.link(ref, root / "g", "x") == FileRef("g", ref.size, ref.crc32)
    assert files.link(ref, root / "g", "x") == FileRef("g", ref.size, ref.crc32)
    assert visible(root) == ["f", "g"]
    with pytest.raises(AlreadyPublishedError):
        files.publish(root / "f", b"other", "x")


def test_link_whose_answer_was_lost_counts_as_made(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def link_and_lose_the_answer(*args: object, **kwargs: object) -> None:
        link(*args, **kwargs)  # type: ignore[arg-type]
        raise FileExistsError(errno.EEXIST, "File exists")

    monkeypatch.setattr(os, "link", link_and_lose_the_answer)
    files = Files(root)
    ref = files.publish(root / "f", b"data", "x")
    assert files.damage(files.link(ref, root / "g", "x")) is None
    assert visible(root) == ["f", "g"]


def test_link_replaces_what_an_earlier_try_left(root: Path) -> None:
    files = Files(root)
    stale, ref = files.publish(root / "old", b"stale", "x"), files.publish(root / "f", b"data", "x")
    files.link(stale, root / "g", "x")
    assert files.read_verified(files.link(ref, root / "g", "x")) == b"data"


def test_link_to_a_file_that_is_gone_says_so(root: Path) -> None:
    files = Files(root)
    with pytest.raises(FileNotFoundError):
        files.link(FileRef("gone", 1, 1), root / "g", "x")


def test_every_change_of_a_file_is_noticed(root: Path) -> None:
    files = Files(root)
    ref = files.publish(root / "f", b"some data", "x")
    path = root / "f"
    for damaged, expected in (
        (b"some dat", "has 8 bytes, 9 were published"),
        (b"some dbta", "has CRC"),
        (b"", "has 0 bytes"),
        (b"some data\0", "has 10 bytes"),
    ):
        path.write_bytes(damaged)
        assert expected in (files.damage(ref) or "")
        with pytest.raises(DamagedFileError, match=expected):
            files.read_verified(ref)
    path.unlink()
    assert files.damage(ref) == "f is missing"
    with pytest.raises(DamagedFileError, match="f is missing"):
        files.read_verified(ref)


def test_stale_handle_is_opened_again_where_it_broke(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = Files(root)
    ref = files.publish(root / "f", b"0123456789", "x")
    failures = iter([OSError(errno.ESTALE, "Stale file handle"), FileNotFoundError(errno.ENOENT, "No such file"), None])

    def flaky(*args: object, **kwargs: object) -> object:
        if (failure := next(failures)) is not None:
            raise failure
        return open(*args, **kwargs)  # type: ignore[call-overload]

    monkeypatch.setattr(files_module, "open", flaky, raising=False)
    monkeypatch.setattr(files_module, "STALE_PAUSE_S", 0.0)
    assert files.read_verified(ref) == b"0123456789"


def test_stale_directory_is_listed_again_and_not_for_ever(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "a").touch()
    listdir, failures = os.listdir, iter([True, True, False])

    def stale(path: Path, always: bool = False) -> list[str]:
        if always or next(failures):
            raise OSError(errno.ESTALE, "Stale file handle")
        return listdir(path)

    monkeypatch.setattr(files_module, "STALE_PAUSE_S", 0.0)
    monkeypatch.setattr(os, "listdir", stale)
    assert Files(root).listing(root) == ["a"]
    monkeypatch.setattr(os, "listdir", lambda path: stale(path, always=True))
    with pytest.raises(OSError, match="Stale"):
        Files(root).listing(root)


def test_folder_appears_whole_or_not_at_all(root: Path) -> None:
    def write(path: Path) -> None:
        (path / "sub").mkdir()
        (path / "sub" / "weights").write_bytes(b"w")

    recorder = Recorder()
    assert Files(root, recorder).publish_folder(root / "export" / "done", 3, write, "e")
    assert recorder.points == ["e.write", "e.synced", "e.published"]
    for number in range(3):
        name = root / "export" / f"f{number}"
        assert in_child(lambda n=number, path=name: folder(Files(root, KillAt(n)), path, write)) == -9
        assert name.exists() == (number == 2)
    litter = [name for name in os.listdir(root / "export") if is_temporary(name)]
    assert len(litter) == 2 and all(".a003." in name for name in litter)
    assert not Files(root).publish_folder(root / "export" / "done", 4, write, "e")


def folder(files: Files, path: Path, write: Callable[[Path], None]) -> None:
    files.publish_folder(path, 3, write, "e")


def test_folder_whose_writer_raises_is_removed(root: Path) -> None:
    def write(path: Path) -> None:
        (path / "half").write_bytes(b"x")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(DiskFullError, match="its size is not known"):
        Files(root).publish_folder(root / "f", 0, write, "e")
    assert visible(root) == []


def test_of_several_processes_one_makes_the_directory(root: Path) -> None:
    def make() -> None:
        Files(root).make_directory(root / "claim")

    assert in_child(make) == 0
    with pytest.raises(FileExistsError):
        make()


def test_threads_share_the_operations(root: Path) -> None:
    files = Files(root)
    threads = [
        threading.Thread(target=lambda n=n: [files.publish(root / f"{n}" / f"{i}", b"x", "p") for i in range(20)])
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len([path for path in root.rglob("*") if path.is_file()]) == 80


def test_nothing_is_made_where_a_run_was_that_has_been_moved_away(root: Path) -> None:
    files = Files(root)
    root.rename(root.with_name("moved"))
    with pytest.raises(FileNotFoundError, match="moved or removed"):
        files.publish(root / "attempts" / "a", b"x", "p")
    assert not root.exists()
