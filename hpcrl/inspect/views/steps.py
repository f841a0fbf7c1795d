"""What each step cost: its time by call, the slowest worker of each, and its metrics."""

from typing import Any

import msgspec

from hpcrl.costs import CallCost, StepCost, generated
from hpcrl.figures import Figures
from hpcrl.inspect.reader import RunReader
from hpcrl.inspect.utilisation import Peaks, peaks_of


class StepCall(msgspec.Struct, frozen=True):
    """A call of a step, or a move (`actor@1`)."""

    name: str
    parts: int
    seconds: float
    """From when its first part was sent until its last one had ended."""
    workers_s: float
    """Of all workers."""
    slowest: int | None
    """The worker whose part took longest; None where nobody has said it."""
    slowest_s: float
    tokens: int
    """Generated."""
    bytes: int
    """Spilled."""
    replays: int
    """Parts that an older attempt had executed."""
    mfu: float | None
    """Operations of its model over what its workers could have done meanwhile; None where either is unknown."""
    figures: Figures | None
    """What its workers measured, all together."""
    of_slowest: Figures | None
    """What that one measured which took longest."""


class Step(msgspec.Struct, frozen=True):
    """A step as the attempt saw it that closed it first, and its metrics as the run believes them."""

    step: int
    attempt: int
    closed: float
    """Seconds since 1970, by the master's clock."""
    seconds: float
    """Since it was opened; steps may overlap."""
    samples: int
    tokens: int
    """Generated for training, by an earlier attempt too that had begun the step."""
    mfu: float | None
    """The same of all models over the time since it was opened; steps that overlap share it."""
    calls: list[StepCall]
    metrics: dict[str, Any]


class Steps(msgspec.Struct, frozen=True):
    """The JSON of `hpcrl inspect RUN steps --json`. `missing`: steps that closed and left no row of costs."""

    steps: list[Step]
    missing: list[int]
    peak: str
    """What `mfu` is a share of, or why it is not known."""
    right_at: float
    """The reward from which a response counts as right, as accuracy counts them."""


def steps(reader: RunReader) -> Steps:
    metrics = {row["step"]: row for row in reader.rows()}
    found: dict[int, Step] = {}
    said = ""
    before: dict[int, int] = {}
    for number, attempt in sorted(reader.attempts.items()):
        peaks = peaks_of(reader, number)
        said = peaks.said or said
        for row in attempt.costs():
            if row.step in metrics:
                tokens = row.tokens + before.get(row.step, 0)
                found[row.step] = _step(number, row, tokens, peaks, metrics[row.step])
        live = attempt.activity.live
        for step, calls in ({} if live is None else live.open).items():
            before[step] = before.get(step, 0) + generated(calls)
    missing = sorted(metrics.keys() - found.keys() - {0})
    return Steps([step for _, step in sorted(found.items())], missing, said, reader.right_at)


def _step(attempt: int, row: StepCost, tokens: int, peaks: Peaks, metrics: dict[str, Any]) -> Step:
    flops = {name: figures.flops for name, cost in row.calls.items() if (figures := cost.figures) is not None}
    return Step(
        step=row.step,
        attempt=attempt,
        closed=row.time,
        seconds=row.seconds,
        samples=row.samples,
        tokens=tokens,
        mfu=peaks.whole(flops, row.seconds),
        calls=[_call(name, cost, peaks) for name, cost in row.calls.items()],
        metrics=metrics,
    )


def _call(name: str, cost: CallCost, peaks: Peaks) -> StepCall:
    figures = cost.figures
    slowest = max(cost.spans, key=lambda span: span.seconds, default=None)
    begun = min((span.sent_s for span in cost.spans), default=0.0)
    ended = max((span.ended_s for span in cost.spans), default=0.0)
    return StepCall(
        name=name,
        parts=len(cost.spans),
        seconds=round(ended - begun, 4),
        workers_s=cost.workers_s,
        slowest=None if slowest is None or slowest.slowest < 0 else slowest.slowest,
        slowest_s=0.0 if slowest is None else slowest.seconds,
        tokens=cost.generated,
        bytes=cost.bytes,
        replays=sum(span.replay for span in cost.spans),
        mfu=None if figures is None else peaks.mfu(name, figures.flops, figures.seconds.execute),
        figures=figures,
        of_slowest=cost.slowest,
    )
