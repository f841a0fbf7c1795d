"""What a run's rows of costs say of its calls, beside what is reckoned of them: by how much reckoning is off, and how
long the calls take that nobody can reckon."""

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from math import ceil
from statistics import median
from typing import Any, NamedTuple

import msgspec

from hpcrl.config.changes import changes, with_nodes
from hpcrl.costs import decode
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ConfigurationError, DataError
from hpcrl.inspect.lines import Tail
from hpcrl.inspect.reader import RunReader
from hpcrl.inspect.words import counted
from hpcrl.placement.allocate import placed_models
from hpcrl.placement.costs import CostModel, read_costs
from hpcrl.placement.lengths import lengths_of_run
from hpcrl.placement.plan import Plan, read_plan
from hpcrl.placement.rates import Ran, Rates
from hpcrl.placement.search_inputs import lengths_asked
from hpcrl.placement.step_times import expected_step
from hpcrl.placement.waiting import waiting_in
from hpcrl.placement.workload import workload_of
from hpcrl.recipes.algorithm import experiment_from

FIRST = 1
"""Steps of an attempt that do not count: kernels are made and files are read."""


ASIDE = ("allocation", "calls", "on_nodes", "cluster", "control", "samples", "search")
"""Sections of settings by which calls take no longer, beside what a plan says of them."""
WORKERS = (
    *("cluster.device", "cluster.workers_per_node", "cluster.threads_per_worker"),
    *("cluster.slurm.gpu_type", "cluster.slurm.constraint"),
)
"""Of these sections, settings by which calls do."""


class Steps(NamedTuple):
    """What the steps of a run took, of its newest attempt that closed some, and of others that had the same plan."""

    seconds: dict[str, float]
    """Call → of its slowest part, by its slowest worker; the middle one of all steps."""
    steps: int
    step_s: float
    """From one step's end to the next one's: steps overlap. The middle one."""
    start_s: float
    """Of an attempt, until its first step had opened."""
    closed: int
    """The newest step."""
    plan: Plan


def ran(run: RunDirectory) -> Steps:
    """Raises DataError where no step has closed."""
    taken: defaultdict[str, list[float]] = defaultdict(list)
    each = {attempt: [decode(text) for text in Tail(run.costs(attempt)).each()] for attempt in run.numbers()}
    plans = {attempt: read_plan(run, attempt) for attempt, rows in each.items() if rows}
    if not plans:
        raise DataError(f"{run.root} has closed no step, so nothing is known of its calls.")
    newest, steps = plans[max(plans)], []
    for attempt, plan in plans.items():
        if not _are_alike(plan, newest):
            continue
        usual = each[attempt][FIRST:] or each[attempt]
        steps += [after.at_s - before.at_s for before, after in pairwise(usual)] or [it.seconds for it in usual]
        for row in usual:
            for call, cost in row.calls.items():
                if cost.spans:
                    taken[call].append(max(span.seconds for span in cost.spans))
    starts = [each[attempt][0].at_s - each[attempt][0].seconds for attempt in plans]
    closed = max(row.step for rows in each.values() for row in rows)
    seconds = {call: median(it) for call, it in taken.items()}
    return Steps(seconds, len(steps), median(steps), median(starts), closed, newest)


def _are_alike(one: Plan, other: Plan) -> bool:
    """Whether calls take as long by both."""
    if (one.replicas, one.at, one.micro_batches) != (other.replicas, other.at, other.micro_batches):
        return False
    changed = [it.key for it in changes(*(experiment_from(plan.experiment) for plan in (one, other)))]
    return all(key.partition(".")[0] in ASIDE and key not in WORKERS for key in changed)


def like(experiment: Any, run: RunDirectory) -> Any:
    """With texts as long as those of a run, where it kept some."""
    try:
        lengths_of_run(run.samples)
    except DataError:
        return experiment
    asked = replace(experiment.search, lengths=str(run.root), prompts=None, responses=None)
    return replace(experiment, search=asked)


