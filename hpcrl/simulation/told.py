"""What is told of a simulated run: how long a step takes, what was lost, how long it took to go on. Values."""

from collections.abc import Iterator, Sequence
from math import sqrt
from statistics import mean

import msgspec

from hpcrl.dataflow.graph import Graph
from hpcrl.dataflow.units import furthest_behind, window
from hpcrl.inspect.views.timeline import LAST_STEPS, Timeline, timeline_of
from hpcrl.ops.search_problem import MEASURED, MEASURED_BEHIND
from hpcrl.placement.plan import ModelName
from hpcrl.simulation.clock import SECOND_NS
from hpcrl.simulation.durations import Durations
from hpcrl.simulation.records import SimulatedRecords
from hpcrl.simulation.simulate import Simulated

LEAST_COPY_S = 0.001


class AttemptTold(msgspec.Struct, frozen=True):
    """An attempt. Times are seconds since the run was submitted."""

    attempt: int
    begun_s: float
    ready_s: float | None
    """When all workers were."""
    ended_s: float
    ending: str
    read: int
    """Finished parts of calls that were read."""
    replayed: int
    """Train steps and blends that were executed again."""
    recovered_s: float | None
    """From the last part that the attempt before had executed to the first new one that this one began."""
    nodes: int
    """That it had; 0 where it came to no plan."""


class Interval(msgspec.Struct, frozen=True):
    """How often a checkpoint is best."""

    seconds: float
    steps: int
    """The same in `control.checkpoint.steps`."""


class Bytes(msgspec.Struct, frozen=True):
    spilled: int
    saved: int
    """In checkpoints."""
    moved: int
    """Of parameters, from home to replicas."""


class Size(msgspec.Struct, frozen=True):
    nodes: int
    workers: int


class SimulationTold(msgspec.Struct, frozen=True):
    """The JSON of `hpcrl simulate --json`."""

    size: Size
    ending: str
    exit_code: int
    """That of the run."""
    steps: int
    seconds: float
    step_s: float
    idle: float
    """The share of workers' time, from the first step's opening on, in which they executed nothing."""
    goodput: float
    """The share of all time that so many steps would have taken one after another, undisturbed: what is missing has
    gone into starting, saving, waiting in the queue and disturbances."""
    lost_work_s: float
    """Of all workers together: what they executed again, and what was under way as attempts were lost."""
    bytes: Bytes
    checkpoint: Interval | None
    """Where a mean time between failures is given."""
    attempts: tuple[AttemptTold, ...]
    timeline: Timeline
    rates: str
    """Where the numbers of device and links come from."""
    notices: tuple[str, ...]


def told(
    simulated: Simulated,
    undisturbed: Simulated,
    rates: str,
    notices: Sequence[str],
    mtbf_s: float | None = None,
    steps: int = LAST_STEPS,
) -> SimulationTold:
    """All of it, with a timeline of so many of the last steps. `mtbf_s` is that of the whole run; `undisturbed` is the
    same run without what disturbs it."""
    records = simulated.attempts
    closed = sorted({row.step for it in records for row in it.costs()})
    step_s, usual_s = step_seconds(simulated), step_seconds(undisturbed)
    workers = undisturbed.attempts[0].plan.workers
    return SimulationTold(
        size=Size(len({worker.node for worker in workers}), len(workers)),
        ending=f"{simulated.ending.state}: {simulated.ending.reason}",
        exit_code=int(simulated.ending.exit_code),
        steps=len(closed),
        seconds=simulated.seconds,
        step_s=step_s,
        idle=_idle(records),
        goodput=len(closed) * usual_s / simulated.seconds if simulated.seconds else 0.0,
        lost_work_s=sum(_again(records)) + sum(map(_under_way, records[:-1])),
        bytes=Bytes(
            sum(cost.bytes for it in records for row in it.costs() for cost in row.calls.values()),
            sum(it.saved_bytes for it in records),
            _moved(simulated),
        ),
        checkpoint=None if mtbf_s is None or not step_s else _interval(simulated, step_s, mtbf_s),
        attempts=tuple(_attempts(simulated)),
        timeline=timeline_of("a simulation", {it.number: it for it in records}, closed[-steps:]),
        rates=rates,
        notices=(*simulated.unfelt, *notices),
    )


