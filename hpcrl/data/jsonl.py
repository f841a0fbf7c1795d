"""Rows of a .jsonl file by id. Holds ids, offsets and sizes only; the text stays on disk."""

import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from hpcrl.data.contents import Stamp, stamp_of
from hpcrl.errors import DataError

_PIECE_BYTES = 4 << 20


class PromptLine(msgspec.Struct):
    """What every line has; other kinds of line add fields to it."""

    prompt: str
    id: str | int | None = None


class AnswerLine(PromptLine, kw_only=True):
    """A prompt and its answer."""

    answer: str


class JsonLines:
    """One record per line, blank lines aside: the fields of `form`, and maybe `id`, else its number from 0.

    Every line is checked when the file is opened.

    Raises:
        DataError: naming the file, the line, the field, and `knob`, the setting that chose the file.
    """

    def __init__(self, path: Path | str, knob: str, form: type[PromptLine]) -> None:
        self.path = Path(path)
        self._knob = knob
        self._form = form
        self._offsets: dict[str, int] = {}
        self._sizes: dict[str, int] = {}
        self._stamp: Stamp | None = None
        self._crc = 0
        lines: dict[str, int] = {}
        for number, offset, size, row in self._scan():
            row_id = str(len(lines) if row.id is None else row.id)
            if row_id in lines:
                raise DataError(
                    f"{self.path}, lines {lines[row_id]} and {number}: both have id {row_id!r}; an id is to be unique "
                    f"in {knob}.",
                    "Change one, or drop all ids to count rows instead.",
                )
            lines[row_id], self._offsets[row_id], self._sizes[row_id] = number, offset, size
        if not lines:
            raise DataError(f"{self.path} has no rows.", f"Give {knob} one JSON object per line.")

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(self._offsets)

    def size(self, row_id: str) -> int:
        """Bytes of the row's line: its texts have no more."""
        return self._sizes[row_id]

    def read(self, ids: Sequence[str]) -> list[dict[str, Any]]:
        """The whole records, each with its id. Raises DataError where the file changed since it was opened."""
        records = []
        with self.path.open("rb") as file:
            self._refuse_changed(file)
            for row_id in ids:
                file.seek(self._offsets[row_id])
                records.append({**msgspec.json.decode(file.readline()), "id": row_id})
        return records

    def _scan(self) -> Iterator[tuple[int, int, int, PromptLine]]:
        """(line number from 1, offset, size, what is needed of the record) of each row."""
        decoder = msgspec.json.Decoder(self._form)
        offset = 0
        try:
            with self.path.open("rb") as file:
                self._stamp = stamp_of(file.fileno())
                for number, line in enumerate(file, 1):
                    self._crc = zlib.crc32(line, self._crc)
                    if line.strip():
                        yield number, offset, len(line), self._decode(decoder, number, line)
                    offset += len(line)
        except OSError as error:
            raise DataError(
                f"cannot read {self.path}: {error.strerror}.",
                f"Make it readable, or submit a new run with another {self._knob}.",
            ) from error

    def _refuse_changed(self, file: BinaryIO) -> None:
        """Who has only touched the file has not changed it."""
        stamp = stamp_of(file.fileno())
        if stamp == self._stamp:
            return
        crc = 0
        while piece := file.read(_PIECE_BYTES):
            crc = zlib.crc32(piece, crc)
        if crc != self._crc:
            raise DataError(f"{self.path} changed while the run reads it.", f"Put back what {self._knob} was.")
        self._stamp = stamp

    def _decode(self, decoder: "msgspec.json.Decoder[Any]", number: int, line: bytes) -> PromptLine:
        try:
            row: PromptLine = decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            fields = " and ".join(field.encode_name for field in msgspec.structs.fields(self._form) if field.required)
            raise DataError(
                f"{self.path}, line {number}: {error}.",
                f"Make each line of {self._knob} a JSON object with the text of {fields} (and, if you like, an id).",
            ) from error
        if not row.prompt:
            raise DataError(
                f"{self.path}, line {number}: prompt is empty.", f"Give each row of {self._knob} a text there."
            )
        return row
