"""What disturbs a simulated run: listed, or drawn by a seed. Values, and how they are written on a command line."""

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass

from hpcrl.errors import ConfigurationError
from hpcrl.simulation.clock import SECOND_NS

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd])")


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


@dataclass(frozen=True)
class NodePreempted:
    """A node is told to go, and is taken away so much later."""

    node: int
    when: When
    notice_s: float


@dataclass(frozen=True)
class WorkerKilled:
    """A worker's process ends, and its agent says so."""

    rank: int
    when: When


@dataclass(frozen=True)
class Disturbances:
    """Of a run. Factors say how many times as long something lasts."""

    lost: tuple[NodeLost, ...] = ()
    preempted: tuple[NodePreempted, ...] = ()
    killed: tuple[WorkerKilled, ...] = ()
    slow: tuple[tuple[int, float], ...] = ()
    """(rank, factor) of workers whose calls last longer."""
    slow_disk: tuple[tuple[int, float], ...] = ()
    """(node, factor) of nodes that read and write more slowly."""
    late: tuple[tuple[int, float], ...] = ()
    """(node, seconds) of nodes that come later than the others."""
    mtbf_s: float | None = None
    """Between two losses of one and the same node, on average: then nodes are lost by chance."""
    wall_time_s: float | None = None
    """How long an allocation lasts."""
    queue_s: float = 0.0
    """What a job waits for its turn: at the beginning, and whenever all are queued again."""
    replaced_s: float = 60.0
    """How long after a node is gone another comes in its place."""

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
        problems = [
            f"{said}: there is no node {node}; the run has nodes 0 to {nodes - 1}."
            for said, node in self._nodes()
            if node >= nodes
        ]
        of_ranks = [("--kill", it.rank) for it in self.killed] + [("--slow", rank) for rank, _ in self.slow]
        problems += [
            f"{said} {rank}: there is no worker {rank}; the run has workers 0 to {workers - 1}."
            for said, rank in of_ranks
            if rank >= workers
        ]
        moments = [("--lose", it.when) for it in self.lost] + [("--kill", it.when) for it in self.killed]
        moments += [("--preempt", it.when) for it in self.preempted]
        problems += [
            f"{said} …@step{when.step}: the simulated run has steps 1 to {steps}."
            for said, when in moments
            if when.step is not None and not 1 <= when.step <= steps
        ]
        if problems:
            raise ConfigurationError(problems, "Name others, or raise --steps.")

    def _nodes(self) -> Iterator[tuple[str, int]]:
        yield from (("--lose", it.node) for it in self.lost)
        yield from (("--preempt", it.node) for it in self.preempted)
        yield from (("--slow-disk", node) for node, _ in self.slow_disk)
        yield from (("--late", node) for node, _ in self.late)


# ── as they are written ───────────────────────────────────────────────────────────────────────────────────────────────
def parse_seconds(option: str, text: str) -> float:
    """`40s`, `2.5m`, `24h`, `3d`. Raises ConfigurationError."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ConfigurationError(
            [f"{option} {text}: {text} is no duration."],
            "Write a number of 0 or more with its unit: 40s, 2.5m, 24h or 3d.",
        )
    return float(found[1]) * UNITS[found[2]]


def parse_lost(text: str) -> NodeLost:
    """`2@40s`, `2@step3`."""
    node, moment = _split("--lose", text, "@", "NODE@WHEN, as 2@40s or 2@step3")
    return NodeLost(_number("--lose", text, node), _when("--lose", moment))


def parse_killed(text: str) -> WorkerKilled:
    """`5@40s`, `5@step3`."""
    rank, moment = _split("--kill", text, "@", "RANK@WHEN, as 5@40s or 5@step3")
    return WorkerKilled(_number("--kill", text, rank), _when("--kill", moment))


def parse_preempted(text: str) -> NodePreempted:
    """`1@step3:30s`: 30 s after it is told to go it is taken away."""
    form = "NODE@WHEN:NOTICE, as 1@step3:30s"
    node, rest = _split("--preempt", text, "@", form)
    moment, notice = _split("--preempt", rest, ":", form)
    number = _number("--preempt", text, node)
    return NodePreempted(number, _when("--preempt", moment), parse_seconds("--preempt", notice))


def parse_factor(option: str, text: str) -> tuple[int, float]:
    """`3=2`: number 3 lasts twice as long."""
    number, factor = _split(option, text, "=", "NUMBER=FACTOR, as 3=2")
    try:
        found = float(factor)
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise ConfigurationError([f"{option} {text}: {factor} is no factor."], "Write a number above 0, as in 3=2.")
    return _number(option, text, number), found


def parse_late(text: str) -> tuple[int, float]:
    """`1=120s`."""
    node, late = _split("--late", text, "=", "NODE=DURATION, as 1=120s")
    return _number("--late", text, node), parse_seconds("--late", late)


def _split(option: str, text: str, by: str, form: str) -> tuple[str, str]:
    first, found, rest = text.partition(by)
    if not found or not first or not rest:
        raise ConfigurationError([f"{option} {text} is incomplete."], f"Write {option} {form}.")
    return first, rest


def _number(option: str, text: str, number: str) -> int:
    if not number.isdecimal():
        raise ConfigurationError(
            [f"{option} {text}: {number} is no number of 0 or more."], "Nodes and workers are counted from 0."
        )
    return int(number)


def _when(option: str, text: str) -> When:
    if text.startswith("step"):
        return When(step=_number(option, text, text[4:]))
    return When(seconds=parse_seconds(option, text))
