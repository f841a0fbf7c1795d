"""A model that is named on a command line: a folder, ORG/NAME of the hub, a run, or RUN@STEP."""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcrl.config.hub import download_command, find_snapshot, hub_cache, is_hub_name, is_path, nearest_folder
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ConfigurationError
from hpcrl.launch.export import ExportPlan, plan_exports
from hpcrl.launch.registry import Registry
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
        """What its numbers are in, as `<role>.dtype` has it; fp32 where config.json names another type."""
        fields = json.loads((self.folder / "config.json").read_text())
        stored = fields.get("dtype", fields.get("torch_dtype"))
        return next((ours for ours, theirs in DTYPES.items() if theirs == stored), "fp32")


@contextmanager
def named_model(word: str, role: str | None, told: Told) -> Iterator[NamedModel]:
    """The model of a role of a run (of its newest checkpoint, or of STEP's) is exported into $TMPDIR for as long.

    Raises ConfigurationError where nothing has this name, or the run has no such checkpoint or role that generates.
    """
    found = trained_model(word, role)
    if found is None:
        yield model_folder(word)
        return
    run, plan = found
    with _written(plan, told) as folder:
        experiment = experiment_from(run.configuration())
        section, data = getattr(experiment, plan.role), getattr(experiment, "data", None)
        template = getattr(data, "chat_template", None)
        yield NamedModel(
            name=word,
            folder=folder,
            run=run,
            step=plan.step,
            family=section.family,
            kind=section.model,
            chat_template=Path(template) if template else None,
            template_args=dict(getattr(data, "template_args", {})),
        )


def model_folder(word: str) -> NamedModel:
    """A model that is no run's. Raises ConfigurationError."""
    return NamedModel(word, _folder_of(word))


def trained_model(word: str, role: str | None) -> tuple[RunDirectory, ExportPlan] | None:
    """The run that a word names, and the export of the role that it names or that generates; None of what is no run.

    Raises ConfigurationError where the run has no such checkpoint or role.
    """
    run_dir, step = _run_of(word)
    if run_dir is None:
        return None
    run = RunDirectory.open(run_dir)
    [plan] = plan_exports(run.root, step, _generating(run, role), None)
    return run, plan


@contextmanager
def _written(plan: ExportPlan, told: Told) -> Iterator[Path]:
    """The run's own export, where it has one, else one in a folder that goes afterwards."""
    if plan.folder.is_dir():
        yield plan.folder
        return
    scratch = ScratchFolder("hpcrl-model-")
    try:
        plan.elsewhere(scratch.path / plan.role).write(told)
        yield scratch.path / plan.role
    finally:
        scratch.remove()


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
    return None if path.name != word or path.exists() else Registry.of_user().find(word)


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
    if not path.exists() and (near := nearest_folder(path)) is not None:
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
