"""The copy of the user's code that a run's next submission uses: the newest it has, or a new one with what changed."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from hpcrl.config.experiment import ExperimentConfig, to_dict
from hpcrl.data.user_code import FILES, UserCode, code_places, collect_code
from hpcrl.dataflow.graph import changes
from hpcrl.durable.code import changed_files, inside, staged, with_code
from hpcrl.durable.records import CodeCopy
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ConfigurationError
from hpcrl.recipes.algorithm import algorithm_of, experiment_from


@dataclass(frozen=True)
class NextCode:
    """`number` and `copy` are what the run has; where some is taken anew, `new` is all that replaces it."""

    number: int
    copy: CodeCopy
    taken: frozenset[str] = frozenset()
    """Settings."""
    new: UserCode | None = None

    def keep(self, run: RunDirectory) -> int:
        """The number of the copy to use, made now where it is new."""
        return self.number if self.new is None else run.keep_code(self.new)

    def notices(self) -> Iterator[str]:
        """What is no longer as it was copied, and is used as it was copied all the same."""
        for key, files in changed_files(self.copy).items():
            if key not in self.taken:
                yield (
                    f"{', '.join(files)} changed since the run copied it, and the run keeps its copy; "
                    f"--accept-changed {key} takes the change over"
                )


def next_code(
    run: RunDirectory, experiment: ExperimentConfig, accepted: Collection[str], version: int | None = None
) -> NextCode:
    """What to use of the code that a version of a run's settings has (the newest, if None), and what to take anew: code
    that `experiment` has elsewhere than it, and that of the `accepted` settings.

    Raises:
        ConfigurationError: code cannot be read, or a file that changed also belongs to code that is to stay as it is.
    """
    number = run.read_settings(run.versions()[-1] if version is None else version).code
    copy, folder = run.read_code(number), run.code_copy(number)
    places = {key: place.removeprefix(str(folder)) for key, place in code_places(experiment).items()}
    named = places.keys() | ({FILES} if experiment.code.files else set())
    before = {key: setting.place for key, setting in copy.settings.items()}
    taken = frozenset(key for key in named if key in accepted or places.get(key, "") != before.get(key))
    if not taken and named == copy.settings.keys():
        return NextCode(number, copy)
    patterns = experiment.code.files if FILES in taken else ()
    fresh = collect_code({key: place for key, place in places.items() if key in taken}, patterns)
    kept = {key: copy.settings[key] for key in named - taken}
    files = {path: inside(folder, path).read_bytes() for setting in kept.values() for path in setting.files}
    changed = {path for path, content in fresh.files.items() if files.get(path, content) != content}
    if sharing := [key for key, setting in kept.items() if changed.intersection(setting.files)]:
        shared = min(path for key in sharing for path in changed.intersection(kept[key].files))
        raise ConfigurationError(
            [f"{shared} changed and also belongs to {', '.join(sharing)}."],
            f"Accept all of them: --accept-changed {' '.join(sorted({*accepted, *sharing}))}",
        )
    return NextCode(number, copy, taken, UserCode({**kept, **fresh.settings}, {**files, **fresh.files}))


def refuse_other_roles(experiment: ExperimentConfig, code: UserCode) -> None:
    """Raise ConfigurationError where an algorithm's new code changes other roles than its old one, which `experiment`
    names: a run's checkpoints have those."""
    with staged(code) as folder:
        after = experiment_from(with_code(to_dict(experiment), code.settings, folder))
        old, new = (sorted({*changes(algorithm_of(each).calls(each)).values()}) for each in (experiment, after))
    if old != new:
        raise ConfigurationError(
            [f"the changed algorithm changes {_listed(new)}, but the run's checkpoints have {_listed(old)}."],
            "Have it change the same roles, or submit a new run.",
        )


def _listed(roles: list[str]) -> str:
    return ", ".join(roles) or "no role"
