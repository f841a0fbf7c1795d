"""The settings that a run is resumed with: whether they fit what is recorded, and what is to be said of them."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from hpcrl.config.changes import Change, changes, with_settings
from hpcrl.config.control import ControlConfig
from hpcrl.config.experiment import ExperimentConfig, to_dict
from hpcrl.config.fields import ChangeClass, sections_of
from hpcrl.config.load import OF_A_RUN, change_settings
from hpcrl.config.model import TrainedModelConfig
from hpcrl.data.datasets import open_datasets
from hpcrl.data.rows.kind import Indexes
from hpcrl.dataflow.graph import MFC
from hpcrl.dataflow.units import furthest_behind
from hpcrl.durable.indexes import indexes_to_try
from hpcrl.durable.records import Verdict
from hpcrl.durable.recovery import RecoveryPlan, plan_next_attempt
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ConfigurationError, Problem
from hpcrl.launch.launcher import Launcher, launcher_for, launcher_problems
from hpcrl.launch.settled import settled
from hpcrl.master.schedule import RunSchedule
from hpcrl.master.stepping import open_data
from hpcrl.placement.allocate import afresh
from hpcrl.placement.check import ALL_CHECKS
from hpcrl.placement.plan import plan_for
from hpcrl.placement.spaces import space_problems
from hpcrl.recipes.algorithm import algorithm_of, experiment_from
from hpcrl.recipes.segments import segmented

LENGTH = ("control.steps", "control.epochs")


@dataclass(frozen=True)
class NextSettings:
    """What a run runs once it is resumed (`after`), ran last, and was submitted with; and who starts it."""

    submitted: ExperimentConfig
    before: ExperimentConfig
    after: ExperimentConfig
    launcher: Launcher

    @property
    def changes(self) -> list[Change]:
        return changes(self.before, self.after)

    def written(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """These settings as they were written down before, with what changes now."""
        return with_settings(values, {change.key: change.value for change in self.changes})

    def describe_changes(self, since: str = "") -> Iterator[str]:
        """A line for each setting that changes; `since` says from when on one counts that changes numbers."""
        numbers = {change.key for change in changes(self.before, self.after, [ChangeClass.NUMBERS])}
        idle = algorithm_of(self.after).without_effect(self.after)
        for change in self.changes:
            effect = f", without effect: {idle[change.key]}" if change.key in idle else since * (change.key in numbers)
            yield f"with {change}{effect}"

    def describe(self) -> Iterator[str]:
        """A line for each setting that changes, for each that was changed before, and for what follows."""
        changed = {change.key for change in self.changes}
        yield from self.describe_changes(", from new calls on")
        for kept in changes(self.submitted, self.after, [ChangeClass.PLACEMENT, ChangeClass.NUMBERS]):
            if kept.key not in changed:
                yield f"still with {str(kept).replace('(was ', '(submitted with ')}"
        if changed & set(LENGTH):
            yield from _schedules(self.after)


def _schedules(experiment: ExperimentConfig) -> Iterator[str]:
    """The learning rates that depend on the length of the run."""
    for role, model in sections_of(experiment, TrainedModelConfig).items():
        if model.optimizer.schedule != "constant":
            yield (
                f"{role}.optimizer.schedule = {model.optimizer.schedule} follows the length of the run: steps so far "
                "had the rates of the old length, later ones have those of the new. A run that had the new length from "
                "the start would have had others."
            )


def next_settings(run: RunDirectory, overrides: Sequence[str]) -> NextSettings:
    """The newest settings of a run with these changes.

    Raises ConfigurationError with everything that is wrong, and with what does not fit what the run has recorded.
    """
    submitted, newest = (experiment_from(run.configuration_of(version)) for version in (0, run.versions()[-1]))
    return changed_settings(submitted, newest, overrides, indexes_to_try(run))


def changed_settings(
    submitted: ExperimentConfig,
    before: ExperimentConfig,
    overrides: Sequence[str],
    indexes: Indexes,
    free: Collection[ChangeClass] = OF_A_RUN,
) -> NextSettings:
    """These settings with changes, which may be of the `free` classes. Raises as `next_settings`."""
    if not overrides:
        return NextSettings(submitted, before, before, launcher_for(before.cluster.type))
    changed = change_settings(before, afresh(before, overrides), (*ALL_CHECKS, launcher_problems), free)
    after = settled(changed)
    launcher = launcher_for(after.cluster.type)
    after = launcher.prepare(after)
    misfits = list(_misfits(before, after, indexes))
    if ChangeClass.FORK not in free:
        misfits += _other_calls(before, after)
    if misfits:
        raise ConfigurationError(misfits)
    return NextSettings(submitted, before, after, launcher)


def _misfits(before: ExperimentConfig, after: ExperimentConfig, indexes: Indexes) -> Iterator[Problem]:
    """What would take away calls or rows of which the steps so far were made."""
    yield from space_problems(before, after)
    algorithm = algorithm_of(after)
    if algorithm.evaluates(before) and not algorithm.evaluates(after):
        yield Problem(
            ("control.evaluate",),
            "control.evaluate cannot be switched off in a run that evaluates: a step that is open may have to.",
            "Make it rare with control.evaluate.steps, or submit a new run.",
        )
    if numbers := changes(before, after, [ChangeClass.NUMBERS]):
        old, new = (open_datasets(experiment, algorithm.rows, indexes)["train"].ids for experiment in (before, after))
        if old != new:
            keys = tuple(change.key for change in numbers)
            yield Problem(
                keys,
                f"with {', '.join(keys)} as given the run would have {len(new)} rows to train on in the place of "
                f"{len(old)}, and their order would be another.",
                "Set what you change so that the rows stay, or submit a new run.",
            )


def _other_calls(before: ExperimentConfig, after: ExperimentConfig) -> Iterator[Problem]:
    """What would make a step of other calls, or have them read other keys than are recorded. A fork begins with a step
    of its own, and may."""
    recipe = algorithm_of(after).recipe

    def made(experiment: ExperimentConfig) -> dict[str, MFC]:
        return {call.name: call for call in segmented(recipe(experiment), experiment)}

    old, new = made(before), made(after)
    differing = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    if differing:
        free = ChangeClass.NUMBERS, ChangeClass.PLACEMENT
        found = {change.key: change.value for change in changes(before, after, free)}
        each = {key: with_settings(to_dict(before), {key: value}) for key, value in found.items()}
        alone = [key for key, values in each.items() if made(msgspec.convert(values, type(before))) != old]
        keys = tuple(alone or found)
        yield Problem(
            keys,
            f"with {', '.join(keys)} as given the steps of the run would have other calls ({', '.join(differing)}), "
            "and what is recorded would not fit.",
            "Set what you change so that the calls stay, or submit a new run.",
        )


def refuse_done(run: RunDirectory, after: ExperimentConfig, reason: str) -> None:
    """Raise ConfigurationError where a run that is done has no step more under these settings."""
    recovery = plan_next_attempt(run, plan_for(after).changes)
    if not _has_more(after, recovery, indexes_to_try(run)):
        last = 0 if recovery.last_opened is None else recovery.last_opened.step
        above = {"control.steps": f" above {last}", "control.epochs": ""}
        longer = " and ".join(f"{key}{above[key]}" for key in lengths(after.control))
        raise ConfigurationError(
            [f"{run.root} is done: {reason}."],
            f"To extend it, raise {longer}, or change control.stop_when if that has ended it.",
        )


def lengths(control: ControlConfig) -> tuple[str, ...]:
    """The settings that bound the length of a run: each of them must be raised for a longer one."""
    return tuple(key for key in LENGTH if getattr(control, key.partition(".")[2]) is not None)


def has_extension(run: RunDirectory, done: Verdict) -> bool:
    """Whether a run that is done was extended since, by a submission that never began."""
    if not run.has_newer_settings(done):
        return False
    newest = experiment_from(run.configuration())
    recovery = plan_next_attempt(run, plan_for(newest).changes)
    return _has_more(newest, recovery, indexes_to_try(run))


def _has_more(experiment: ExperimentConfig, recovery: RecoveryPlan, indexes: Indexes) -> bool:
    algorithm, last = algorithm_of(experiment), recovery.last_opened
    schedule = RunSchedule(experiment.control, algorithm.evaluates(experiment))
    behind = furthest_behind(algorithm.graph(experiment))
    if last is None or schedule.has_stopped([row.metrics for row in recovery.metrics], behind):
        return False
    return schedule.exists(last.step + 1, open_data(experiment, indexes).order.batch_at(last.cursor).epoch)
