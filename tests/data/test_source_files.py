"""Data sets that are no JSON lines, and rows that a user's function makes, against the same rows as JSON lines."""

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest

from hpcrl.data.indexes import ScratchIndexes
from hpcrl.data.jsonl import JsonLines
from hpcrl.data.rows.lines import ANSWERED, JUDGED, AnsweredChatLine, AnswerLine
from hpcrl.data.source_files import RowMaker, row_maker
from hpcrl.errors import ConfigurationError, DataError, MissingExtraError, UserCodeError

PLAIN = [{"prompt": f"{i} + {i} = ", "answer": str(2 * i), "more": [i, None]} for i in range(5)]
TASKS = [
    {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": f"{i} + {i} = "}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": str(2 * i)},
        "extra_info": {"index": i},
    }
    for i in range(5)
]


def write(path: Path, rows: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = arrow.Table.from_pylist(rows)
    match path.suffix:
        case ".parquet":
            parquet.write_table(table, path, row_group_size=2)
        case ".arrow":
            writer = arrow.ipc.new_file if path.stem == "file" else arrow.ipc.new_stream
            with writer(str(path), table.schema) as out:
                out.write_table(table, max_chunksize=2)
        case _:
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def records(path: Path, lines: Any = JUDGED, maker: RowMaker | None = None) -> list[dict[str, Any]]:
    opened = JsonLines(path, "data.train", lines, ScratchIndexes(), maker=maker)
    return opened.read(range(len(opened.index)))


@pytest.mark.parametrize("rows", [PLAIN, TASKS], ids=["texts", "verl's"])
@pytest.mark.parametrize("name", ["rows.parquet", "stream.arrow", "file.arrow"])
def test_a_table_has_the_rows_of_the_same_json_lines(tmp_path: Path, rows: Any, name: str) -> None:
    assert records(write(tmp_path / name, rows)) == records(write(tmp_path / "rows.jsonl", rows))


@pytest.mark.parametrize("kind", ["parquet", "arrow", "jsonl"])
def test_a_folder_has_the_rows_of_its_files_by_name(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "set"
    write(folder / f"b.{kind}", PLAIN[3:])
    write(folder / f"a.{kind}", PLAIN[:3])
    (folder / "about.json").write_text("{}")
    assert records(folder) == records(write(tmp_path / "rows.jsonl", PLAIN))
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        DataError, match=r"empty has no files \*.parquet, \*.arrow, \*.jsonl. Put some there, or submit a new run"
    ):
        records(tmp_path / "empty")


def test_a_folder_is_read_with_those_below_it_and_without_what_is_hidden(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    write(folder / "b.jsonl", PLAIN[3:])
    write(folder / "a" / "x.jsonl", PLAIN[:3])
    for hidden in (".ipynb_checkpoints/b-checkpoint.jsonl", "a/.x.jsonl", ".more.parquet"):
        write(folder / hidden, PLAIN)
    assert records(folder) == records(write(tmp_path / "rows.jsonl", PLAIN))
    assert records(folder.rename(tmp_path / ".set")) == records(tmp_path / "rows.jsonl")


@pytest.mark.parametrize(
    ("names", "splits"),
    [
        (["train.parquet", "test.parquet"], "test, train"),
        (["train/0.parquet", "dev/0.parquet"], "train, validation"),
        (["gsm8k_train.parquet", "gsm8k_Valid.parquet"], "train, validation"),
        (["my-eval-set/train.parquet", "my-eval-set/test.parquet"], "test, train"),
        (["val-2020.parquet", "validation-2021.parquet", "dev/more.parquet"], None),
        (["all.parquet", "train-00000-of-00001.parquet", "eval_1.parquet"], "eval, train"),
        (["train.parquet", "train_2.parquet", "more.parquet"], None),
        (["latest.parquet", "trainers.parquet", "retest.parquet"], None),
    ],
)
def test_files_named_after_splits_are_not_read_together(tmp_path: Path, names: list[str], splits: str | None) -> None:
    for name in names:
        write(tmp_path / "set" / name, PLAIN[:1])
    if splits is None:
        assert len(records(tmp_path / "set")) == len(names)
        return
    with pytest.raises(DataError, match=rf"^data.train = .*set has the splits {splits}, but rows are read from one"):
        records(tmp_path / "set")
    assert len(records(tmp_path / "set" / names[0])) == 1


def test_what_was_made_of_a_table_is_found_again_until_its_file_changes(tmp_path: Path) -> None:
    path, indexes = write(tmp_path / "rows.parquet", PLAIN), ScratchIndexes()
    JsonLines(path, "data.train", ANSWERED, indexes)
    assert sorted(name.rpartition(".")[2] == "jsonl" for name in indexes.made) == [False, True]
    again = ScratchIndexes(below=lambda name: indexes.made.get(name))
    JsonLines(path, "data.train", ANSWERED, again)
    assert again.made == {}
    write(path, PLAIN[:4])
    assert len(JsonLines(path, "data.train", ANSWERED, again).ids) == 4 and len(again.made) == 2


def test_a_file_that_is_no_table_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    path.write_text("no table")
    with pytest.raises(
        DataError, match=r"cannot read .*rows.parquet: .* Correct it, or submit a new run with another data.train"
    ):
        records(path)


def test_a_table_that_pyarrow_cannot_decode_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "rows.parquet", PLAIN)

    def iter_batches(*_: Any, **__: Any) -> Any:
        raise arrow.ArrowNotImplementedError("Codec 'lzo' is not supported")

    monkeypatch.setattr(parquet.ParquetFile, "iter_batches", iter_batches)
    with pytest.raises(DataError, match=r"cannot read .*rows.parquet: Codec 'lzo' is not supported. Correct it, or"):
        records(path)


@pytest.mark.parametrize("wrong", [b'{"prompt": "p", "src": "caf\xe9"}', b"[" * 5000], ids=["no UTF-8", "too deep"])
def test_a_malformed_line_in_a_folder_is_named_by_file_and_line(tmp_path: Path, wrong: bytes) -> None:
    write(tmp_path / "set" / "a.jsonl", PLAIN)
    (tmp_path / "set" / "b.jsonl").write_bytes(b'{"prompt": "p", "answer": "a"}\n\n' + wrong + b"\n")
    with pytest.raises(DataError, match=r"cannot read .*b.jsonl: line 3: "):
        records(tmp_path / "set")


def test_who_lacks_pyarrow_is_told_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "rows.parquet", PLAIN)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'hpcrl\[data\]'"):
        records(path)


