"""What a number of the configuration may be, said at its field: types with a bound, and the bound in words.

Any other bound stands at its own field; `description` says in words what msgspec's terms do not.
"""

import math
from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec
from msgspec import Meta

Count = Annotated[int, Meta(ge=1)]
Natural = Annotated[int, Meta(ge=0)]
Positive = Annotated[float, Meta(gt=0)]
NonNegative = Annotated[float, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0, le=1)]
NodeCount = Annotated[
    int | str,
    Meta(description="a whole number from 1, or a range such as 2-8, the least first"),
    "count or range",
]
"""How many nodes: a number, or from so many to so many."""
TOO_MUCH = 2**31
"""Of a count that has no bound of its own: so much is a slip, and fits no table."""
Tokens = Annotated[int, Meta(ge=1, lt=TOO_MUCH)]
"""Of a text."""
MOST_NODES = 65_536
WIDEST = 1_024
"""Numbers of a range of nodes: each is placed and checked before a run begins."""


def ends_of(nodes: int | str) -> tuple[int, int]:
    """The least and the most of a NodeCount; (0, 0) of what is none."""
    if isinstance(nodes, int):
        return nodes, nodes
    first, _, last = nodes.partition("-")
    return (int(first), int(last)) if _is_number(first) and _is_number(last) else (0, 0)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < len(str(TOO_MUCH))


def marks(hint: Any) -> Iterator[Any]:
    """What `Annotated` says of a type, or of the kinds of a union; the outermost comes first."""
    if get_origin(hint) is Annotated:
        yield from hint.__metadata__
        yield from marks(hint.__origin__)
    elif get_origin(hint) in (UnionType, Union):
        for kind in get_args(hint):
            yield from marks(kind)


def broken_bound(hint: Any, value: Any) -> str | None:
    """What a value of the right type must be and is not. JSON holds no inf and no nan, so a number is finite."""
    try:
        msgspec.convert(value, hint)
    except msgspec.ValidationError as error:
        return in_words(hint) or str(error).removeprefix("Expected ")
    if isinstance(value, float) and not math.isfinite(value):
        return in_words(hint) or "a finite number"
    if "count or range" in marks(hint):
        return _broken_nodes(*ends_of(value), in_words(hint))
    if (
        isinstance(value, int)
        and abs(value) >= TOO_MUCH
        and not any(isinstance(it, Meta) and it.le for it in marks(hint))
    ):
        return f"{in_words(hint)} and below 2^31".removeprefix(" and ")
    return None


def _broken_nodes(least: int, most: int, allowed: str) -> str | None:
    if not 1 <= least <= most:
        return allowed
    if most > MOST_NODES:
        return f"at most {MOST_NODES:,}"
    return None if most - least < WIDEST else f"a range of at most {WIDEST:,} numbers"


def in_words(hint: Any) -> str:
    """The bound of a type; empty where it has none."""
    bounds = [mark for mark in marks(hint) if isinstance(mark, Meta)]
    described = [bound.description for bound in bounds if bound.description]
    return described[0] if described else " and ".join(filter(None, map(_limits, bounds)))


def _limits(bound: Meta) -> str:
    if bound.ge is not None and bound.le is not None:
        return f"between {bound.ge:g} and {bound.le:g}"
    limits = {
        "at least": bound.ge,
        "a finite number above": bound.gt,
        "at most": bound.le,
        "below": bound.lt,
    }
    return " and ".join(f"{words} {limit:g}" for words, limit in limits.items() if limit is not None)
