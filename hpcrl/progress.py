"""How the work of an attempt gets on, call by call: values that its master notes and adds up.

None of them is written down: what is kept of them is in rows of costs and in `live.json` (`hpcrl.costs`). What is
written to `events.jsonl` is in `hpcrl.events`.
"""

import msgspec

from hpcrl.figures import Figures


class PartSent(msgspec.Struct, frozen=True):
    """The workers of a part of a call were sent it, or a move, as `actor@1`: its step made what it moves."""

    step: int
    call: str
    part: int
    ranks: tuple[int, ...]
    replay: bool = False


class PartExecuted(msgspec.Struct, frozen=True):
    """All workers of a part have replied: `seconds` of the `slowest` of them in the call, `workers_s` of all together,
    `waited_s` since it was sent; `figures` of each by rank. Of a move as `PartSent` has it."""

    step: int
    call: str
    part: int
    ranks: tuple[int, ...]
    seconds: float
    waited_s: float
    replay: bool = False
    tokens: int = 0
    slowest: int = -1
    workers_s: float = 0.0
    figures: dict[int, Figures] = {}


class PartSpilled(msgspec.Struct, frozen=True):
    """The outputs of a part are durable; its worker `rank` took so many seconds to write them."""

    step: int
    call: str
    part: int
    bytes: int
    seconds: float
    rank: int = -1


class JournalWritten(msgspec.Struct, frozen=True):
    """So many lines were appended with one fsync."""

    lines: int
    seconds: float


class ShardSaved(msgspec.Struct, frozen=True):
    """One worker's shard of a checkpoint is on disk."""

    step: int
    role: str
    rank: int
    seconds: float


Progress = PartSent | PartExecuted | PartSpilled | JournalWritten | ShardSaved
