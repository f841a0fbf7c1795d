"""Checksums of files, and what has to be read for them."""

import os
from pathlib import Path

import pytest

from hpcrl.data import contents
from hpcrl.data.contents import BLOCK_BYTES, Contents, stamp_of
from hpcrl.data.indexes import ScratchIndexes
from hpcrl.data.inputs import Share, differences, fingerprints
from hpcrl.data.jsonl import JsonLines
from hpcrl.data.rows.lines import PROMPTED
from hpcrl.errors import DataError


@pytest.mark.parametrize("size", [0, 1, 4 << 20, BLOCK_BYTES, BLOCK_BYTES + 1, 2 * BLOCK_BYTES + 3])
def test_every_byte_counts_and_so_does_its_place(tmp_path: Path, size: int) -> None:
    path = tmp_path / "w"
    data = bytearray(size)
    path.write_bytes(data)
    sums = {Contents().checksums([path])[path]}
    for at in {0, size // 2, size - 1} - {-1} if size else ():
        data[at] ^= 1
        path.write_bytes(data)
        sums.add(Contents().checksums([path])[path])
        data[at] ^= 1
    assert len(sums) == 1 + len({0, size // 2, size - 1} - {-1} if size else ())


def test_a_file_that_was_seen_is_not_read_again_until_something_about_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "w"
    path.write_bytes(b"abc")
    first = Contents()
    found = first.checksums([path])
    again = Contents(first.read)
    assert again.checksums([path]) == found and again.read == []
    os.utime(path, (1, 1))
    assert again.checksums([path]) == found and [seen.stamp for seen in again.read] == [stamp_of(path)]


def test_a_file_that_changes_while_it_is_read_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "w"
    path.write_bytes(b"abc")
    reading = contents._crc

    def slowly(file: Path, start: int) -> bytes:
        found = reading(file, start)
        file.write_bytes(b"abd")
        return found

    monkeypatch.setattr(contents, "_crc", slowly)
    with pytest.raises(DataError, match=r"w changed while it was read"):
        Contents().checksums([path])


def test_what_differs_is_said_by_name_size_or_content(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    a.write_bytes(b"1")
    b.write_bytes(b"2")
    inputs = {"actor.path": [a, b]}
    known = Contents()
    frozen = fingerprints(inputs, known)
    assert differences(frozen, inputs, Contents()) == {}
    assert differences(frozen, {"actor.path": [a]}, known)["actor.path"] == f"{b} is missing"
    assert (
        differences(frozen, {"actor.path": [a, b, tmp_path / "c"]}, known)["actor.path"] == f"{tmp_path / 'c'} is new"
    )
    b.write_bytes(b"3")
    assert f"{b} has other content, checksum" in differences(frozen, inputs, known)["actor.path"]
    b.write_bytes(b"33")
    assert f"{b} has 2 bytes and had 1" in differences(frozen, inputs, known)["actor.path"]


def test_files_of_one_name_in_several_folders_are_told_apart(tmp_path: Path) -> None:
    a, b, c = (tmp_path / "set" / name for name in ("a/x.jsonl", "b/x.jsonl", "c.jsonl"))
    for path in (a, b, c):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("1")
    inputs, known = {"data.train": [a, b]}, Contents()
    frozen = fingerprints(inputs, known)
    assert differences(frozen, inputs, Contents()) == {}
    assert differences(frozen, {"data.train": [a, b, c]}, known) == {"data.train": f"{c} is new"}
    assert differences(frozen, {"data.train": [a]}, known) == {"data.train": f"{b} is missing"}
    one = fingerprints({"data.train": [a]}, known)
    assert differences(one, inputs, known) == {"data.train": f"{b} is new"}
    assert differences(one, {"data.train": [c]}, known) == {"data.train": f"{c} is new"}
    for changed in (a, b):
        changed.write_text("2")
        assert f"{changed} has other content, checksum" in differences(frozen, inputs, known)["data.train"]
        changed.write_text("1")
    (tmp_path / "set").rename(tmp_path / "elsewhere")
    elsewhere = {"data.train": [tmp_path / "elsewhere" / path.relative_to(tmp_path / "set") for path in (a, b)]}
    assert differences(frozen, elsewhere, Contents()) == {} and fingerprints(elsewhere, Contents()) == frozen


def test_the_processes_of_a_node_read_each_file_once_between_them(tmp_path: Path) -> None:
    files = [tmp_path / name for name in "abcde"]
    for path in files:
        path.write_bytes(b"1")
    frozen = fingerprints({"actor.path": files}, Contents())
    files[3].write_bytes(b"2")
    read, found = [], []
    for index in range(2):
        mine = Contents()
        found.append(differences(frozen, {"actor.path": files}, mine, Share(index, 2)))
        read += [seen.path for seen in mine.read]
    assert sorted(read) == sorted(map(str, files))
    assert [bool(differing) for differing in found].count(True) == 1


def test_rows_that_are_written_anew_under_a_reader_are_refused_and_a_touch_is_not(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    rows = JsonLines(path, "data.train", PROMPTED, ScratchIndexes())
    os.utime(path, (1, 1))
    assert rows.read([1])[0]["prompt"] == "b"
    path.write_text('{"prompt": "c"}\n{"prompt": "d"}\n')
    with pytest.raises(DataError, match=r"rows.jsonl changed while the run reads it.*data.train"):
        rows.read([1])
