"""Looks which models of a run can be had, from its journal and the names of its files."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from hpcrl.durable.checkpoints import Manifest
from hpcrl.durable.cuts import manifests_of, misses
from hpcrl.durable.history import History, read_history
from hpcrl.durable.journal import Checkpointed, Closed, Pruned
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ConfigurationError
from hpcrl.inspect.views.exports import Exportable, Exports, Missing
from hpcrl.placement.plan import plan_for
from hpcrl.recipes.algorithm import experiment_from


def read_exports(run_dir: Path, role: str | None = None, step: int | None = None) -> Exports:
    """All of it, or of one role or step. Reads no shard.

    Raises ConfigurationError where the run trains no such role, or has closed no such step.
    """
    run = RunDirectory.open(run_dir)
    experiment = experiment_from(run.configuration())
    plan = plan_for(experiment)
    trained = [replica.role for replica in plan.trained]
    if role is not None and role not in trained:
        raise refuse_role(run, role, trained)
    history = read_history(run)
    lines, manifests = manifests_of(run, history)
    damage = {each: "; ".join(misses(run.files, found, trained)) for each, found in manifests.items()}
    whole = {each: found for each, found in manifests.items() if not damage[each]}
    reasons = _reasons(history) | dict.fromkeys(lines.keys() - manifests.keys(), "its checkpoint cannot be read")
    reasons |= {each: f"its checkpoint is damaged: {why}" for each, why in damage.items()}
    reasons |= _removed(history)
    known = {each: why for each, why in reasons.items() if each not in whole}
    if step is not None and step not in whole.keys() | known.keys():
        last = max(whole.keys() | known.keys(), default=None)
        closed = "has closed none yet" if last is None else f"has closed steps up to {last}"
        raise ConfigurationError([f"--step {step}: {run.root} {closed}."])
    types = {name: str(getattr(getattr(experiment, name), "dtype", "")) for name in trained}
    roles = trained if role is None else [role]
    return Exports(
        run_dir=str(run.root),
        exportable=tuple(
            _exportable(run, found, types, name)
            for each, found in whole.items()
            if step in (None, each)
            for name in roles
        ),
        missing=tuple(_missing({each: why for each, why in known.items() if step in (None, each)})),
        not_trained=tuple(dict.fromkeys(call.role for call in plan.calls if call.role not in trained)),
    )


def refuse_role(run: RunDirectory, role: str, trained: Sequence[str]) -> ConfigurationError:
    """The error that a role which is not trained is met with."""
    names = ", ".join(trained) or "none"
    return ConfigurationError([f"--role {role} is not trained in {run.root}."], f"Those that are: {names}.")


def _reasons(history: History) -> dict[int, str]:
    """By step that is closed, why it cannot be had if it has no checkpoint."""
    events = [line.event for line in history.lines]
    closed = (event.step for event in events if isinstance(event, Closed) and event.step)
    found = dict.fromkeys(closed, "no checkpoint was due (control.checkpoint)")
    return found | {event.step: "its checkpoint is not there" for event in events if isinstance(event, Checkpointed)}


def _removed(history: History) -> dict[int, str]:
    """By step, of checkpoints that were pruned."""
    events = [line.event for line in history.lines]
    before = max((event.before_step for event in events if isinstance(event, Pruned)), default=0)
    saved = {event.step for event in events if isinstance(event, Checkpointed)}
    return {each: "its checkpoint was removed (control.keep_checkpoints)" for each in saved if each < before}


def _exportable(run: RunDirectory, manifest: Manifest, types: Mapping[str, str], role: str) -> Exportable:
    folder, shards = run.export(role, manifest.step), manifest.roles[role]
    written = str(folder) if folder.is_dir() else ""
    return Exportable(manifest.step, role, types[role], len(shards), sum(it.size for it in shards), written)


def _missing(reasons: Mapping[int, str]) -> Iterable[Missing]:
    """Neighbours with one reason together, the newest first."""
    steps = sorted(reasons, reverse=True)
    for (why, _), group in groupby(enumerate(steps), key=lambda it: (reasons[it[1]], sum(it))):
        several = [step for _, step in group]
        yield Missing(several[-1], several[0], why)
