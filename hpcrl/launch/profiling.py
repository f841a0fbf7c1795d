"""`hpcrl profile`: a run that measures what an experiment's models and workers take, and what came out of it."""

from collections.abc import Iterator
from statistics import median
from typing import Any

import msgspec

from hpcrl.config.changes import with_nodes
from hpcrl.config.experiment import to_dict
from hpcrl.costs import Span, decode
from hpcrl.durable.archives import read_archive
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ConfigurationError, DataError
from hpcrl.inspect.archives import Archives
from hpcrl.inspect.lines import Tail
from hpcrl.placement.layouts import Layout
from hpcrl.placement.profile_rates import rates_told
from hpcrl.placement.profile_tasks import Told, models_in, profiled_models, tasks_of
from hpcrl.placement.rates import Rates
from hpcrl.placement.search_inputs import lengths_asked
from hpcrl.placement.workload import workload_of
from hpcrl.recipes.algorithm import experiment_from

PROFILE = "profile"
"""The algorithm whose steps measure."""


def profile_of(experiment: Any, minutes: float) -> tuple[Any, list[str]]:
    """The run that measures what an experiment's graph could use on its workers, and what it leaves out; of a range of
    nodes it has the least. Reads each model's config.json. Raises ConfigurationError."""
    experiment = with_nodes(experiment, experiment.cluster.least_nodes)
    experiment = with_nodes(experiment, experiment.cluster.most_nodes)
    models, left_out = profiled_models(experiment, workload_of(experiment, lengths_asked(experiment)))
    if not models:
        raise ConfigurationError(
            [f"algorithm = {experiment.algorithm} has no model whose parts could be measured.", *left_out],
        )
    cluster, tasks = experiment.cluster, tasks_of(models)
    values = {
        "algorithm": PROFILE,
        "name": PROFILE,
        "run_root": experiment.run_root,
        "deterministic": False,
        "cluster": to_dict(experiment)["cluster"],
        "control": {"steps": len(tasks)},
        "measured": {"models": msgspec.to_builtins(models), "tasks": tasks, "minutes": minutes},
        "profile": {"layout": str(Layout(tp=cluster.workers_per_node, pp=cluster.most_nodes))},
    }
    return experiment_from(values), left_out


def refuse_another(run: RunDirectory, asked: Any) -> None:
    """Raise ConfigurationError where a run does not measure what is asked for now: only how long may differ."""
    there = experiment_from(run.configuration())
    if there.algorithm == PROFILE:
        if asked.profile.layout != there.profile.layout or asked.measured.tasks != there.measured.tasks:
            differs = "but of one on other numbers of nodes and workers, or of other things"
        elif models_in(asked.measured.models) != models_in(there.measured.models):
            differs = "but of one of other models, or for other lengths and batches"
        else:
            return
    else:
        differs = f"but of {there.algorithm}"
    raise ConfigurationError(
        [f"{run.root} is not the run of this profile, {differs}: give another --out, or another --run-dir."]
    )


def profile_in(run: RunDirectory) -> Rates:
    """What a run has measured that is over. Raises DataError where something is missing."""
    experiment = experiment_from(run.configuration())
    if experiment.algorithm != PROFILE:
        raise ConfigurationError([f"{run.root} is a run of {experiment.algorithm}, and no profile."])
    told = list(_told(run))
    if len(told) < len(experiment.measured.tasks):
        raise DataError(
            f"{run.root} has measured {len(told)} of {len(experiment.measured.tasks)} things.",
            f"`hpcrl resume {run.root}` measures the others.",
        )
    models = models_in(experiment.measured.models)
    return rates_told(told, models, round(fixed_s(run) * 1e9), f"measured by {run.root.name}")


def _told(run: RunDirectory) -> Iterator[Told]:
    archives = Archives(run)
    for step, line in sorted(archives.between(1).items()):
        if line.samples is None:
            continue
        if damage := run.files.damage(line.samples):
            raise DataError(f"step {step}: {damage}.")
        rows = read_archive(run.files.path(line.samples))[1]["train"].parts("measured")
        yield msgspec.json.decode(rows[0][0].tobytes(), type=Told)


def fixed_s(run: RunDirectory) -> float:
    """Of a call, from when it could begin to its reply, what no worker worked. Requests wait for those before."""
    found = []
    for attempt in run.numbers():
        rows = map(decode, Tail(run.costs(attempt)).each())
        spans = sorted((it for row in rows for cost in row.calls.values() for it in cost.spans), key=_ended)
        before = [0.0, *map(_ended, spans)]
        found += [it.ended_s - max(it.sent_s, over) - it.seconds for it, over in zip(spans, before, strict=False)]
    return max(0.0, median(found)) if found else 0.0


def _ended(span: Span) -> float:
    return span.ended_s
