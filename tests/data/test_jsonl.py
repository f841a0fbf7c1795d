import re
from pathlib import Path

import pytest

from hpcrl.data import jsonl
from hpcrl.data.indexes import ScratchIndexes
from hpcrl.data.jsonl import JsonLines
from hpcrl.data.rows.lines import ANSWERED, PROMPTED
from hpcrl.errors import DataError


def written(folder: Path, *lines: str | bytes) -> Path:
    path = folder / "rows.jsonl"
    path.write_bytes(b"\n".join(line if isinstance(line, bytes) else line.encode() for line in lines))
    return path


def test_rows_are_read_by_id_whole_and_in_any_order(tmp_path: Path) -> None:
    path = written(tmp_path, '{"id": "ü", "prompt": "p0", "more": [1]}', "", '{"id": 7, "prompt": "p1"}', "")
    records = JsonLines(path, "data.train", PROMPTED, ScratchIndexes())
    assert records.ids == ("ü", "7") and "7" in records.ids and "8" not in records.ids
    assert records.read([records.row(row) for row in ("7", "ü", "7")]) == [
        {"id": "7", "prompt": "p1"},
        {"id": "ü", "prompt": "p0", "more": [1]},
        {"id": "7", "prompt": "p1"},
    ]


def test_rows_without_ids_are_counted_from_0_and_blank_lines_do_not_count(tmp_path: Path) -> None:
    path = written(tmp_path, '{"prompt": "a"}', "   ", '{"prompt": "b"}\r', '{"prompt": "c"}')
    records = JsonLines(path, "data.train", PROMPTED, ScratchIndexes())
    assert records.ids == ("0", "1", "2")
    assert [record["prompt"] for record in records.read(range(3))] == ["a", "b", "c"]


GOOD = '{"prompt": "p", "answer": "a"}'
REFUSED = [
    (
        "bad JSON",
        [GOOD, '{"prompt": '],
        r"line 2: .*Make each line of data.train a JSON object with prompt and answer, or messages",
    ),
    ("no object", ["[1]"], "line 1: Expected `object`"),
    ("no prompt", [GOOD, '{"answer": "a"}'], "line 2: .*`prompt`"),
    ("other columns", ['{"q": "a", "a": "b"}'], "columns q, a, but data.train needs prompt and answer, or messages"),
    (
        "two kinds",
        [GOOD[:-1] + ', "messages": []}'],
        "read as prompt and answer, or messages. Submit a new run with data.fields",
    ),
    ("texts and chats", [GOOD, '{"prompt": [{"role": "user"}], "answer": "a"}'], "line 2: prompt is a text in some"),
    ("no answer", [GOOD, "", '{"prompt": "p"}'], "line 3: .*`answer`"),
    (
        "a number for a text",
        ['{"prompt": 3, "answer": "a"}'],
        r"line 1: Expected `str \| array`, got .*`\$.prompt`",
    ),
    ("an empty prompt", ['{"prompt": "", "answer": "a"}'], "line 1: prompt is empty"),
    ("no UTF-8", [b'{"prompt": "\xff", "answer": "a"}'], "line 1: "),
    (
        "no UTF-8 in another column",
        [GOOD, b'{"prompt": "p", "answer": "a", "src": "caf\xe9"}'],
        "line 2: 'utf-8' codec",
    ),
    ("too large a number in another column", [GOOD, GOOD[:-1] + ', "src": 1e999}'], "line 2: Number out of range"),
    ("an id twice", ['{"prompt": "p", "answer": "a", "id": "1"}', GOOD], "lines 1 and 2 have the same id '1'"),
    ("nothing", ["", ""], "has no rows. Give data.train"),
]


@pytest.mark.parametrize(("lines", "says"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_a_row_that_cannot_be_used_is_named_by_file_line_field_and_setting(
    tmp_path: Path, lines: list[str], says: str
) -> None:
    with pytest.raises(DataError, match=says) as caught:
        JsonLines(written(tmp_path, *lines), "data.train", ANSWERED, ScratchIndexes())
    assert "rows.jsonl" in str(caught.value) and "data.train" in str(caught.value)


NAMED = {"prompt": "question", "answer": "solution"}
BY_NAME = '{"question": "p", "solution": "a"}'


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([BY_NAME, '{"solution": "a"}'], r"line 2: Object missing required field `question`"),
        ([BY_NAME, '{"question": "p", "solution": 3}'], r"line 2: Expected `str`, got `int` - at `\$.solution`"),
        ([BY_NAME, '{"question": "", "solution": "a"}'], "line 2: question is empty"),
        ([BY_NAME, "[]"], "Make each line .* with question and solution, or messages"),
        (['{"solution": "a"}'], "has the columns solution, but data.train needs question and solution, or messages"),
    ],
)
def test_columns_are_called_as_the_user_calls_them(tmp_path: Path, lines: list[str], says: str) -> None:
    with pytest.raises(DataError, match=says) as caught:
        JsonLines(written(tmp_path, *lines), "data.train", ANSWERED, ScratchIndexes(), NAMED)
    assert not re.search("prompt|answer", str(caught.value).replace(str(tmp_path), ""))


def test_a_line_that_an_older_index_let_pass_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl._Decoder, "check", lambda *_: None)
    path = written(tmp_path, GOOD, "", b'{"prompt": "p", "answer": "a", "src": "caf\xe9"}', GOOD)
    records = JsonLines(path, "data.train", ANSWERED, ScratchIndexes())
    assert [record["id"] for record in records.read([0, 2])] == ["0", "2"]
    with pytest.raises(DataError, match=r"rows.jsonl, line 3: 'utf-8' codec.* --accept-changed data.train"):
        records.read([1])
    monkeypatch.undo()
    path.write_bytes(path.read_bytes().replace(b"\xe9", "é".encode()))
    assert JsonLines(path, "data.train", ANSWERED, ScratchIndexes()).read([1])[0]["src"] == "café"


def test_a_file_that_is_not_there_is_named_with_its_setting(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot read .*gone.jsonl: No such file.*another data\.evaluate"):
        JsonLines(tmp_path / "gone.jsonl", "data.evaluate", PROMPTED, ScratchIndexes())
