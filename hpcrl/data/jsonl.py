"""Rows of a .jsonl file by number or id. The text stays on disk, what is known of the rows in their index."""

import hashlib
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import numpy as np

from hpcrl.data.contents import refuse_written, stamp_of
from hpcrl.data.index import IndexBuilder, RowIds, RowIndex
from hpcrl.data.rows.kind import Indexes
from hpcrl.data.table import Table, encode_table, open_table
from hpcrl.errors import DataError

FORMAT = 1
"""Of an index; one of another format is not found."""
_SHOWN = 50
"""Rows in one error."""


class PromptLine(msgspec.Struct):
    """What every line has; other kinds of line add fields to it."""

    prompt: str
    id: str | int | None = None


class AnswerLine(PromptLine, kw_only=True):
    """A prompt and its answer."""

    answer: str


class JsonLines:
    """One record per line, blank lines aside: the fields of `form`, and maybe `id`, else its number from 0.

    Every line is checked when the index is made; a line that is read is compared with its checksum there.

    Raises:
        DataError: naming the file, the lines, the fields, and `knob`, the setting that chose the file.
    """

    def __init__(self, path: Path | str, knob: str, form: type[PromptLine], indexes: Indexes) -> None:
        self.path = Path(path)
        self.knob = knob
        self._form = form
        with_fingerprint = f"{FORMAT}\n{indexes.fingerprint(knob, [self.path])}\n{self._form.__name__}"
        digest = hashlib.blake2b(with_fingerprint.encode(), digest_size=8).hexdigest()
        self.name = f"{knob}.{digest}"
        """What its index is called: one of another content or form has another name."""

        def make() -> Table:
            table = self._make_table()
            indexes.confirm(knob, [self.path])
            return table

        self.index = RowIndex(open_kept(indexes, self.name, make))

    @property
    def ids(self) -> RowIds:
        """Of all rows."""
        return RowIds(self.index, np.arange(len(self.index), dtype=np.uint32))

    def row(self, row_id: str) -> int:
        """The number of a row. Raises DataError where there is none of this id."""
        row = self.index.find(row_id)
        if row is None:
            raise DataError(f"{self.path} has no row {row_id!r}.", f"Put back what {self.knob} was.")
        return row

    def read(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """The whole records, each with its id. Raises DataError where one changed since it was indexed."""
        records = []
        index = self.index
        try:
            with self.path.open("rb") as file:
                for row in rows:
                    file.seek(int(index.offsets[row]))
                    line = file.read(int(index.sizes[row]))
                    if zlib.crc32(line) != index.crcs[row]:
                        raise DataError(
                            f"{self.path} changed while the run reads it.", f"Put back what {self.knob} was."
                        )
                    records.append({**msgspec.json.decode(line), "id": index.id(row)})
        except OSError as error:
            self._refuse_unreadable(error)
        return records

    def _make_table(self) -> Table:
        """Read the whole file. Raises DataError with all that is wrong in it."""
        rows, wrong = IndexBuilder(), list[str]()
        decoder = msgspec.json.Decoder(self._form)
        for number, offset, line in self._lines():
            try:
                row = decoder.decode(line)
                if not row.prompt:
                    raise msgspec.ValidationError("prompt is empty")
                rows.add(number, offset, line, None if row.id is None else str(row.id))
            except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
                wrong.append(f"line {number}: {error}")
                rows.add(number, offset, line, f"\0{number}")  # no other row's
            if len(wrong) > _SHOWN:
                break
        if not len(rows):
            raise DataError(f"{self.path} has no rows.", f"Give {self.knob} one JSON object per line.")
        for row_id, first, again in sorted(rows.repeated(), key=lambda found: found[2]):
            if len(wrong) > _SHOWN:
                break
            wrong.append(f"lines {first} and {again}: both have id {row_id!r}")
        if wrong:
            self._refuse(wrong)
        return rows.table(self.name)

    def _lines(self) -> Iterator[tuple[int, int, bytes]]:
        """(number from 1, offset, content) of each line that is not blank."""
        offset = 0
        try:
            before = stamp_of(self.path)
            with self.path.open("rb") as file:
                for number, line in enumerate(file, 1):
                    if line.strip():
                        yield number, offset, line
                    offset += len(line)
            refuse_written(self.path, before)
        except OSError as error:
            self._refuse_unreadable(error)

    def _refuse(self, wrong: Sequence[str]) -> NoReturn:
        fields = " and ".join(field.encode_name for field in msgspec.structs.fields(self._form) if field.required)
        more = f"\n… and more; these are the first {_SHOWN}." if len(wrong) > _SHOWN else ""
        raise DataError(
            "\n".join(f"{self.path}, {text}." for text in wrong[:_SHOWN]) + more,
            f"Make each line of {self.knob} a JSON object with the text of {fields} (and, if you like, an id of its "
            "own: without any, rows are counted).",
        )

    def _refuse_unreadable(self, error: OSError) -> NoReturn:
        raise DataError(
            f"cannot read {self.path}: {error.strerror}.",
            f"Make it readable, or submit a new run with another {self.knob}.",
        ) from error


def open_kept(indexes: Indexes, name: str, make: Callable[[], Table]) -> Table:
    """The table of this name, made and kept where there is none, or where it is damaged."""
    path = indexes.find(name)
    if path is not None:
        try:
            return open_table(path)
        except (ValueError, OSError):
            indexes.discard(name)
    return open_table(indexes.keep(name, encode_table(make())))
