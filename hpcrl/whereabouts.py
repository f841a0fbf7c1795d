"""Where processes are: what each says that it does, whom a call that takes too long waits for, and all that in words.

Pure: no clock, no files. What a process says of itself is as old as its last beat.
"""

from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Literal

import msgspec

Phase = Literal["start", "idle", "gather", "wait", "execute", "save", "move", "drain"]
"""idle: no request is there; gather: the inputs of one are not; wait: they are, and the others' are not."""


BEGINNING, WAITING = "beginning messages", "waiting for messages"
"""Operations of two ranks of a group each: members number them apart."""


BEFORE_LOOP = " before the loop"
"""Follows the name of a call that a script asks for before its loop. It belongs to no step, and goes by the step before
the first turn."""


Runs = tuple[tuple[int, int, int], ...]
"""Numbers, as (first, how many, how far apart)."""


@lru_cache(maxsize=1024)
def runs_of(ranks: tuple[int, ...]) -> Runs:
    """The members of a group. Those of a layout lie evenly: a thousand are as few words as two."""
    runs: list[tuple[int, int, int]] = []
    for rank in ranks:
        first, count, apart = runs[-1] if runs else (rank, 0, 0)
        if count == 1:
            apart = rank - first
        if count and rank == first + count * apart:
            runs[-1] = first, count + 1, apart
        else:
            runs.append((rank, 1, 0))
    return tuple(runs)


@lru_cache(maxsize=1024)
def ranks_of(runs: Runs) -> tuple[int, ...]:
    """In their order."""
    return tuple(first + i * apart for first, count, apart in runs for i in range(count))


class Collective(msgspec.Struct, frozen=True, array_like=True):
    """The newest operation of several ranks that one of them has begun in a unit of work."""

    group: Runs
    operation: str
    number: int
    """Which one of this group, since the unit began."""
    inside: bool
    """Whether it has not returned."""

    @property
    def ranks(self) -> tuple[int, ...]:
        return ranks_of(self.group)

    def __str__(self) -> str:
        return f"{self.operation} {self.number} of {workers(self.ranks)}"


class Doing(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a process does. `what` says so in words, and has nothing that changes while it comes no further."""

    phase: Phase = "start"
    what: str = "starting"
    step: int = 0
    call: str = ""
    """With step and part: the unit that it executes; of a move `actor@1`, whose step made what is moved."""
    part: int = 0
    collective: Collective | None = None

    @property
    def unit(self) -> tuple[int, str, int] | None:
        """Step, call and part of what it executes; None while it executes none."""
        return (self.step, self.call, self.part) if self.call else None

    def __str__(self) -> str:
        inside = f", in {self.collective}" if self.collective is not None and self.collective.inside else ""
        return self.what + inside


class Culprits(msgspec.Struct, frozen=True):
    """Whom a call waits for, as far as its ranks say it; `why` in words."""

    ranks: tuple[int, ...]
    why: str


def workers(ranks: Collection[int]) -> str:
    """`worker-3`, `workers 0-3`, `workers 0, 2, 5`."""
    ordered = sorted(ranks)
    if len(ordered) == 1:
        return f"worker-{ordered[0]}"
    if len(ordered) > 2 and ordered == list(range(ordered[0], ordered[-1] + 1)):
        return f"workers {ordered[0]}-{ordered[-1]}"
    return f"workers {', '.join(map(str, ordered))}"


def culprits_of(ranks: Collection[int], doing: Mapping[int, Doing]) -> Culprits:
    """Whom a call of these ranks waits for; `doing` has all workers.

    A rank in a collective waits for the members of its group that have not entered it. Those may wait in a collective
    of another group, and so on: what is left are ranks that wait for nobody.
    """
    waiting = {rank: missing_in(doing[rank], doing) for rank in doing}
    reached, found = set(ranks) & doing.keys(), set(ranks) & doing.keys()
    while found:
        found = {peer for rank in found for peer in waiting[rank]} - reached
        reached |= found
    stopping = tuple(sorted(rank for rank in reached if not inside(doing[rank])))
    if not stopping:
        told = "; ".join(f"worker-{rank} is in {doing[rank].collective}" for rank in sorted(reached))
        return Culprits((), f"all of them wait for each other: {told}" if told else "nobody says what it does")
    return Culprits(stopping, "; ".join(_why(rank, doing, waiting) for rank in stopping))


def missing_in(waits: Doing, doing: Mapping[int, Doing]) -> tuple[int, ...]:
    """The members of the group in whose operation it is that have not entered it, as far as they say."""
    at = waits.collective
    if at is None or not at.inside:
        return ()
    return tuple(rank for rank in at.ranks if rank in doing and not _entered(doing[rank], at))


def inside(doing: Doing) -> bool:
    return doing.collective is not None and doing.collective.inside


def _entered(doing: Doing, at: Collective) -> bool:
    """Whether it is in this operation, or further. One that is with another group by now is in none of this one."""
    its = doing.collective
    if its is None or its.group != at.group:
        return False
    return its.inside if at.operation in (BEGINNING, WAITING) else its.number >= at.number


def _why(rank: int, doing: Mapping[int, Doing], waiting: Mapping[int, tuple[int, ...]]) -> str:
    """What a rank that waits for nobody does, and which operation waits for it."""
    at = next((doing[peer].collective for peer in sorted(doing) if rank in waiting[peer]), None)
    never = "" if at is None else f" never entered {at}: it"
    return f"worker-{rank}{never} is {doing[rank].what}"
