"""Rows of a .jsonl file by number or id. The text stays on disk, what is known of the rows in their index."""

import hashlib
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

import msgspec
import numpy as np

from hpcrl.data.contents import refuse_written, stamp_of
from hpcrl.data.index import IndexBuilder, RowIds, RowIndex
from hpcrl.data.rows.kind import Indexes
from hpcrl.data.rows.lines import ChatLine, Lines, RowLine, described, in_columns, needed, recognised
from hpcrl.data.source_files import MALFORMED, RowMaker, files_of, kept_lines
from hpcrl.data.table import Table, encode_table, open_table
from hpcrl.errors import DataError

FORMAT = 1
"""Of an index; one of another format is not found."""
NO_FIELDS: Mapping[str, str] = MappingProxyType({})
_SHOWN = 50
"""Rows in one error."""
_NAMED = 10
"""Lines with the same id that are named."""


class JsonLines:
    """One record per line, blank lines aside: a line of one of these kinds, and maybe `id`, else its number from 0.

    What is no file of JSON lines is read as `kept_lines` made some of it.

    The columns of the first row say of which kind all are. `fields` has columns by the names that they have here.

    Every line is checked when the index is made; a line that is read is compared with its checksum there.

    Raises:
        DataError: naming the file, the lines, the fields, and `knob`, the setting that chose the file.
    """

    def __init__(
        self,
        path: Path | str,
        knob: str,
        lines: Lines,
        indexes: Indexes,
        fields: Mapping[str, str] = NO_FIELDS,
        maker: RowMaker | None = None,
    ) -> None:
        self.path = Path(path)
        self.knob = knob
        self._lines, self._fields = lines, fields
        self._made_of = knob if maker is None else f"{knob} or {maker.setting}"
        kinds = " ".join(line.__name__ for line in lines)
        files, code = files_of(self.path, knob), "" if maker is None else maker.digest
        what = f"{FORMAT}\n{indexes.fingerprint(knob, files)}\n{kinds}\n{sorted(fields.items())}\n{code}"
        digest = hashlib.blake2b(what.encode(), digest_size=8).hexdigest()
        self._indexes = indexes  # what it keeps is there as long as it is
        self._file = kept_lines(self.path, knob, maker, indexes)
        self.name = f"{knob}.{digest}"
        """What its index is called: one of another content or form has another name."""

        def make() -> Table:
            table = self._make_table()
            indexes.confirm(knob, files)
            return table

        self.index = RowIndex(open_kept(indexes, self.name, make))
        first = self._raw([0])[0]
        self._line = self._recognise(first)
        self.chats = not isinstance(self._line.normal(self._renamed(first))["prompt"], str)
        """Whether prompts are messages, not texts."""
        self.has_whole_chats = issubclass(self._line, ChatLine)

    @property
    def ids(self) -> RowIds:
        """Of all rows."""
        return RowIds(self.index, np.arange(len(self.index), dtype=np.uint32))

    def row(self, row_id: str) -> int:
        """The number of a row. Raises DataError where there is none of this id."""
        row = self.index.find(row_id)
        if row is None:
            raise DataError(f"{self.path} has no row {row_id!r}.", f"Put back what {self._made_of} was.")
        return row

    def read(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """The whole records, each with its id, `prompt`, and `answer` where it has one.

        Raises DataError where one changed since it was indexed.
        """
        named = zip(rows, map(self._renamed, self._raw(rows)), strict=True)
        return [{**self._line.normal(record), "id": self.index.id(row)} for row, record in named]

    def _raw(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        records = []
        index = self.index
        try:
            with self._file.open("rb") as file:
                for row in rows:
                    file.seek(int(index.offsets[row]))
                    line = file.read(int(index.sizes[row]))
                    if zlib.crc32(line) != index.crcs[row]:
                        raise DataError(
                            f"{self.path} changed while the run reads it.", f"Put back what {self.knob} was."
                        )
                    records.append(self._decoded(line, row))
        except OSError as error:
            self._refuse_unreadable(error)
        return records

    def _decoded(self, line: bytes, row: int) -> dict[str, Any]:
        """Raises DataError where a line is malformed in a column that was not checked when an older index was made."""
        try:
            record: dict[str, Any] = msgspec.json.decode(line)
        except MALFORMED as error:
            with self._file.open("rb") as file:
                number = file.read(int(self.index.offsets[row])).count(b"\n") + 1
            raise DataError(
                f"{self.path}, line {number}: {error}.",
                f"Correct the line, and accept the change: hpcrl resume RUN --accept-changed {self.knob}",
            ) from error
        return record

    def _renamed(self, record: Mapping[str, Any]) -> Mapping[str, Any]:
        if not self._fields:
            return record
        return {**record, **{name: record[column] for name, column in self._fields.items() if column in record}}

    def _recognise(self, record: Any) -> type[RowLine]:
        """Raises DataError where a row's columns fit no kind of line, or two that differ."""
        columns = record if isinstance(record, dict) else {}
        found = recognised(self._lines, self._renamed(columns), self._fields)
        if len(found) == 1:
            return found[0]
        seen = f"its first row has the columns {', '.join(map(str, columns)) or '(none)'}"
        if found:
            raise DataError(
                f"{self.path}: {seen}, which can be read as {described(found)}.",
                f"Submit a new run with data.fields for what {self.knob} is to be read as, e.g. "
                f"data.fields.{needed(found[0])[0]}.",
            )
        raise DataError(
            f"{self.path}: {seen}, but {self.knob} needs {self._described}.",
            f"Give {self.knob} such rows, or submit a new run with data.fields for its columns.",
        )

    @property
    def _described(self) -> str:
        """What columns a row may have, by the user's names."""
        return in_columns(described(self._lines), self._lines, self._fields)

    def _make_table(self) -> Table:
        """Read the whole file. Raises DataError with all that is wrong in it."""
        rows, wrong, decoder = IndexBuilder(), list[str](), _Decoder(self._recognise, self._renamed)
        for number, offset, line in self._every_line():
            try:
                row_id = decoder.check(line)
                rows.add(number, offset, line, None if row_id is None else str(row_id))
            except MALFORMED as error:
                wrong.append(f"line {number}: {in_columns(str(error), decoder.lines, self._fields)}")
                rows.add(number, offset, line, f"\0{number}")  # no other row's
            if len(wrong) > _SHOWN:
                break
        if not len(rows):
            raise DataError(f"{self.path} has no rows.", f"Give {self.knob} one JSON object per line.")
        malformed = bool(wrong)
        for row_id, numbers in sorted(rows.repeated(), key=lambda found: found[1][1]):
            if len(wrong) > _SHOWN:
                break
            wrong.append(f"{_lines_in_words(numbers)} have the same id {row_id!r}")
        if wrong:
            self._refuse(wrong, malformed)
        return rows.table(self.name)

    def _every_line(self) -> Iterator[tuple[int, int, bytes]]:
        """(number from 1, offset, content) of each line that is not blank."""
        offset = 0
        try:
            before = stamp_of(self._file)
            with self._file.open("rb") as file:
                for number, line in enumerate(file, 1):
                    if line.strip():
                        yield number, offset, line
                    offset += len(line)
            refuse_written(self._file, before)
        except OSError as error:
            self._refuse_unreadable(error)

    def _refuse(self, wrong: Sequence[str], malformed: bool) -> NoReturn:
        more = f"\n… and more; these are the first {_SHOWN}." if len(wrong) > _SHOWN else ""
        said = "\n".join(f"{self.path}, {text}." for text in wrong[:_SHOWN]) + more
        if malformed:
            raise DataError(
                said,
                f"Make each line of {self.knob} a JSON object with {self._described}. An id of its own may be "
                "added; without any, rows are counted.",
            )
        raise DataError(
            said, f"Give each line of {self.knob} an id of its own, or leave all ids out: rows are then counted."
        )

    def _refuse_unreadable(self, error: OSError) -> NoReturn:
        raise DataError(
            f"cannot read {self.path}: {error.strerror}.",
            f"Make it readable, or submit a new run with another {self.knob}.",
        ) from error


class _Decoder:
    """Checks lines, as the first that is an object tells what they are."""

    def __init__(
        self,
        recognise: Callable[[Any], type[RowLine]],
        renamed: Callable[[Mapping[str, Any]], Mapping[str, Any]],
    ) -> None:
        self._recognise = recognise
        self._renamed = renamed
        self._decoder = msgspec.json.Decoder(dict[str, Any])
        self._kind: type | None = None
        self.lines: Lines = ()
        """The kind of all lines, once it is known."""

    def check(self, line: bytes) -> str | int | None:
        """The line's own id. Raises one of MALFORMED, also for what is in columns that nobody needs: rows are read
        whole."""
        record = self._decoder.decode(line)
        self.lines = self.lines or (self._recognise(record),)
        row = msgspec.convert(self._renamed(record), self.lines[0])
        kind = row.reads_as()
        self._kind = self._kind or kind
        if kind is not self._kind:
            raise msgspec.ValidationError("prompt is a text in some rows and messages in others")
        return row.id


def _lines_in_words(numbers: Sequence[int]) -> str:
    """`lines 2, 4 and 7`; of many the first and how many more there are."""
    shown = [*map(str, numbers[:_NAMED]), *([f"{len(numbers) - _NAMED} more"] if len(numbers) > _NAMED else [])]
    return f"lines {', '.join(shown[:-1])} and {shown[-1]}"


def open_kept(indexes: Indexes, name: str, make: Callable[[], Table]) -> Table:
    """The table of this name, made and kept where there is none, or where it is damaged."""
    path = indexes.find(name)
    if path is not None:
        try:
            return open_table(path)
        except (ValueError, OSError):
            indexes.discard(name)
    return open_table(indexes.keep(name, encode_table(make())))
