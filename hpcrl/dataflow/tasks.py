"""What a driver tells of units of work: what each consumes, reads and changes. Pure values."""

from typing import NamedTuple

import msgspec


class Unit(NamedTuple):
    """One data-parallel part of one call in one step; a train_step is one unit, part 0, on all of its role.

    A move is one too: `actor@1` of step 3 brings the actor as step 3 has left it to its replica 1.
    """

    step: int
    call: str
    part: int

    def __str__(self) -> str:
        return f"step {self.step} {self.call}, part {self.part}"


class Version(msgspec.Struct, frozen=True):
    """The parameters of a role, at one of its replicas, with its changes up to that of step `number` and none later.

    In a graph a role changes once a step, from step 1 on: it is how many changes they have, too. In a script it is that
    alone.
    """

    role: str
    number: int
    replica: int = 0


class Task(msgspec.Struct, frozen=True):
    """A unit as a driver tells it: the units whose outputs it consumes, the parameters that it reads (of a blend, those
    that it takes in), the role that it changes. What a change overwrites is read by units of step `read_until` at last.
    One that goes `in_step` is offered at once with all others of its call that are told, if they go at all. A change
    that `shows` rows has no line before they are on disk.
    """

    unit: Unit
    consumes: tuple[Unit, ...] = ()
    reads: Version | None = None
    changes: str = ""
    read_until: int = 0
    in_step: bool = False
    shows: bool = False
    makes: int = 0
    """The version that a change makes; 0: that of its step."""
    leaves_line: bool = True
    """Whether it is to be recorded; else it is finished once it is executed, and what it makes is in memory alone."""

    @property
    def version(self) -> int:
        """The version of its role that a unit makes, or reads; 0 of a role that nothing changes."""
        if self.changes:
            return self.makes or self.unit.step
        return 0 if self.reads is None else self.reads.number
