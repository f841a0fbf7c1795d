"""A model that is named on a command line: a folder, ORG/NAME of the hub, a run, or RUN@STEP."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcrl.config.hub import download_command, find_snapshot, hub_cache, is_hub_name, is_path, nearest_folder
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ConfigurationError
from hpcrl.families.headers import read_json
from hpcrl.launch.export import ExportPlan, plan_exports
from hpcrl.launch.registry import named_run, nearest_run
from hpcrl.placement.exporting import DTYPES
from hpcrl.recipes.algorithm import algorithm_of, experiment_from
from hpcrl.scratch import ScratchFolder

Told = Callable[[str], None]


@dataclass(frozen=True)
class NamedModel:
    """A folder that holds the model, and what its run says of how it is read and asked."""

    name: str
    folder: Path
    run: RunDirectory | None = None
    step: int | None = None
    family: str | None = None
    kind: str = "auto"
    chat_template: Path | None = None
    template_args: Mapping[str, Any] = field(default_factory=dict)

    @property
    def dtype(self) -> str:
        """What its numbers are in, as `<role>.dtype` has it; fp32 where config.json names another type. Raises
        DataError where that is damaged."""
        fields = read_json(self.folder / "config.json")
        stored = fields.get("dtype", fields.get("torch_dtype"))
        return next((ours for ours, theirs in DTYPES.items() if theirs == stored), "fp32")


@dataclass(frozen=True)
class TrainedModel:
    """A role of a run at a step, and the folder in the run that it is exported into; `plan` is None where it is."""

    run: RunDirectory
    role: str
    step: int
    folder: Path
    plan: ExportPlan | None

    def write(self, told: Told) -> None:
        """Export it, where it is not. Raises as `ExportPlan.write`."""
        if self.plan is not None:
            self.plan.write(told)

    @contextmanager
    def folder_for_now(self, told: Told) -> Iterator[Path]:
        """The run's own export, where it has one, else one in a folder that goes afterwards."""
        if self.plan is None:
            yield self.folder
            return
        scratch = ScratchFolder("hpcrl-model-")
        try:
            self.plan.elsewhere(scratch.path / self.role).write(told)
            yield scratch.path / self.role
        finally:
            scratch.remove()


@contextmanager
def named_model(word: str, role: str | None, told: Told) -> Iterator[NamedModel]:
    """The model of a role of a run (of its newest checkpoint, or of STEP's) is exported into $TMPDIR for as long.

    Raises ConfigurationError where nothing has this name, or the run has no such checkpoint or role that generates.
    """
    found = trained_model(word, role)
    if found is None:
        yield model_folder(word)
        return
    with found.folder_for_now(told) as folder:
        experiment = experiment_from(found.run.configuration())
        section, data = getattr(experiment, found.role), getattr(experiment, "data", None)
        template = getattr(data, "chat_template", None)
        yield NamedModel(
            name=word,
            folder=folder,
            run=found.run,
            step=found.step,
            family=section.family,
            kind=section.model,
            chat_template=Path(template) if template else None,
            template_args=dict(getattr(data, "template_args", {})),
        )


def model_folder(word: str) -> NamedModel:
    """A model that is no run's. Raises ConfigurationError."""
    return NamedModel(word, _folder_of(word))


def trained_model(word: str, role: str | None) -> TrainedModel | None:
    """What a word names of a run, of the role that it names or that generates; None of what is no run.

    An export that is there needs no checkpoint. Raises ConfigurationError where the run has no such checkpoint or role.
    """
    run_dir, step = _run_of(word)
    if run_dir is None:
        return None
    run = RunDirectory.open(run_dir)
    role = _generating(run, role)
    if step is not None and (there := run.export(role, step)).is_dir():
        return TrainedModel(run, role, step, there, None)
    [plan] = plan_exports(run.root, step, role, None)
    return TrainedModel(run, role, plan.step, plan.folder, None if plan.folder.is_dir() else plan)


def _run_of(word: str) -> tuple[Path | None, int | None]:
    """The run's directory and the step, of RUN or RUN@STEP; (None, None) of what is no run."""
    run, at, step = word.rpartition("@")
    if at and step.isdecimal() and (found := _run_dir(run)) is not None:
        return found, int(step)
    return _run_dir(word), None


def _run_dir(word: str) -> Path | None:
    path = Path(word)
    if (path / "run.json").is_file():
        return path
    return None if path.name != word or path.exists() else named_run(word)


def _nearest_run(word: str) -> str | None:
    """RUN or RUN@STEP, for a word that is no path."""
    run, at, step = word.rpartition("@")
    name, of = (run, f"@{step}") if at and step.isdecimal() else (word, "")
    near = nearest_run(name) if Path(name).name == name else None
    return near and near + of


def _folder_of(word: str) -> Path:
    path = Path(word)
    if (path / "config.json").is_file():
        return path
    if not path.exists() and is_hub_name(word):
        snapshot = find_snapshot(word, hub_cache(os.environ))
        if snapshot is not None:
            return snapshot
    if not path.exists() and not is_path(word):
        raise ConfigurationError(
            [f"{word} is no folder, no run, and not in the local cache of the hub."],
            f"Download it: `{download_command(word)}`.",
        )
    if not path.exists() and (near := nearest_folder(path) or _nearest_run(word)) is not None:
        raise ConfigurationError([f"there is no folder or run {word}."], f"The nearest is {near}.")
    raise ConfigurationError(
        [f"{word} is no model and no run: there is no config.json and no run.json."],
        "Name a folder in Hugging Face format, ORG/NAME of the hub, a run, or RUN@STEP.",
    )


def _generating(run: RunDirectory, role: str | None) -> str:
    """The role that is asked for, or the one that generates."""
    experiment = experiment_from(run.configuration())
    algorithm = algorithm_of(experiment)
    changed = {call.changes for call in algorithm.calls(experiment)}
    able = [name for name, kind in algorithm.roles.items() if kind.head == "vocabulary" and name in changed]
    if role is None and able:
        return able[0]
    if role is None or role not in able:
        raise ConfigurationError(
            [f"{run.root} has trained no {'model' if role is None else role} that generates."],
            f"Those that do: {', '.join(able) or 'none'}.",
        )
    return role
