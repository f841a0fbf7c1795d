"""What the rows of a key are made of, as far as it is known before there is a row. Loads no arrays."""

from typing import NamedTuple


class Form(NamedTuple):
    """Each row of a key is an array [length, *trailing] of this type."""

    dtype: str
    """As numpy names it."""
    trailing: tuple[int, ...] = ()

    @property
    def number_bytes(self) -> int:
        """Bytes of one number: numpy's names end with its bits, but for flags, which have a byte."""
        bits = self.dtype.lstrip("abcdefghijklmnopqrstuvwxyz")
        return int(bits) // 8 if bits else 1

    @property
    def exact(self) -> "Form":
        """The same in double precision, if it is of numbers."""
        return self._replace(dtype="float64") if self.dtype == "float32" else self


TOKENS = Form("int32")
NUMBERS = Form("float32")
FLAGS = Form("bool")
COUNTS = Form("int64")
BYTES = Form("uint8")
"""Of texts: UTF-8."""
