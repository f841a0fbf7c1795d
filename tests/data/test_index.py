"""The index of a source against lists of Python objects, and what it costs."""

import json
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcrl.data.index import IndexBuilder, RowIds, RowIndex
from hpcrl.data.indexes import ScratchIndexes
from hpcrl.data.jsonl import JsonLines
from hpcrl.data.rows.lines import ANSWERED, PROMPTED
from hpcrl.data.table import Table, encode_table, open_table
from hpcrl.errors import DataError


def built(rows: list[bytes], ids: list[str | None]) -> IndexBuilder:
    builder, offset = IndexBuilder(), 0
    for number, (row, row_id) in enumerate(zip(rows, ids, strict=True), 1):
        builder.add(number, offset, row, row_id)
        offset += len(row)
    return builder


@settings(max_examples=50)
@given(st.lists(st.text(max_size=5), unique=True, max_size=30))
def test_an_index_finds_the_ids_that_a_dict_finds(ids: list[str]) -> None:
    rows = [f"row {row_id}".encode() for row_id in ids]
    builder = built(rows, list(ids))
    assert not list(builder.repeated())
    index = RowIndex(builder.table(""))
    assert list(RowIds(index, np.arange(len(ids)))) == ids == [index.id(row) for row in range(len(ids))]
    assert [index.find(row_id) for row_id in ids] == list(range(len(ids)))
    assert index.crcs.tolist() == [zlib.crc32(row) for row in rows] and index.sizes.tolist() == list(map(len, rows))
    for other in ("", "x", "0", "00", "٣", "no such row"):
        assert index.find(other) == (ids.index(other) if other in ids else None)


def test_ids_that_have_one_hash_are_told_apart() -> None:
    assert zlib.crc32(b"plumless") == zlib.crc32(b"buckeroo")
    index = RowIndex(built([b"a", b"b", b"c"], ["buckeroo", "x", "plumless"]).table(""))
    assert [index.find(row_id) for row_id in ("plumless", "buckeroo", "x")] == [2, 0, 1]
    again = built([b"a"] * 5, ["buckeroo", "plumless", "buckeroo", "x", "buckeroo"])
    assert list(again.repeated()) == [("buckeroo", [1, 3, 5])]


def test_rows_that_are_counted_take_no_ids() -> None:
    table = built([b"a", b"b"], [None, "1"]).table("")
    assert set(table.columns) == {"offsets", "sizes", "crcs"}
    assert [RowIndex(table).find(row_id) for row_id in ("0", "1")] == [0, 1]
    assert {RowIndex(table).find(row_id) for row_id in ("2", "01", "-1", "²")} == {None}


def test_a_selection_of_ids_has_only_its_own() -> None:
    some = RowIds(RowIndex(built([b"a"] * 6, list("abcdef")).table("")), np.array([1, 3, 4]))
    assert some == ("b", "d", "e") and some[1:] == ["d", "e"] and some[-1] == "e" and some != ["b", "d"]
    assert ["a" in some, "d" in some, "f" in some, "z" in some] == [False, True, False, False]


