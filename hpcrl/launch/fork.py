"""Fork a run: a new run that goes on from a checkpoint of another, with other settings. The parent is only read."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hpcrl.config.changes import changes as config_changes
from hpcrl.config.changes import with_settings
from hpcrl.config.experiment import ExperimentConfig
from hpcrl.config.fields import ChangeClass
from hpcrl.config.load import OF_A_FORK
from hpcrl.data.contents import Contents
from hpcrl.data.indexes import ScratchIndexes
from hpcrl.data.inputs import fingerprints, input_files
from hpcrl.data.user_code import UserCode
from hpcrl.dataflow.graph import changes
from hpcrl.durable.code import read_code
from hpcrl.durable.fork import ForkPoint, begin_fork, find_fork_point
from hpcrl.durable.history import accepted_inputs, read_history
from hpcrl.durable.indexes import indexes_to_try, keep_indexes
from hpcrl.durable.records import KeyPair
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ConfigurationError
from hpcrl.launch.next_code import next_code
from hpcrl.launch.next_settings import NextSettings, changed_settings
from hpcrl.launch.place import new_root
from hpcrl.launch.preflight import check_inputs
from hpcrl.launch.submit import start
from hpcrl.placement.plan import plan_for
from hpcrl.recipes.algorithm import algorithm_of, experiment_from
from hpcrl.wire.channel import RunKey


@dataclass(frozen=True)
class Fork:
    """What is to be made: from which checkpoint, with which settings, where."""

    parent: RunDirectory
    point: ForkPoint
    settings: NextSettings
    code: UserCode
    root: Path
    indexes: ScratchIndexes

    def describe(self) -> Iterator[str]:
        """A line for where it comes from, and one for each setting that differs."""
        yield f"{self.root} begins from {self.point}"
        yield from self.settings.describe_changes()


def plan_fork(run_dir: Path, step: int, overrides: Sequence[str], run_dir_of_fork: Path | None) -> Fork:
    """What a fork would be; changes nothing.

    Raises:
        ConfigurationError: the run has no such checkpoint, or it does not fit the settings.
        HpcrlError: as `check_inputs`.
    """
    parent = RunDirectory.open(run_dir)
    newest = experiment_from(parent.configuration())
    point = find_fork_point(parent, step, plan_for(newest).changes.values())
    indexes = indexes_to_try(parent)
    before = experiment_from(parent.configuration_of(point.settings))
    settings = changed_settings(before, before, overrides, indexes, OF_A_FORK)
    _refuse_other_roles(before, settings, step)
    root = new_root(settings.after, run_dir_of_fork)
    found = next_code(parent, settings.after, (), point.settings)
    code = found.new or read_code(found.copy, parent.code_copy(found.number))
    check_inputs(settings.after, root, indexes, code, settings.launcher)
    return Fork(parent, point, settings, code, root, indexes)


def _refuse_other_roles(before: ExperimentConfig, settings: NextSettings, step: int) -> None:
    """Raise ConfigurationError where a role would begin to change, or no longer change: a checkpoint has those that do.

    A reference that has followed the actor, say, is not what it began from.
    """
    after = settings.after
    old, new = (set(changes(algorithm_of(each).calls(each)).values()) for each in (before, after))
    if old != new:
        differing = config_changes(before, after, [ChangeClass.NUMBERS, ChangeClass.FORK])
        keys = ", ".join(change.key for change in differing)
        raise ConfigurationError(
            [
                f"with {keys} as given the roles that change are {', '.join(sorted(new))}, but the checkpoint of step "
                f"{step} has {', '.join(sorted(old))}."
            ],
            "Set what you change so that these stay, or submit a new run.",
        )


def make_fork(fork: Fork) -> RunDirectory:
    """The run's directory, from which it can be resumed."""
    record, key = fork.parent.read_settings(fork.point.settings), RunKey.generate()
    differing = {change.key: change.value for change in fork.settings.changes}
    run = RunDirectory.create(
        fork.root,
        experiment=with_settings(record.experiment, differing),
        host=algorithm_of(fork.settings.after).host,
        key=KeyPair(key.public.decode(), key.secret.decode()),
        inputs=_inputs(fork),
        code=fork.code,
        begin=partial(begin_fork, point=fork.point),
    )
    keep_indexes(run, fork.indexes.made)
    return run


def _inputs(fork: Fork) -> dict[str, str]:
    """Fingerprints: what a setting of the parent names has to be what its parent read."""
    after = fork.settings.after
    files, changed = input_files(after, algorithm_of(after).rows), {change.key for change in fork.settings.changes}
    known = fork.parent.read_run().inputs | accepted_inputs(read_history(fork.parent))
    kept = {key: known[key] for key in files.keys() & known.keys() - changed}
    return kept | fingerprints({key: files[key] for key in files.keys() - kept.keys()}, Contents())


def fork_run(fork: Fork, wait: bool | None) -> int:
    """Make the run and start its jobs; returns the exit code."""
    print(*fork.describe(), sep="\n")
    run = make_fork(fork)
    return start(run, experiment_from(run.configuration()), fork.settings.launcher, wait, {}, version=0)


def describe_fork(fork: Fork) -> str:
    """What `fork_run` would make and start."""
    return "\n".join([*fork.describe(), fork.settings.launcher.describe(fork.settings.after, fork.root)])
