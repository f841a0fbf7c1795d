"""What disturbs a simulated run: listed, or drawn by a seed. Values, and how they are written on a command line."""

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from hpcrl.errors import ConfigurationError
from hpcrl.simulation.clock import SECOND_NS

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
DIGITS = 9
"""Of a number, at most."""
_DURATION = re.compile(rf"([0-9]{{1,{DIGITS}}}(?:\.[0-9]{{1,{DIGITS}}})?)([smhd])")


@dataclass(frozen=True)
class When:
    """So long after the run began, or once a step is opened."""

    seconds: float = 0.0
    step: int | None = None


@dataclass(frozen=True)
class NodeLost:
    """Nothing is heard any more of a node and its workers."""

    node: int
    when: When
    said: str = "a loss"
    """As it was typed."""


@dataclass(frozen=True)
class NodePreempted:
    """A node is told to go, and is taken away so much later."""

    node: int
    when: When
    notice_s: float
    said: str = "a preemption"


@dataclass(frozen=True)
class WorkerKilled:
    """A worker's process ends, and its agent says so."""

    rank: int
    when: When
    said: str = "a killed worker"


@dataclass(frozen=True)
class Slowed:
    """A worker's calls, or what a node reads and writes, last so many times as long."""

    number: int
    """Of the worker, or of the node."""
    factor: float
    said: str = "what is slow"


@dataclass(frozen=True)
class NodeLate:
    """A node comes so much later than the others."""

    node: int
    seconds: float
    said: str = "a late node"


Happening = NodeLost | NodePreempted | WorkerKilled


@dataclass(frozen=True)
class Disturbances:
    """Of a run."""

    lost: tuple[NodeLost, ...] = ()
    preempted: tuple[NodePreempted, ...] = ()
    killed: tuple[WorkerKilled, ...] = ()
    slow: tuple[Slowed, ...] = ()
    """Workers."""
    slow_disk: tuple[Slowed, ...] = ()
    """Nodes."""
    late: tuple[NodeLate, ...] = ()
    mtbf_s: float | None = None
    """Between two losses of one and the same node, on average: then nodes are lost by chance."""
    wall_time_s: float | None = None
    """How long an allocation lasts."""
    queue_s: float = 0.0
    """What a job waits for its turn: at the beginning, and whenever all are queued again."""
    replaced_s: float = 60.0
    """How long after a node is gone another comes in its place."""

    @property
    def happenings(self) -> tuple[Happening, ...]:
        """Those that have a moment."""
        return (*self.lost, *self.preempted, *self.killed)

    @property
    def touch_steps(self) -> bool:
        """Whether steps may take longer by them; waiting for the first turn makes none longer."""
        return replace(self, queue_s=0.0, replaced_s=60.0) != Disturbances()

    def losses(self, nodes: int, seed: int) -> Iterator[tuple[int, int]]:
        """(moment, node) of the losses by chance, for ever; none where there are none."""
        if self.mtbf_s is None:
            return
        chance, now_s = random.Random(seed), 0.0
        while True:
            now_s += chance.expovariate(nodes / self.mtbf_s)
            yield round(now_s * SECOND_NS), chance.randrange(nodes)

    def refuse_unknown(self, nodes: int, workers: int, steps: int) -> None:
        """Raise ConfigurationError where nodes, workers or steps are none of the run's; all of them are named."""
        of_nodes = [(it.said, it.node) for it in self.lost] + [(it.said, it.node) for it in self.preempted]
        of_nodes += [(it.said, it.number) for it in self.slow_disk] + [(it.said, it.node) for it in self.late]
        of_workers = [(it.said, it.rank) for it in self.killed] + [(it.said, it.number) for it in self.slow]
        problems = [*_none_of("node", nodes, of_nodes), *_none_of("worker", workers, of_workers)]
        moments = [(it.said, it.when.step) for it in self.happenings]
        late = [(said, step) for said, step in moments if step is not None and not 1 <= step <= steps]
        problems += [f"{said}: there is no step {step}; {_there_are('step', 1, steps)}." for said, step in late]
        if late:
            raise ConfigurationError(problems, "Name others, or raise --steps.")
        if problems:
            raise ConfigurationError(problems, "Name others.")


def _none_of(what: str, count: int, named: Sequence[tuple[str, int]]) -> Iterator[str]:
    there = _there_are(what, 0, count - 1)
    yield from (f"{said}: there is no {what} {number}; {there}." for said, number in named if number >= count)


def _there_are(what: str, first: int, last: int) -> str:
    return f"there is only {what} {first}" if first == last else f"there are {what}s {first} to {last}"


# ── as they are written ───────────────────────────────────────────────────────────────────────────────────────────────
def parse_seconds(said: str, text: str) -> float:
    """`40s`, `2.5m`, `24h`, `3d`; `said` is the whole argument. Raises ConfigurationError, as all of these do."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ConfigurationError(
            [f"{said}: {text} is no duration."],
            "Write a number of 0 or more with its unit: 40s, 2.5m, 24h or 3d.",
        )
    return float(found[1]) * UNITS[found[2]]


def parse_lost(text: str) -> NodeLost:
    """`2@40s`, `2@step3`."""
    said = f"--lose {text}"
    node, moment = _split(said, text, "@", "NODE@WHEN, as 2@40s or 2@step3")
    return NodeLost(_number(said, node), _when(said, moment), said)


def parse_killed(text: str) -> WorkerKilled:
    """`5@40s`, `5@step3`."""
    said = f"--kill {text}"
    rank, moment = _split(said, text, "@", "RANK@WHEN, as 5@40s or 5@step3")
    return WorkerKilled(_number(said, rank), _when(said, moment), said)


def parse_preempted(text: str) -> NodePreempted:
    """`1@step3:30s`: 30 s after it is told to go it is taken away."""
    said, form = f"--preempt {text}", "NODE@WHEN:NOTICE, as 1@step3:30s"
    node, rest = _split(said, text, "@", form)
    moment, notice = _split(said, rest, ":", form)
    return NodePreempted(_number(said, node), _when(said, moment), parse_seconds(said, notice), said)


def parse_factor(option: str, text: str) -> Slowed:
    """`3=2`: number 3 lasts twice as long."""
    said = f"{option} {text}"
    number, factor = _split(said, text, "=", "NUMBER=FACTOR, as 3=2")
    try:
        found = float(factor)
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise ConfigurationError([f"{said}: {factor} is no factor."], "Write a number above 0, as in 3=2.")
    return Slowed(_number(said, number), found, said)


def parse_late(text: str) -> NodeLate:
    """`1=120s`."""
    said = f"--late {text}"
    node, late = _split(said, text, "=", "NODE=DURATION, as 1=120s")
    return NodeLate(_number(said, node), parse_seconds(said, late), said)


def _split(said: str, text: str, by: str, form: str) -> tuple[str, str]:
    first, found, rest = text.partition(by)
    if not found or not first or not rest:
        option = said.partition(" ")[0]
        raise ConfigurationError([f"{said} is incomplete."], f"Write {option} {form}.")
    return first, rest


def _number(said: str, number: str) -> int:
    if not number.isdecimal() or len(number) > DIGITS:
        raise ConfigurationError(
            [f"{said}: {number} is no number of 0 or more, with {DIGITS} digits at most."],
            "Nodes and workers are counted from 0.",
        )
    return int(number)


def _when(said: str, text: str) -> When:
    if text.startswith("step"):
        return When(step=_number(said, text[4:]))
    return When(seconds=parse_seconds(said, text))
