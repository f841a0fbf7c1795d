"""What a data set is made of: JSON lines, parquet, or a folder; and what a user's function makes of its rows.

Only JSON lines are read where they are. What else there is becomes JSON lines once, which the run keeps: a row of them
can be read without those around it, has a checksum, and stays what a user's function has made of it.
"""

import hashlib
import mmap
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from hpcrl.data.rows.kind import Indexes
from hpcrl.data.user_code import collect_code
from hpcrl.errors import DataError, MissingExtraError, UserCodeError
from hpcrl.foreign import plain
from hpcrl.plugins import load

KINDS = (".parquet", ".arrow", ".jsonl")
_SPLITS, _STATE = "dataset_dict.json", "state.json"
"""What `datasets` writes beside the folders of splits, and beside the files of one."""
_CACHED = re.compile(r"(cache-[0-9a-f]{16}(_\d+_of_\d+)?|tmp\w*)\.arrow$")
"""What `datasets` leaves in a folder of what was once made of its rows."""
_SHARD = re.compile(r"-\d{5}-of-\d{5}(?=\.)")
_SPLIT = re.compile(r"(?<![a-z])(train|test|validation|valid|val|dev|eval)(?![a-z])", re.IGNORECASE)
"""What tells a split in the name of a file or of its folder, as `datasets` tells it."""
MALFORMED = (msgspec.DecodeError, UnicodeError, RecursionError)
"""What msgspec raises where a line is no JSON."""
_ROWS = 1024
"""Rows of a table in memory at once."""


S = TypeVar("S")


class _Splits(msgspec.Struct):
    splits: list[str]


class _File(msgspec.Struct):
    filename: str


class _State(msgspec.Struct):
    data_files: list[_File] = msgspec.field(name="_data_files")


@dataclass(frozen=True)
class RowMaker:
    """A user's function that makes a row of any other, and by what its code is known."""

    setting: str
    function: str
    """As the setting names it."""
    digest: str


def row_maker(setting: str, place: str | None, function: str) -> RowMaker:
    """`place` is that of the user's own code, None where a function is installed. Raises ConfigurationError."""
    code = hashlib.blake2b(function.rpartition(":")[2].encode(), digest_size=8)
    if place is not None:
        files = collect_code({setting: place}, ()).files
        for content in sorted(hashlib.blake2b(data).digest() for data in files.values()):
            code.update(content)
    return RowMaker(setting, function, code.hexdigest())


def files_of(path: Path, knob: str) -> list[Path]:
    """The files of a data set, in their order: itself; of a folder those that `datasets` says are its own, else all of
    the first kind of `KINDS` that it has, in folders below it too, but none that is hidden. `knob` is the setting that
    chose it.

    Raises:
        DataError: the folder has several splits.
    """
    if not path.is_dir():
        return [path]
    if (path / _SPLITS).is_file():
        names = _named(path / _SPLITS, _Splits).splits
        if len(names) != 1:
            raise _several(knob, path, names)
        path = path / names[0]
    if (path / _STATE).is_file():
        return [path / file.filename for file in _named(path / _STATE, _State).data_files]
    files = next((files for kind in KINDS if (files := _below(path, kind))), [])
    names = [str(file.relative_to(path)) for file in files]
    shards = {_SHARD.sub("", name) for name in names if _SHARD.search(name)}
    splits = {_split(found[-1].lower()) for name in names if (found := _SPLIT.findall(name))}
    for several in (shards, splits):
        if len(several) > 1:
            raise _several(knob, path, sorted(several))
    return files


def _split(word: str) -> str:
    """What is told by the last of these words in a path: the file's own, or else that of the nearest folder."""
    return "validation" if word in ("valid", "val", "dev") else word


def _below(folder: Path, kind: str) -> list[Path]:
    """What of a kind is in a folder or below it, by name; nothing hidden, nothing that `datasets` has cached."""
    found = sorted(folder.rglob(f"*{kind}"))
    return [
        file
        for file in found
        if file.is_file()
        and not _CACHED.match(file.name)
        and not any(part[0] == "." for part in file.relative_to(folder).parts)
    ]