MAKES = """
from parts import key

def make(row):
    return {"prompt": row["q"], "answer": key.FOUND[row["a"]], "id": "r" + row["q"]}

def nothing(row):
    return None

def fails(row):
    raise SystemExit(row["missing"])
"""


def maker_of(folder: Path, name: str = "make") -> RowMaker:
    function = f"{folder / 'own.py'}:{name}"
    return row_maker("data.row", function, function)


@pytest.fixture
def own(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    (folder / "parts").mkdir(parents=True)
    (folder / "own.py").write_text(MAKES)
    (folder / "parts" / "__init__.py").touch()
    (folder / "parts" / "key.py").write_text("FOUND = {'x': 'ex'}\n")
    return folder


def test_a_users_function_makes_each_row_once(tmp_path: Path, own: Path) -> None:
    path, indexes = write(tmp_path / "rows.jsonl", [{"q": str(i), "a": "x"} for i in range(3)]), ScratchIndexes()
    first = JsonLines(path, "data.train", ANSWERED, indexes, maker=maker_of(own))
    assert first.ids == ("r0", "r1", "r2")
    assert first.read([1]) == [{"prompt": "1", "answer": "ex", "id": "r1"}]
    elsewhere = tmp_path / "copy"
    own.rename(elsewhere)
    again = ScratchIndexes(below=lambda name: indexes.made.get(name))
    JsonLines(path, "data.train", ANSWERED, again, maker=maker_of(elsewhere))
    assert again.made == {}
    (elsewhere / "parts" / "key.py").write_text("FOUND = {'x': 'other'}\n")
    JsonLines(path, "data.train", ANSWERED, again, maker=maker_of(elsewhere, "make"))
    assert len(again.made) == 2


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nothing", r"data.row returns NoneType for .*rows.jsonl, row 1; a row is a mapping"),
        ("fails", r"data.row fails at .*rows.jsonl, row 1: KeyError: 'missing'"),
    ],
)
def test_a_function_that_fails_is_named_with_the_row(tmp_path: Path, own: Path, name: str, says: str) -> None:
    path = write(tmp_path / "rows.jsonl", [{"q": "1", "a": "x"}])
    with pytest.raises(UserCodeError, match=says):
        records(path, ANSWERED, maker_of(own, name))


