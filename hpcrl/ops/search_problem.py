"""What the search for an allocation searches over, in numbers alone; its compiled and its Python version take the same.

A plan takes one option of each call: where it is made and how, what that lasts, and what it needs of memory. All is in
integers: times in nanoseconds, sizes in bytes. What the options cost, and what calls they are, is known to the caller.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

ROOM = 2
"""Steps that are open at once where every call reads the newest parameters."""
MEASURED, MEASURED_BEHIND = 4, 12
"""Steps that a schedule measures; the second where calls may be versions behind: then every second step, third or
fourth may take as long as several."""
LIMITS = {"calls": 16, "ranges": 32, "behind": 24}
"""Of a problem's calls, of the ranges of all their meshes together, and of the versions that calls may be behind: what
fits the compiled version's tables."""
KINDS = (0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 3, 3, 4, 5, 5)
"""How often a proposal takes any option (0), one on a neighbouring mesh (1), on another call's mesh (2), changes places
with another call (3), goes where its role's home is (4), or stays in its place and changes the rest (5)."""
SHIFT = 20
"""An exponent of 1 is 2^20."""
QUANTILES = tuple(round(-math.log((i + 0.5) / 4096) * 2**SHIFT) for i in range(4096))
"""Of the exponential distribution: how much worse a plan may be that is taken nevertheless."""


class Stage(NamedTuple):
    """Bytes on each worker of a pipeline stage."""

    lasting: int
    """Of the model, as long as it is there."""
    passing: int
    """Besides, while the call is made."""
    away: int = 0
    """Of the model, in its calls and moves alone: parameters that leave the device in between."""
    moving: int = 0
    """Besides the model, while its parameters are moved from home: to the call's own place, or from it."""


class Option(NamedTuple):
    """How a call may be made."""

    mesh: int
    place: int
    """Of a mesh and a layout; two calls of a role at one place share its model."""
    nanoseconds: int
    stages: tuple[Stage, ...]
    """Of equally many workers each, in the order of the mesh."""
    is_released: bool = False
    """Whether the model's bytes are given away between its calls. One that another call keeps is kept."""


class Mesh(NamedTuple):
    """Workers."""

    ranges: tuple[tuple[int, int], ...]
    """From a rank up to another, which is not in it; rising, and with gaps between them."""
    near: tuple[int, ...] = ()
    """The meshes that a proposal may take for a neighbour of it."""


class After(NamedTuple):
    """A call that comes before another, of so many steps before."""

    call: int
    steps: int


@dataclass(frozen=True)
class Call:
    """A call of the graph. Calls are in an order in which each comes after those of its own step that it waits for."""

    role: int
    home: int
    """The call by whose option its role's home is chosen; itself, maybe."""
    options: tuple[Option, ...]
    """By mesh, then by place."""
    after: tuple[After, ...] = ()
    lag: int = 0
    """How many steps before its home made the parameters that it reads; 0 where they never change."""
    moves_HP: np.ndarray | None = None
    """Nanoseconds from each place of its home's options (in their order) to each of its own; needed where it lags. From
    a place to itself: what the call lasts longer there."""

    @cached_property
    def places(self) -> dict[int, int]:
        """Those of its options → how many of them come before."""
        return {place: spot for spot, place in enumerate(dict.fromkeys(option.place for option in self.options))}