def test_a_table_is_read_as_it_was_written_and_refused_with_any_byte_changed(tmp_path: Path) -> None:
    columns = {"a": np.arange(5, dtype=np.uint8), "b": np.array([], np.uint32), "c": np.array([1 << 40], np.uint64)}
    path = tmp_path / "t"
    path.write_bytes(whole := b"".join(encode_table(Table("rows", columns))))
    table = open_table(path)
    assert table.about == "rows"
    for name, array in columns.items():
        assert table.columns[name].dtype == array.dtype and table.columns[name].tolist() == array.tolist()
    with pytest.raises(ValueError, match="read-only"):
        table.columns["a"][0] = 1
    for at in range(0, len(whole), 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(ValueError, match="damaged"):
            open_table(path)
    for size in (0, 3, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError):
            open_table(path)


def written(folder: Path, rows: list[dict[str, object]]) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_an_index_is_made_once_and_again_where_the_file_the_form_or_the_index_changed(tmp_path: Path) -> None:
    path = written(tmp_path, [{"prompt": "p", "answer": "a"}, {"prompt": "q", "answer": "b"}])
    indexes = ScratchIndexes()

    def names() -> set[str]:
        return {
            JsonLines(path, "data.train", ANSWERED if answers else PROMPTED, indexes).name for answers in (False, True)
        }

    first = names()
    assert len(first) == 2 and set(indexes.made) == first
    before = {name: file.stat().st_mtime_ns for name, file in indexes.made.items()}
    assert names() == first and {name: file.stat().st_mtime_ns for name, file in indexes.made.items()} == before
    for file in indexes.made.values():
        file.write_bytes(b"x" + file.read_bytes()[1:])
    assert names() == first and JsonLines(path, "data.train", ANSWERED, indexes).ids == ("0", "1")
    written(tmp_path, [{"prompt": "r", "answer": "a"}])
    assert not names() & first


def test_all_rows_that_cannot_be_used_are_named_in_one_error_with_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    good = '{"prompt": "p", "answer": "a", "id": %d}'
    lines = [good % 1, "", "{", good % 2, good % 1, '{"prompt": "", "answer": "a"}', good % 2, '{"prompt": 1}']
    path.write_text("\n".join(lines))
    with pytest.raises(DataError) as caught:
        JsonLines(path, "data.train", ANSWERED, ScratchIndexes())
    said = str(caught.value).splitlines()
    assert [line.split(":")[0].removeprefix(f"{path}, ") for line in said[:-1]] == [
        "line 3", "line 6", "line 8", "lines 1 and 5 have the same id '1'.", "lines 4 and 7 have the same id '2'.",
    ]  # fmt: skip
    assert "Make each line of data.train" in said[-1]


def test_an_error_names_the_first_fifty_rows(tmp_path: Path) -> None:
    path = written(tmp_path, [{"prompt": i} for i in range(80)])
    with pytest.raises(DataError, match="and more; these are the first 50") as caught:
        JsonLines(path, "data.train", PROMPTED, ScratchIndexes())
    assert str(caught.value).count("line ") == 51  # with the advice's


MANY = 100_000

READ_ALL = """
import sys, tracemalloc
from pathlib import Path
from hpcrl.data.indexes import ScratchIndexes
from hpcrl.data.jsonl import JsonLines
from hpcrl.data.rows.lines import ANSWERED, PROMPTED
from hpcrl.data.cutting import ByRows
from hpcrl.data.order import SampleOrder

found = Path(sys.argv[2])
indexes = ScratchIndexes(below=lambda name: found / name)
tracemalloc.start()
records = JsonLines(sys.argv[1], "data.train", PROMPTED, indexes)
order = SampleOrder(records.ids, ByRows(64), seed=1)
batch = order.batch_at(640)
assert len(records.read([records.row(sample.partition("@")[0]) for sample in batch.ids])) == 64
print(len(indexes.made), tracemalloc.get_traced_memory()[0])
"""


def test_a_process_that_reads_rows_by_an_index_holds_few_bytes_a_row(tmp_path: Path) -> None:
    """An offset, an id and a size as Python objects are more than 200; here the order of the epoch alone is held."""
    path = written(tmp_path, [{"id": f"row-{i}", "prompt": "p" * (i % 7 + 1)} for i in range(MANY)])
    made = ScratchIndexes()
    JsonLines(path, "data.train", PROMPTED, made)
    (file,) = made.made.values()
    ran = subprocess.run(
        [sys.executable, "-c", READ_ALL, str(path), str(file.parent)], capture_output=True, text=True, check=True
    )
    anew, held = map(int, ran.stdout.split())
    assert anew == 0 and held < 12 * MANY


@pytest.mark.parametrize("gaps", [[0], [3], [0, 0, 2, 0, 1], [1, 0]])
def test_rows_are_found_between_blank_lines(tmp_path: Path, gaps: list[int]) -> None:
    rows = [{"id": f"r{i}", "prompt": "p" * (i + 1)} for i in range(40)]
    lines = [json.dumps(row) + "\n" + " \n" * gaps[i % len(gaps)] for i, row in enumerate(rows)]
    (tmp_path / "rows.jsonl").write_text("\n" * gaps[0] + "".join(lines))
    found = JsonLines(tmp_path / "rows.jsonl", "data.train", PROMPTED, ScratchIndexes())
    assert found.read(range(40)) == rows


PEAK = """
import sys
from hpcrl.data.indexes import ScratchIndexes
from hpcrl.data.jsonl import JsonLines
from hpcrl.data.rows.lines import PROMPTED

def peak_kib():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))

before = peak_kib()
JsonLines(sys.argv[1], "data.train", PROMPTED, ScratchIndexes())
print(peak_kib() - before)
"""


def test_an_index_is_made_in_few_bytes_a_row(tmp_path: Path) -> None:
    """Of a million rows in a gigabyte, 85 MB in all."""
    path = written(tmp_path, [{"id": f"row-{i}", "prompt": "p" * 40} for i in range(3 * MANY)])
    ran = subprocess.run([sys.executable, "-c", PEAK, str(path)], capture_output=True, text=True, check=True)
    assert int(ran.stdout) * 1024 < 3e6 + 55 * 3 * MANY