def refuse_another(run: RunDirectory, experiment: Any) -> None:
    """Raise ConfigurationError where a run says nothing of this experiment's calls."""
    there = experiment_from(run.configuration())
    if there.algorithm != experiment.algorithm:
        differs = f"of {there.algorithm}, not of {experiment.algorithm}"
    elif placed_models(there) != placed_models(experiment):
        differs = "with models of other shapes"
    else:
        return
    raise ConfigurationError([f"{run.root} is a run {differs}: give --after one of the same algorithm and models."])


class Payback(NamedTuple):
    """Whether resuming with a plan gains more than it costs, in words."""

    said: str
    pays: bool | None
    """None: nobody knows how many steps are left."""


def payback(run: RunDirectory, expected_s: float, nodes: int, rates: Rates) -> Payback:
    """Of a plan on so many nodes whose step is expected to take so long by rates that this run has calibrated."""
    measured, reader = ran(run), RunReader(run)
    experiment, had = experiment_from(run.configuration()), measured.plan.nodes
    own = expected_step(like(experiment_from(measured.plan.experiment), run), had, rates)
    own_s = measured.step_s if own is None else own.seconds
    reckoned = "" if own is None else f" ({own_s:.3g} s as reckoned from its calls)"
    on = "" if nodes == had else f" (on {counted(nodes, 'node')}, not on {had})"
    took = f"A step of {run.root.name} took {measured.step_s:.3g} s{reckoned}"
    said = f"{took}, and one of plan 1{on} is expected to take"
    gain = own_s - expected_s
    if gain <= 0:
        return Payback(f"{said} {expected_s:.3g} s: resuming with it gains nothing.", False)
    said += f" {gain:.3g} s less"
    begins = f"A new attempt takes {measured.start_s:.3g} s to begin, so it pays after"
    said += f". {begins} {counted(ceil(measured.start_s / gain), 'step')}"
    steps = reader.length(experiment.control.steps, experiment.control.epochs)
    if steps is None:
        return Payback(f"{said}.", None)
    left = max(0, steps - measured.closed)
    if not left:
        return Payback(f"{said}; none are left.", False)
    saved = left * gain - measured.start_s
    verdict = f"it saves about {saved:.3g} s" if saved > 0 else "it does not pay"
    return Payback(f"{said}; {left} {'is' if left == 1 else 'are'} left: {verdict}.", saved > 0)


def calibrated(run: RunDirectory, rates: Rates) -> Rates:
    """Rates by which each call lasts as long as it did under the newest plan that closed steps of the run. Its samples
    say how long its texts are. Raises DataError."""
    measured, bare = ran(run), msgspec.structs.replace(rates, ran=Ran())
    experiment = like(with_nodes(experiment_from(measured.plan.experiment), measured.plan.nodes), run)
    costs = read_costs(experiment, bare, workload_of(experiment, lengths_asked(experiment)))
    reckoned = _reckoned(measured.plan, costs)
    return msgspec.structs.replace(
        rates,
        source=f"{rates.source}, calibrated by {run.root.name}",
        ran=Ran(
            {call: round(s * 1e9) for call, s in measured.seconds.items() if not reckoned.get(call)},
            {call: _factor(s * 1e9, *reckoned[call]) for call, s in measured.seconds.items() if reckoned.get(call)},
            rates.ran.texts,
        ),
    )


def _factor(measured: float, reckoned: int, waiting: int) -> float:
    """Of a call without what it waits for, which is reckoned beside it; at least a hundredth of it was its own."""
    return max(measured - waiting, measured / 100) / reckoned


def _reckoned(plan: Plan, costs: CostModel) -> dict[str, tuple[int, int]]:
    """Nanoseconds of each call under a plan that can be reckoned, and of what waits in the host's memory for it."""
    found = {}
    for call in plan.calls:
        at = plan.replica(call.name).placed
        if lasts := costs.call_nanoseconds(call, at, plan.micro_batches.get(call.name, 0)):
            found[call.name] = lasts, waiting_in(costs, plan, call)
    return found