@dataclass(frozen=True)
class Problem:
    """All that is searched over. `check` says what is wrong with one."""

    calls: tuple[Call, ...]
    meshes: tuple[Mesh, ...]
    capacity: int
    """Bytes of each worker."""
    ahead: int = ROOM
    """Steps that may be open at once."""

    @property
    def behind(self) -> int:
        """Versions that a call may be behind: as many steps more are open, and filled in advance."""
        return max(0, self.ahead - ROOM)

    @property
    def measured(self) -> int:
        """Steps that count."""
        return MEASURED_BEHIND if self.behind else MEASURED

    @property
    def first(self) -> int:
        """The step from whose end on others count: what the steps before have done in advance is over."""
        return self.ahead if self.behind else 0

    @property
    def last(self) -> int:
        """The last one that counts."""
        return self.first + self.measured

    @property
    def steps(self) -> int:
        """That a schedule has: until the last one that counts ends, later ones are filled as ever."""
        return self.last + self.behind + 1

    @property
    def places(self) -> int:
        return 1 + max(option.place for call in self.calls for option in call.options)

    @property
    def plans(self) -> int:
        """How many there are."""
        return math.prod(len(call.options) for call in self.calls)

    def check(self) -> None:
        """Raises ValueError."""
        if not 0 < len(self.calls) <= LIMITS["calls"]:
            raise ValueError(f"there are {len(self.calls)} calls; 1 to {LIMITS['calls']} can be searched over")
        if self.behind > LIMITS["behind"]:
            raise ValueError(
                f"calls may be {self.behind} versions behind; up to {LIMITS['behind']} can be searched over"
            )
        for number, call in enumerate(self.calls):
            _check(number, call, self)
        ranges = sum(max(len(self.meshes[it.mesh].ranges) for it in call.options) for call in self.calls)
        if ranges > LIMITS["ranges"]:
            raise ValueError(
                f"meshes have {ranges} ranges of workers together; {LIMITS['ranges']} can be searched over"
            )


def _check(number: int, call: Call, problem: Problem) -> None:
    home = problem.calls[call.home]
    for numbers in ([option.mesh for option in call.options], [option.place for option in call.options]):
        if numbers != sorted(numbers) or not numbers:
            raise ValueError(f"call {number} has options on {numbers}; some, in rising order, are needed")
    if any(it.steps < 0 or (it.steps == 0 and it.call >= number) for it in call.after):
        raise ValueError(
            f"call {number} comes after {call.after}; in its own step it can only wait for calls before it"
        )
    if call.lag and (call.moves_HP is None or call.moves_HP.shape != (len(home.places), len(call.places))):
        found = None if call.moves_HP is None else call.moves_HP.shape
        raise ValueError(f"moves of call {number} are {found}; {(len(home.places), len(call.places))} is needed")
    for option in call.options:
        size = sum(last - first for first, last in problem.meshes[option.mesh].ranges)
        if size % len(option.stages):
            raise ValueError(f"call {number} has {len(option.stages)} stages on {size} workers")


class Score(NamedTuple):
    """Of a plan; the smaller one is better: first what fits, then what is fast, then what moves less."""

    excess: int
    """Bytes that are too many, of all workers together."""
    nanoseconds: int
    """From the end of the problem's `first` step to the end of its `last`."""
    moves: int
    """Of parameters, in each step."""


class Span(NamedTuple):
    """When a call was made, or the move that it waited for."""

    step: int
    moves: bool
    call: int
    begun: int
    """Nanoseconds since the first step began."""
    end: int
    ranks: frozenset[int]


class Found(NamedTuple):
    """A plan and what it is worth."""

    score: Score
    plan: tuple[int, ...]
    """The option of each call."""


class Chain(NamedTuple):
    """What one is to do."""

    start: tuple[int, ...]
    seed: int
    proposals: int
    hot: int = 2
    """In the beginning a plan that is one part in so many worse is taken with probability 1/e."""
    cold: int = 200
    """The same in the end; it rises evenly."""

    def check(self, problem: Problem) -> None:
        """Raises ValueError."""
        if not 0 < self.hot <= self.cold:
            raise ValueError(f"the chain goes from {self.hot} to {self.cold}; it can only grow colder, from 1 on")
        counts = [len(call.options) for call in problem.calls]
        if len(self.start) != len(counts) or not all(
            0 <= option < count for option, count in zip(self.start, counts, strict=True)
        ):
            raise ValueError(f"the chain starts at {self.start}, but calls have {counts} options")
