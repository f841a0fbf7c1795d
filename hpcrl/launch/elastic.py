"""What it means to resume a run elsewhere: what becomes of the steps under way.

Pure: experiments, plans and what recovery found in, lines for people out.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

from hpcrl.config.experiment import ExperimentConfig
from hpcrl.durable.recovery import RecoveryPlan
from hpcrl.durable.step_lines import StepLines
from hpcrl.placement.plan import Plan, make_plan, workers_in_words

PROMISE = "from here on numbers are those of an undisturbed run up to rounding, not to the bit"


def describe_elastic(before: ExperimentConfig, after: ExperimentConfig, recovery: RecoveryPlan) -> Iterator[str]:
    """What other workers change: how many there are, what stays cut as it was, what is replayed differently."""
    old, new = (make_plan(experiment, experiment.cluster.nodes) for experiment in (before, after))
    if len(old.workers) != len(new.workers):
        yield f"{_nodes(before)} → {_nodes(after)}"
    yield from _kept_parts(recovery, new)
    yield from _other_replays(recovery, new)
    if any(old.ranks(call, 0) != new.ranks(call, 0) for call in new.changes):
        yield PROMISE


def _nodes(experiment: ExperimentConfig) -> str:
    nodes = "1 node" if experiment.cluster.nodes == 1 else f"{experiment.cluster.nodes} nodes"
    return f"{nodes} of {workers_in_words(experiment)}"


def _kept_parts(recovery: RecoveryPlan, plan: Plan) -> Iterator[str]:
    """The open steps that were cut differently from how they would be now, equal ones together."""
    alike: dict[str, list[int]] = defaultdict(list)
    for lines in recovery.opened:
        if lines.step not in recovery.closed and (kept := _kept_by(lines, plan)):
            alike[kept].append(lines.step)
    for kept, steps in alike.items():
        yield f"{_spans(steps)}, open, {'keep' if len(steps) > 1 else 'keeps'} {kept}"


def _kept_by(lines: StepLines, plan: Plan) -> str:
    by_count: dict[int, list[str]] = defaultdict(list)
    for call, count in lines.calls.items():
        if any(line.calls.get(call, plan.units(call)) != plan.units(call) for line in lines.all):
            by_count[count].append(call)
    return ", ".join(f"{_parts(count)} of {', '.join(calls)}" for count, calls in by_count.items())


def _parts(count: int) -> str:
    return f"the {count} part{'s' if count > 1 else ''}"


def _spans(steps: Sequence[int]) -> str:
    """`step 7`, `steps 7..8`, `steps 7, 9..10`."""
    starts = [0] + [i for i, (one, two) in enumerate(pairwise(steps), 1) if two != one + 1]
    runs = [steps[start:end] for start, end in zip(starts, [*starts[1:], len(steps)], strict=True)]
    shown = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}..{run[-1]}" for run in runs)
    return f"step{'s' if len(steps) > 1 else ''} {shown}"


def _other_replays(recovery: RecoveryPlan, plan: Plan) -> Iterator[str]:
    """Train steps that were executed over another number of workers than the replay will be."""
    alike: dict[tuple[str, int, int], list[int]] = defaultdict(list)
    for line in recovery.replay:
        now = len(plan.ranks(line.call, 0))
        if line.numerics.workers != now:
            alike[line.call, line.numerics.workers, now].append(line.step)
    for (call, was, now), steps in alike.items():
        yield (
            f"replays {call} of {_spans(steps)} over {now} worker{'s' if now > 1 else ''}, recorded over {was}: equal "
            "up to rounding"
        )