def _named(path: Path, form: type[S]) -> S:
    """What is in a file that `datasets` has written. Raises DataError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=form)
    except (OSError, msgspec.DecodeError) as error:
        raise DataError(f"cannot read {path}: {error}.", "Save the data set again.") from error


def _several(knob: str, path: Path, splits: Sequence[str]) -> DataError:
    return DataError(
        f"{knob} = {path} has the splits {', '.join(splits)}, but rows are read from one.",
        f"Submit a new run with the folder or the file of one split as {knob}.",
    )


def kept_lines(path: Path, knob: str, maker: RowMaker | None, indexes: Indexes) -> Path:
    """A file with the JSON lines of a data set: itself, or what is kept of it.

    Raises:
        DataError: it cannot be read.
        UserCodeError: the user's function raises, or returns what is no row.
        MissingExtraError: it is a table, and pyarrow is not installed.
    """
    files = files_of(path, knob)
    if maker is None and len(files) == 1 and files[0].suffix not in (".parquet", ".arrow"):
        return files[0]
    made_by = "" if maker is None else maker.digest
    what = hashlib.blake2b(f"{indexes.fingerprint(knob, files)}\n{made_by}".encode(), digest_size=8).hexdigest()
    name = f"{knob}.{what}.jsonl"
    if (found := indexes.find(name)) is not None:
        return found
    with tempfile.TemporaryFile() as scratch:
        for line in _lines(path, files, knob, maker):
            scratch.write(line + b"\n")
        scratch.flush()
        indexes.confirm(knob, files)
        if not scratch.tell():
            return indexes.keep(name, [b""])
        with mmap.mmap(scratch.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as content:
            return indexes.keep(name, [content])


def _lines(path: Path, files: Sequence[Path], knob: str, maker: RowMaker | None) -> Iterator[bytes]:
    if not files:
        raise DataError(
            f"{path} has no files {', '.join('*' + kind for kind in KINDS)}.",
            f"Put some there, or submit a new run with another {knob}.",
        )
    function = None if maker is None else _loaded(maker)
    for file in files:
        try:
            for number, row in enumerate(_rows(file), 1):
                if maker is not None:
                    row = _made(maker.setting, function, row, f"{file}, row {number}")
                yield msgspec.json.encode(row)
        except (OSError, msgspec.DecodeError, TypeError, ValueError) as error:
            raise DataError(
                f"cannot read {file}: {error}.", f"Correct it, or submit a new run with another {knob}."
            ) from error


def _rows(file: Path) -> Iterator[Any]:
    if file.suffix not in (".parquet", ".arrow"):
        yield from _decoded(file)
        return
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise MissingExtraError("pyarrow", "data") from None
    try:
        if file.suffix == ".parquet":
            batches: Iterator[Any] = parquet.ParquetFile(file).iter_batches(batch_size=_ROWS)
        else:
            batches = _arrow_batches(arrow, file)
        for batch in batches:
            yield from ({name: _turns(value) for name, value in row.items()} for row in batch.to_pylist())
    except arrow.ArrowException as error:
        raise ValueError(str(error)) from error


def _decoded(file: Path) -> Iterator[Any]:
    """Raises ValueError, naming the line, where one is no JSON."""
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                try:
                    yield msgspec.json.decode(line)
                except MALFORMED as error:
                    raise ValueError(f"line {number}: {error}") from error


def _turns(value: Any) -> Any:
    """Older versions of `datasets` keep a list of messages as a message of lists."""
    if not isinstance(value, dict) or not all(isinstance(value.get(name), list) for name in ("role", "content")):
        return value
    return [dict(zip(value, turn, strict=True)) for turn in zip(*value.values(), strict=True)]


def _arrow_batches(arrow: Any, file: Path) -> Iterator[Any]:
    """As `datasets` writes them: a stream; or a file of record batches."""
    with arrow.memory_map(str(file)) as source:
        try:
            yield from arrow.ipc.open_stream(source)
        except arrow.ArrowInvalid:
            opened = arrow.ipc.open_file(source)
            yield from (opened.get_batch(i) for i in range(opened.num_record_batches))


def _loaded(maker: RowMaker) -> Any:
    try:
        return load(maker.function)
    except (Exception, SystemExit) as error:
        said = plain(f"{type(error).__name__}: {error}")
        raise UserCodeError(
            f"{maker.setting} = {maker.function}: {said}.",
            f"Fix the file, or submit a new run with another {maker.setting}.",
        ) from error


def _made(setting: str, function: Any, row: Any, where: str) -> Mapping[str, Any]:
    """What the user's function makes of a row."""
    try:
        made = function(row)
    except (Exception, SystemExit) as error:
        said = plain(f"{type(error).__name__}: {error}")
        raise UserCodeError(f"{setting} fails at {where}: {said}.", "Fix the function or the row.") from error
    if not isinstance(made, Mapping):
        returned = type(made).__name__
        raise UserCodeError(f"{setting} returns {returned} for {where}; a row is a mapping.", "Fix the function.")
    return made
