"""Runs of `toy_lagging`: where their calls are made, and which version each has to read."""

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from support import toy_lagging
from support.choosing import choosing_experiment, events_of

from hpcrl.config.ema import EMAConfig
from hpcrl.config.model import PlacementConfig
from hpcrl.dataflow.graph import MFC
from hpcrl.durable.journal import Done, Trained
from hpcrl.durable.rundir import RunDirectory
from hpcrl.recipes.algorithm import experiment_from, experiment_of
from hpcrl.recipes.toy import ToyExperiment

ALGORITHM = f"{Path(toy_lagging.__file__)}:ALGORITHM"
STEPS = 6
CHANGED = ("actor", "critic", "reference")

AT_HOME: dict[str, Any] = {}
APART: dict[str, Any] = {
    "actor": PlacementConfig(mesh="0-3", layout="d2t2"),
    "critic": PlacementConfig(mesh="2-3", layout="p2"),
    "reference": PlacementConfig(mesh="1-3", layout="p3"),
    "calls": {
        "actor_gen": {"layout": "d2", "mesh": "0-1"},
        "actor_old": {"layout": "t2", "mesh": "2-3"},
        "critic_inf": {"layout": "t2", "mesh": "1-2"},
        "ref_inf": {"layout": "d2p2", "mesh": "0-3"},
    },
}
"""Four workers; each call of the actor is made by another replica, the newest of them at home."""
TOGETHER: dict[str, Any] = {
    "actor": PlacementConfig(mesh="1-2", layout="p2"),
    "critic": PlacementConfig(mesh="0", layout="d1"),
    "reference": PlacementConfig(mesh="2", layout="d1"),
    "calls": {call: {"layout": "d2", "mesh": "0-1"} for call in ("actor_gen", "actor_old", "actor_new")},
}
"""Three workers; one replica makes the actor's calls, each with another version."""
PLACES = {"at home": (2, AT_HOME), "apart": (4, APART), "together": (3, TOGETHER)}


def lagging(at: str = "at home", lags: Mapping[str, int] | None = None, steps: int = STEPS, **cluster: Any) -> Any:
    """At one of `PLACES`. Step 3 evaluates, step 6 too; every second step is saved."""
    toy = choosing_experiment(steps)
    workers, places = PLACES[at]
    values = {field.name: getattr(toy, field.name) for field in fields(ToyExperiment)} | {
        "algorithm": ALGORITHM,
        "toy": replace(toy.toy, reference_ema=EMAConfig(decay=0.9)),
        "cluster": replace(toy.cluster, workers_per_node=workers, **cluster),
    }
    experiment: Any = experiment_of(ALGORITHM)(**values | places)
    return experiment if lags is None else replace(experiment, lags=replace(experiment.lags, **lags))


def versions(run: RunDirectory, step: int) -> dict[str, set[int]]:
    """Call → the versions that the lines of a step say it has read, or made. Evaluations apart."""
    found: dict[str, set[int]] = {}
    for event in events_of(run):
        if isinstance(event, Done | Trained) and event.step == step and not event.call.startswith("eval"):
            found.setdefault(event.call, set()).add(event.version)
    return found


def wrong_versions(run: RunDirectory, since: int = 0) -> list[str]:
    """Lines of calls that have read, or made, another version than step and lag say.

    With `since` the run had ended with that step, and nothing older was read after it.
    """
    calls = {call.name: call for call in toy_lagging.recipe(experiment_from(run.configuration()))}
    lines = [event for event in events_of(run) if isinstance(event, Done | Trained)]
    due = [_due(calls[line.call], line.step, since if line.step > since else 0) for line in lines]
    return [
        f"{line.call} of step {line.step} has version {line.version}, not {version}"
        for line, version in zip(lines, due, strict=True)
        if line.version != version
    ]


def _due(call: MFC, step: int, oldest: int) -> int:
    if call.role not in CHANGED:
        return 0
    return step if call.changes or call.dataset == "eval" else max(oldest, step - 1 - call.lag)
