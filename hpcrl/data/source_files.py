"""What a data set is made of: JSON lines, parquet, or a folder; and what a user's function makes of its rows.

Only JSON lines are read where they are. What else there is becomes JSON lines once, which the run keeps: a row of them
can be read without those around it, has a checksum, and stays what a user's function has made of it.
"""

import hashlib
import mmap
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from hpcrl.data.rows.kind import Indexes
from hpcrl.data.user_code import collect_code
from hpcrl.errors import DataError, MissingExtraError, UserCodeError
from hpcrl.foreign import plain
from hpcrl.plugins import load

KINDS = (".parquet", ".arrow", ".jsonl")
_ROWS = 1024
"""Rows of a table in memory at once."""


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


def files_of(path: Path) -> list[Path]:
    """The files of a data set, in their order: itself, or all of the first kind of `KINDS` that a folder has."""
    if not path.is_dir():
        return [path]
    found = (sorted(path.rglob(f"*{kind}")) for kind in KINDS)
    return next((files for files in found if files), [])


def kept_lines(path: Path, knob: str, maker: RowMaker | None, indexes: Indexes) -> Path:
    """A file with the JSON lines of a data set: itself, or what is kept of it.

    Raises:
        DataError: it cannot be read.
        UserCodeError: the user's function raises, or returns what is no row.
        MissingExtraError: it is a table, and pyarrow is not installed.
    """
    files = files_of(path)
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
        with file.open("rb") as lines:
            yield from (msgspec.json.decode(line) for line in lines if line.strip())
        return
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise MissingExtraError("pyarrow", "data") from None
    if file.suffix == ".parquet":
        batches: Iterator[Any] = parquet.ParquetFile(file).iter_batches(batch_size=_ROWS)
    else:
        batches = _arrow_batches(arrow, file)
    for batch in batches:
        yield from batch.to_pylist()


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