def step_seconds(simulated: Simulated) -> float:
    """From one step's close to the next, on average. Where there are others, those don't count that an attempt closes
    before all that may be open has been, nor the last, of which calls were made in advance and of none after them."""
    rows, graph = [it.costs() for it in simulated.attempts], simulated.graph
    closes = [[row.at_s for row in of_attempt] for of_attempt in rows]
    steady = [of[window(graph) - 1 :] for of in closes]
    steady[-1] = steady[-1][: max(0, len(steady[-1]) - furthest_behind(graph))]
    for of_attempts in (steady, closes):
        if count := sum(max(0, len(of) - 1) for of in of_attempts):
            return sum(of[-1] - of[0] for of in of_attempts if of) / count
    return mean([row.seconds for of_attempt in rows for row in of_attempt] or [0.0])


def steps_to_tell(graph: Graph) -> int:
    """That are simulated at least, for `step_seconds` to have as many as it takes."""
    behind = furthest_behind(graph)
    return window(graph) + (MEASURED_BEHIND if behind else MEASURED) + behind


def _idle(records: Sequence[SimulatedRecords]) -> float:
    busy = whole = 0.0
    for it in records:
        if rows := it.costs():
            span = rows[-1].at_s - (rows[0].at_s - rows[0].seconds)
            whole += span * len(it.plan.workers)
            busy += sum(cost.workers_s for row in rows for cost in row.calls.values())
    return max(0.0, 1 - busy / whole) if whole else 0.0


def _again(records: Sequence[SimulatedRecords]) -> Iterator[float]:
    for it in records[1:]:
        yield from (made.span.seconds * len(made.ranks) for made in it.made() if made.span.replay)


def _under_way(attempt: SimulatedRecords) -> float:
    live = attempt.activity.live
    return 0.0 if live is None else sum((live.time - it.since) * len(it.ranks) for it in live.under_way)


def _moved(simulated: Simulated) -> int:
    found = 0
    for it in simulated.attempts:
        sizes = simulated.durations[it.number].moved_bytes if it.number in simulated.durations else {}
        for made in it.made():
            role, at, replica = made.call.partition("@")
            found += sizes.get(ModelName(role, int(replica)), 0) if at else 0
    return found


def _attempts(simulated: Simulated) -> Iterator[AttemptTold]:
    before = None
    for it, ending, ended_s in zip(simulated.attempts, simulated.endings, simulated.ended_s, strict=False):
        yield AttemptTold(
            it.number,
            it.activity.began or 0.0,
            it.activity.ready,
            ended_s,
            f"{ending.state}: {ending.reason}",
            len(it.recovery.recorded),
            len(it.recovery.replay),
            None if before is None else _recovered(before, it),
            it.nodes,
        )
        before = it if any(True for _ in it.made()) else before


def _recovered(before: SimulatedRecords, now: SimulatedRecords) -> float | None:
    """Both have clocks that began when they did."""
    last = max((made.span.ended_s for made in before.made()), default=0.0) + (before.activity.began or 0.0)
    new = [made.span.ended_s - made.span.seconds for made in now.made() if not made.span.replay]
    return min(new) + (now.activity.began or 0.0) - last if new else None


def _interval(simulated: Simulated, step_s: float, mtbf_s: float) -> Interval:
    """By Young's formula: a checkpoint costs the copies that workers wait for; a failure costs the changes of roles
    since the last one, which are replayed, and nothing else: all other calls are read."""
    number = simulated.attempts[-1].number
    durations = simulated.durations[number]
    copy_s = max(LEAST_COPY_S, sum(durations.copies.values()) / SECOND_NS)
    replay_s = _replayed_s(simulated.attempts[-1], durations)
    seconds = sqrt(2 * copy_s * mtbf_s * step_s / replay_s) if replay_s else mtbf_s
    return Interval(seconds, max(1, round(seconds / step_s)))


def _replayed_s(attempt: SimulatedRecords, durations: Durations) -> float:
    """What a step's changes take whichever worker has most of them."""
    by_worker: dict[int, int] = {}
    for call in attempt.plan.changes:
        for rank in attempt.plan.ranks(call, 0):
            by_worker[rank] = by_worker.get(rank, 0) + durations.calls[call]
    return max(by_worker.values(), default=0) / SECOND_NS
