"""What it means to resume a run elsewhere: what becomes of the steps under way.

Pure: experiments, plans and what recovery found in, lines for people out.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise

from hpcrl.config.changes import changes
from hpcrl.config.classifier import ClassifierConfig
from hpcrl.config.experiment import ExperimentConfig
from hpcrl.config.fields import sections_of
from hpcrl.config.model import TrainedModelConfig, models_of
from hpcrl.durable.recovery import RecoveryPlan
from hpcrl.durable.step_lines import StepLines
from hpcrl.placement.layouts import Axis, Ranks
from hpcrl.placement.plan import Plan, ReplicaPlan, plan_for, workers_in_words

TENSOR: tuple[Axis, ...] = ("tp",)
"""Along this a call adds up what workers have of a layer."""
ROUNDING = (
    "backend",
    "model",
    "reduce",
    "offload",
    "micro_batch_tokens",
    "slots",
    "threads_per_worker",
    "deterministic",
)
"""The last names of settings that say what computes, how many rows are multiplied at once, or how sums are added up."""
PROMISE = "from here on numbers are those of an undisturbed run up to rounding, not to the bit"


def describe_elastic(before: ExperimentConfig, after: ExperimentConfig, recovery: RecoveryPlan) -> Iterator[str]:
    """What other workers, layouts and sizes change: how many there are, what stays cut as it was, what is replayed or
    made differently, and whether numbers stay the same to the bit."""
    old, new = (plan_for(experiment) for experiment in (before, after))
    ranged = before.cluster.is_elastic or after.cluster.is_elastic
    if len(old.workers) != len(new.workers) or (ranged and before.cluster.nodes != after.cluster.nodes):
        yield f"{_nodes(before)} → {_nodes(after)}"
    yield from _kept_parts(recovery, new)
    yield from _other_replays(recovery, new)
    computing = {*models_of(after), *sections_of(after, ClassifierConfig)}
    yield from _other_layouts(old, new, computing)
    rounding = [change.key for change in changes(before, after) if _rounds_by(change.key, after)]
    if rounding:
        yield f"{', '.join(rounding)}: what is computed with another value is equal up to rounding"
    trained = any(_trained(old, call) != _trained(new, call) for call in new.changes)
    if redrawn := [call for call in _in_both(old, new) if old.replica(call).served != new.replica(call).served]:
        yield f"from here on {', '.join(redrawn)} will draw other responses than in an undisturbed run"
    elif (
        after.cluster.is_elastic
        or rounding
        or trained
        or any(_rounds(old, new, call, computing) for call in _in_both(old, new))
    ):
        yield PROMISE


def _rounds_by(key: str, experiment: ExperimentConfig) -> bool:
    """Whether numbers depend on a setting; on what is in the host's memory only where it is updated there."""
    role, _, name = key.rpartition(".")
    updated = name != "offload" or isinstance(models_of(experiment).get(role), TrainedModelConfig)
    return name in ROUNDING and updated


def _trained(plan: Plan, call: str) -> tuple[Ranks, str]:
    """Over which workers a call changes its role, and how they share it."""
    return plan.ranks(call, 0), plan.cuts(plan.replica(call))


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


def _other_layouts(old: Plan, new: Plan, computing: Collection[str]) -> Iterator[str]:
    """Calls that are laid out otherwise, those alike together. That rows are split over all workers there are, however
    many, is told by their number."""
    alike: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for call in _in_both(old, new):
        was, now = old.replica(call), new.replica(call)
        cuts = old.cuts(was), new.cuts(now)
        if held := not (was.is_home and now.is_home) and was.backend != now.backend:
            cuts = f"{cuts[0]} of {was.backend}", f"{cuts[1]} of {now.backend}"
        if held or (cuts[0] != cuts[1] and not (_over_all(old, was) and _over_all(new, now))):
            equal = "equal up to rounding" if _rounds(old, new, call, computing) else "equal to the bit"
            if was.served != now.served:
                equal = "other draws"
            alike[*cuts, equal].append(call)
    for (was_cut, now_cut, equal), calls in alike.items():
        yield f"{', '.join(calls)}: {was_cut} → {now_cut}, {equal}"


def _in_both(old: Plan, new: Plan) -> list[str]:
    return [call for call in new.at if call in old.at]


def _over_all(plan: Plan, replica: ReplicaPlan) -> bool:
    """Whether each of the model workers has a part of the rows, whole."""
    return replica.arrangement.dp == len(replica.ranks) == len(plan.peers(0))


def _rounds(old: Plan, new: Plan, call: str, computing: Collection[str]) -> bool:
    """Whether what a call gives is the same up to rounding only. A model multiplies the rows of a worker together, and
    how a sum is rounded may depend on how many they are; a function is asked for the same of each row, wherever."""
    was, now = old.replica(call), new.replica(call)
    if was.role in computing:
        if was.backend != now.backend or old.micro_batches.get(call) != new.micro_batches.get(call):
            return True
        return old.cuts(was) != new.cuts(now) or old.neighbours(was, TENSOR) != new.neighbours(now, TENSOR)
    return (was.arrangement.tp, was.arrangement.pp) != (now.arrangement.tp, now.arrangement.pp)


def _other_replays(recovery: RecoveryPlan, plan: Plan) -> Iterator[str]:
    """Train steps that were executed over another number of workers, or in another layout, than the replay will be."""
    alike: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for line in recovery.replay:
        home, was = plan.replica(line.call), line.numerics
        if was.workers != len(home.ranks):
            now = f"over {len(home.ranks)} worker{'s' if len(home.ranks) > 1 else ''}"
            alike[line.call, now, f"over {was.workers}"].append(line.step)
        elif was.layout != plan.cuts(home):
            alike[line.call, f"as {plan.cuts(home)}", f"as {was.layout}"].append(line.step)
    for (call, now, before), steps in alike.items():
        yield f"replays {call} of {_spans(steps)} {now}, recorded {before}: equal up to rounding"
