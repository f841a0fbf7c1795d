"""What workers measure as they execute: seconds by kind of work, tokens, bytes, operations, memory. Pure values."""

from collections.abc import Collection, Sequence

import msgspec
from msgspec.structs import astuple


class Seconds(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where the time of a worker goes in a call, by its device's clock. `collective` lies within the others; what of
    `execute` is in none of them is the algorithm's own work on the host."""

    gather: float = 0.0
    """From the request until all of its rows were here; before the call began."""
    execute: float = 0.0
    prefill: float = 0.0
    """Reading prompts."""
    decode: float = 0.0
    """Making tokens after these."""
    forward: float = 0.0
    """Passes through a model for what it predicts."""
    backward: float = 0.0
    optimizer: float = 0.0
    """Adding gradients up over ranks, and updates."""
    collective: float = 0.0
    """In operations of several ranks, and waiting for these."""
    release: float = 0.0
    """Letting go of what other calls need the memory of; within `execute`."""


class Figures(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a worker measured as it executed a part of a call; of several, sums, but for what is a maximum."""

    seconds: Seconds = Seconds()
    tokens: int = 0
    """That went through a model, each as often as it did; those of a prompt that is shared once."""
    longest: int = 0
    """Tokens of the longest row; a maximum."""
    micro_batches: int = 0
    """Forward passes, in training or not."""
    rounds: int = 0
    """Of generation: how often rows got a token each."""
    sent: int = 0
    """Bytes given to other ranks in collectives and messages."""
    flops: float = 0.0
    """Operations of the models' mathematics, as `hpcrl.placement.flops` counts them; 0 where it cannot."""
    peak: int = 0
    """Bytes in use at most: on a GPU of the process's tensors, else of its memory. A maximum."""
    held: int = 0
    """The same at the call's end. A maximum."""


MAXIMA = ("longest", "peak", "held")

Packed = tuple[float, ...]
"""Figures as bare numbers, seconds last; zeroes at the end are left out. Nothing at all of what nobody has measured."""
_COUNTS, _SECONDS = Figures.__struct_fields__[1:], Seconds.__struct_fields__
_ADD = tuple(max if name in MAXIMA else sum for name in _COUNTS)


def added_up(each: Collection[Figures]) -> Figures:
    """Of some workers, or calls: one at least."""
    seconds, *counts = zip(*map(astuple, each), strict=True)
    summed = Seconds(*map(sum, zip(*map(astuple, seconds), strict=True)))
    return Figures(summed, *(add(column) for add, column in zip(_ADD, counts, strict=True)))


def packed(figures: Figures) -> Packed:
    """So that a line stays short: seconds to a tenth of a millisecond, operations to five digits."""
    numbers = [getattr(figures, name) for name in _COUNTS]
    numbers[_COUNTS.index("flops")] = float(f"{figures.flops:.5g}")
    numbers += [round(getattr(figures.seconds, name), 4) for name in _SECONDS]
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(int(it) if it == int(it) else it for it in numbers)


def unpacked(numbers: Sequence[float]) -> Figures | None:
    """What was packed; None of nothing."""
    if not numbers:
        return None
    counts = {name: int(number) for name, number in zip(_COUNTS, numbers, strict=False)}
    seconds = {name: float(number) for name, number in zip(_SECONDS, numbers[len(_COUNTS) :], strict=False)}
    whole = Figures(Seconds(**seconds), **counts)
    return msgspec.structs.replace(whole, flops=float(whole.flops))