def test_a_function_that_is_not_there_is_named(tmp_path: Path, own: Path) -> None:
    path = write(tmp_path / "rows.jsonl", [{"q": "1", "a": "x"}])
    with pytest.raises((ConfigurationError, UserCodeError), match=r"own.py"):
        records(path, ANSWERED, maker_of(own, "gone"))


def save(folder: Path, rows: list[dict[str, Any]], shards: int = 1, schema: arrow.Schema | None = None) -> Path:
    """As `save_to_disk` of datasets 5.2 does: streams, and a file that names them."""
    folder.mkdir(parents=True)
    names = [f"data-{i:05d}-of-{shards:05d}.arrow" for i in range(shards)]
    for i, name in enumerate(names):
        table = arrow.Table.from_pylist(rows[len(rows) * i // shards : len(rows) * (i + 1) // shards], schema)
        with arrow.ipc.new_stream(str(folder / name), table.schema) as out:
            out.write_table(table)
    state = {"_data_files": [{"filename": name} for name in names], "_fingerprint": "da500d32b06bcb9e", "_split": None}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text("{}")
    return folder


LARGE = arrow.schema([("prompt", arrow.large_string()), ("answer", arrow.large_string())])
TURNS = [[{"role": "user", "content": f"q{i}"}, {"role": "assistant", "content": f"a{i}"}] for i in range(5)]
CHATS = [{"messages": turns} for turns in TURNS]
LISTS = [{"messages": {name: [turn[name] for turn in turns] for name in ("role", "content")}} for turns in TURNS]


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize(
    ("rows", "same", "schema"),
    [
        (PLAIN, PLAIN, None),
        ([{key: row[key] for key in LARGE.names} for row in PLAIN],) * 2 + (LARGE,),
        (CHATS, CHATS, None),
        (LISTS, CHATS, None),
    ],
    ids=["texts", "large strings", "chats", "chats of older versions"],
)
def test_a_folder_that_datasets_has_saved_has_its_rows_and_none_that_were_once_made_of_them(
    tmp_path: Path, rows: Any, same: Any, schema: Any, shards: int
) -> None:
    folder = save(tmp_path / "saved", rows, shards, schema)
    write(folder / "cache-48f81629bb276eb1.arrow", [{"indices": 3}])
    lines = (AnswerLine, AnsweredChatLine)
    assert records(folder, lines) == records(write(tmp_path / "rows.jsonl", same), lines)
    (folder / "state.json").unlink()
    assert records(folder, lines) == records(tmp_path / "rows.jsonl", lines)


def test_of_a_folder_with_splits_one_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    save(folder / "train", PLAIN[:3])
    (folder / "dataset_dict.json").write_text('{"splits": ["train"]}')
    assert len(records(folder)) == 3
    save(folder / "test", PLAIN[3:])
    (folder / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(
        DataError,
        match=r"^data.train = .*saved has the splits train, test, but rows are read from one. Submit .* as data.train",
    ):
        records(folder)
    assert len(records(folder / "test")) == 2


def test_of_a_data_set_as_the_hub_has_it_one_split_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "hub" / "data"
    folder.parent.mkdir()
    for i in range(2):
        write(folder / f"train-{i:05d}-of-00002.parquet", PLAIN[2 * i : 2 * i + 2])
    assert records(folder.parent) == records(write(tmp_path / "rows.jsonl", PLAIN[:4]))
    write(folder / "test-00000-of-00001.parquet", PLAIN[4:])
    with pytest.raises(
        DataError, match=r"the splits data/test.parquet, data/train.parquet, but rows are read from one"
    ):
        records(folder.parent)
    assert len(records(folder / "test-00000-of-00001.parquet")) == 1
