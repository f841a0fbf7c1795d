"""`hpcrl eval`: a run of the algorithm `evaluate` for each model, and what came out of it."""

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from hpcrl.config.data import DataConfig
from hpcrl.config.experiment import ExperimentConfig, to_dict
from hpcrl.config.model import ModelConfig
from hpcrl.data.datasets import open_datasets
from hpcrl.data.indexes import ScratchIndexes
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ConfigurationError
from hpcrl.inspect.archives import Archives
from hpcrl.inspect.reader import RunReader
from hpcrl.inspect.views.evaluation import Scores
from hpcrl.launch.named_models import Told, model_folder, trained_model
from hpcrl.recipes.algorithm import algorithm_of, experiment_from

ALL_ROWS = 2**30
"""Stands for as many as there are, until they have been counted."""
KEPT = ("seed", "deterministic", "cluster", "reward_model", "judge", "reward", "environment", "generation", "code")
"""Sections that the evaluation of a run's model has from the run."""

SCORERS = ("reward.function=", "reward.components=", "reward.components.")
"""How settings begin that say what scores a response."""

RELEASED = ("between", "offload")
"""Of the actor: what of it leaves a device while others work, of whom there are none."""

Reads = Callable[[str, Sequence[str]], ExperimentConfig]
"""A configuration's file and settings that win → the experiment."""


@dataclass(frozen=True)
class Asked:
    """What the command line says; None: as the run has it that the model is of."""

    data: str | None
    reward: str | None
    samples: int | None
    temperature: float | None
    max_new_tokens: int | None
    role: str | None
    settings: tuple[str, ...]
    """Any others, like `cluster.nodes=2`."""


def experiment_of(word: str, asked: Asked, read: Reads, told: Told) -> ExperimentConfig:
    """The evaluation of a model, which is exported into its run where it is a run's.

    Raises ConfigurationError where there is no such model, and for settings that are wrong.
    """
    values = _values(word, asked, told)
    generation = values.setdefault("generation", {})
    generation |= {"in_flight": None, "max_age": None}  # an evaluation draws what it scores
    own = generation["evaluation"] = dict(generation.get("evaluation") or {})
    if asked.samples is not None:
        own |= {"samples_per_prompt": asked.samples}
        if asked.samples > 1 and own.get("temperature") is None:
            own["temperature"] = 1.0
    if asked.temperature is not None:
        own["temperature"] = asked.temperature
    if asked.max_new_tokens is not None:
        generation["max_new_tokens"] = asked.max_new_tokens
    with TemporaryDirectory() as folder:
        path = Path(folder) / "eval.yaml"
        path.write_text(json.dumps(values))  # JSON is YAML
        return _in_one_step(read(str(path), asked.settings))


def _in_one_step(experiment: Any) -> ExperimentConfig:
    """All rows at once, as they are in an evaluation while training, unless another number of them is given."""
    if experiment.data.batch_size != ALL_ROWS:
        return cast(ExperimentConfig, experiment)
    few = replace(experiment, data=replace(experiment.data, batch_size=1))
    rows = open_datasets(few, algorithm_of(experiment).rows, ScratchIndexes())["train"].ids
    whole: ExperimentConfig = replace(experiment, data=replace(experiment.data, batch_size=max(1, len(rows))))
    return whole


def _values(word: str, asked: Asked, told: Told) -> dict[str, Any]:
    """The configuration, without how responses are drawn."""
    found = trained_model(word, asked.role)
    values: dict[str, Any] = {"algorithm": "evaluate", "name": "eval", "control": {"epochs": 1}}
    values["samples"] = {"per_step": "all"}
    if found is None:
        model = model_folder(word)
        lacking = [option for option, value in (("--data", asked.data), ("--reward", asked.reward)) if value is None]
        if lacking:
            raise ConfigurationError([f"{word} is no run, so that {' and '.join(lacking)} must be given."], "Give it.")
        values["actor"] = {"path": str(model.folder.absolute()), "dtype": model.dtype}
        values["data"] = {}
    else:
        experiment = experiment_from(found.run.configuration())
        whole = to_dict(experiment)
        _refuse_unscored(whole, asked)
        values |= {name: whole[name] for name in KEPT if whole.get(name) is not None}
        section = {name: it for name, it in whole[found.role].items() if name not in RELEASED}
        values["actor"] = _section(section, ModelConfig) | {"path": str(found.folder)}
        values["data"] = _data(whole.get("data") or {}, asked.data)
        values["evaluate"] = {"as_step": found.step}
        found.write(told)
    values["data"]["batch_size"] = ALL_ROWS
    if asked.data is not None:
        values["data"]["train"] = str(Path(asked.data).absolute())
    if asked.reward is not None:
        values["reward"] = {"function": _placed(asked.reward)}
    return values


def _refuse_unscored(run: Mapping[str, Any], asked: Asked) -> None:
    """Raise ConfigurationError where neither a run's settings nor the command line say what scores a response."""
    own = run.get("reward") or {}
    given = asked.reward is not None or any(it.startswith(SCORERS) for it in asked.settings)
    if not (given or own.get("function") or own.get("components")):
        raise ConfigurationError(["the run has no reward, so that --reward must be given."], "Give it.")


def _section(values: Mapping[str, Any], kind: type[Any]) -> dict[str, Any]:
    names = {field.name for field in fields(kind)}
    return {name: value for name, value in values.items() if name in names and value is not None}


def _data(values: Mapping[str, Any], other: str | None) -> dict[str, Any]:
    """Of the run's evaluation data, or of others that are read as these are."""
    found = _section(values, DataConfig)
    for name in ("batch_size", "batch_tokens", "balance", "samples_per_prompt", "sources", "shuffle", "drop_last"):
        found.pop(name, None)
    rows, place = found.pop("evaluate_rows", None), found.pop("evaluate", None)
    if other is None and (place is None or rows is not None):
        why = "has no data.evaluate" if place is None else f"evaluates on the first {rows} rows (data.evaluate_rows)"
        raise ConfigurationError([f"the run {why}, so that --data must be given."], "Give it.")
    return found | {"train": place}


def _placed(function: str) -> str:
    file, colon, name = function.rpartition(":")
    return f"{Path(file).absolute()}:{name}" if colon and file.endswith(".py") else function


def scores_of(run: RunDirectory) -> Scores:
    """Reward, its components, and whether a response is right, by prompt. What was dropped has none.

    Raises DamagedFileError where an archive is not what was written.
    """
    reward: Any = getattr(experiment_from(run.configuration()), "reward", None)
    assert reward is not None, "an evaluation has one"
    found: defaultdict[str, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    archives = Archives(run)
    for sample in (sample for step in archives.steps for sample in archives.samples(step)):
        figures = {name: sample.figures[name] for name in ("reward", *reward.parts) if name in sample.figures}
        by = "reward" if reward.right_component is None else reward.right_component
        if by in figures and "reward" in figures:
            figures["accuracy"] = float(figures[by] >= reward.right_at)
        for name, value in figures.items():
            found[name][sample.row].append(value)
    return found


def metrics_of(run: RunDirectory) -> dict[str, float]:
    """Of its last step, of what it generated and how that was judged."""
    row = RunReader(run).newest_metrics()
    return {
        name: value for name, value in row.items() if name.startswith("eval_") and not name.startswith("eval_loss/")
    }
