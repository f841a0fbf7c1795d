"""What the rows of a key are made of, as far as it is known before there is a row. Loads no arrays."""

from typing import NamedTuple


class Form(NamedTuple):
    """Each row of a key is an array [length, *trailing] of this type."""

    dtype: str
    """As numpy names it."""
    trailing: tuple[int, ...] = ()


TOKENS = Form("int32")
NUMBERS = Form("float32")
FLAGS = Form("bool")
