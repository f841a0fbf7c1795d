"""What a step is made of: the lines that open it, draw more rows and choose among them, taken together. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, dropwhile, islice
from typing import NamedTuple

from hpcrl.durable.journal import Called, Carried, Chosen, Closed, Cuts, Event, Extended, Ids, Opened
from hpcrl.durable.once import Once, SetAside, Turn

MadeOf = Opened | Extended | Chosen | Called


class Cutting(NamedTuple):
    """Samples that one line has cut into so many parts of a call; `partitions` as in `Opened`."""

    ids: Ids
    partitions: dict[str, Cuts]
    parts: int


@dataclass(frozen=True)
class StepLines:
    """The lines of one step, as far as they are written. Steps that neither choose nor are scripted have one.

    Of a scripted step `called` are the calls that were asked for, `once` what its script has done outside of the run;
    `turn` is how it ended, once it has.
    """

    opened: Opened
    extended: tuple[Extended, ...] = ()
    chosen: Chosen | None = None
    called: tuple[Called, ...] = ()
    once: tuple[Once, ...] = ()
    turn: Turn | None = None

    @property
    def step(self) -> int:
        return self.opened.step

    @property
    def all(self) -> tuple[MadeOf, ...]:
        """In the order in which they were written."""
        return (self.opened, *self.extended, *(() if self.chosen is None else (self.chosen,)), *self.called)

    @cached_property
    def asks(self) -> tuple[Called | Once, ...]:
        """What the script has asked for, by number."""
        return tuple(sorted((*self.called, *self.once), key=lambda line: line.number))

    @property
    def asked(self) -> int:
        """How often."""
        return len(self.called) + len(self.once)

    def ask_for(self, call: str) -> Called | None:
        """What the script has said of a call. A turn may have thousands, and the newest are looked for."""
        return next((line for line in reversed(self.called) if line.call == call), None)

    @property
    def named(self) -> str:
        """`step 7`, or `step 7 (which has not chosen yet among 24 samples of 2 rounds)`."""
        if self.is_whole:
            return f"step {self.step}"
        rounds = len(self.rounds)
        drawn = f"{len(self.ids)} samples of {rounds} round{'s' if rounds > 1 else ''}"
        return f"step {self.step} (which has not chosen yet among {drawn})"

    @property
    def is_whole(self) -> bool:
        """Whether no more lines of its making follow."""
        return self.chosen is not None or not self.opened.chooses

    @property
    def rounds(self) -> tuple[Ids, ...]:
        """The samples drawn in each round, in data order."""
        return (self.opened.ids, *(line.ids for line in self.extended))

    @property
    def ids(self) -> Ids:
        """All samples drawn."""
        return tuple(chain(*self.rounds))

    @property
    def carried(self) -> tuple[Carried, ...]:
        """What it leaves to the next step."""
        return () if self.chosen is None else self.chosen.carried

    def in_rounds(self, call: str) -> dict[str, Ids]:
        """Under which names a call is made that is made in rounds, in their order, and on which samples."""
        lines: tuple[Opened | Extended, ...] = (self.opened, *self.extended)
        return {turn_name(call, number): drawn_in(line) for number, line in enumerate(lines)}

    def going_after(self, name: str) -> frozenset[str]:
        """The samples that are drawn again in rounds after the one in which a call has this name."""
        goings = [((), self.opened.calls), *((line.going, line.calls) for line in self.extended)]
        later = islice(dropwhile(lambda it: name not in it[1], goings), 1, None)
        return frozenset(chain.from_iterable(going for going, _ in later))

    @property
    def trained(self) -> Ids:
        """The samples that train_steps and other calls on chosen rows work on, once they are known."""
        return self.opened.ids if self.chosen is None else self.chosen.ids

    @property
    def minibatches(self) -> Cuts:
        """Positions in `trained`."""
        return self.opened.minibatches if self.chosen is None else self.chosen.minibatches

    @property
    def is_empty(self) -> bool:
        """Whether it has chosen, and chose nothing."""
        return self.chosen is not None and not self.chosen.ids

    @property
    def cursor(self) -> int:
        """Behind the last row drawn."""
        drawn: tuple[Opened | Extended, ...] = (self.opened, *self.extended)
        return drawn[-1].cursor if self.chosen is None else self.chosen.cursor

    def trained_by(self, call: str) -> Ids:
        """The samples that a train_step works on."""
        asked = self.ask_for(call)
        return self.trained if asked is None else asked.ids

    def minibatches_of(self, call: str) -> Cuts:
        """Its minibatches, as positions in these."""
        asked = self.ask_for(call)
        return self.minibatches if asked is None else asked.minibatches

    @property
    def calls(self) -> dict[str, int]:
        """Call → its parts in all rounds. Of a call that a later line names the parts are not known before."""
        counts: dict[str, int] = {}
        for line in self.all:
            for call, parts in line.calls.items():
                counts[call] = counts.get(call, 0) + parts
        return counts

    def cuttings(self, call: str, evaluates: bool) -> Iterator[Cutting]:
        """How a call is cut into parts, one round after another; its parts are numbered through all of them."""
        if (asked := self.ask_for(call)) is not None:
            yield Cutting(asked.ids, asked.partitions, asked.parts)
            return
        lines: tuple[Opened | Extended | Chosen, ...] = (self.opened, *self.extended)
        for line in lines if self.chosen is None else (*lines, self.chosen):
            if call in line.calls:
                ids, cuts = drawn_in(line), line.partitions
                if evaluates:
                    ids, cuts = self.opened.eval_ids, self.opened.eval_partitions
                yield Cutting(ids, cuts, line.calls[call])

    def follows(self, line: Extended | Chosen | Called | Once) -> bool:
        """Whether the line is the next of this step."""
        if isinstance(line, Called | Once):
            return self.opened.scripted and line.step == self.step and line.number == self.asked + 1
        if self.is_whole or line.step != self.step:
            return False
        return line.round == len(self.rounds) if isinstance(line, Extended) else line.cursor == self.cursor

    def with_line(self, line: Extended | Chosen | Called | Once) -> "StepLines":
        """The step with its next line."""
        if isinstance(line, Once):
            return replace(self, once=(*self.once, line))
        if isinstance(line, Called):
            return replace(self, called=(*self.called, line))
        if isinstance(line, Extended):
            return replace(self, extended=(*self.extended, line))
        return replace(self, chosen=line)


def drawn_in(line: MadeOf) -> Ids:
    """The samples of a line: of a round, those that go on first."""
    return (*line.going, *line.ids) if isinstance(line, Extended) else line.ids


def turn_name(call: str, number: int) -> str:
    """What a call that is made in rounds is called in this one, counted from 0."""
    return f"{call}_{number + 1}" if number else call


def steps_in(events: Iterable[Event]) -> dict[int, StepLines]:
    """The steps that events open, in that order, but what was set aside; lines before a step's opening say nothing."""
    steps: dict[int, StepLines] = {}
    for event in events:
        if isinstance(event, Opened):
            steps[event.step] = StepLines(event)
        elif isinstance(event, Extended | Chosen | Called | Once) and event.step in steps:
            steps[event.step] = steps[event.step].with_line(event)
        elif isinstance(event, Closed) and event.turn is not None and event.step in steps:
            steps[event.step] = replace(steps[event.step], turn=event.turn)
        elif isinstance(event, SetAside):
            steps = {step: lines for step, lines in steps.items() if step < event.step}
    return steps
