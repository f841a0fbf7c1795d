"""Classifiers that score responses: which of them an engine of hpcrl holds, in any layout, and which it does not."""

from collections.abc import Iterator
from pathlib import Path

from hpcrl.config.classifier import ClassifierConfig
from hpcrl.config.experiment import ExperimentConfig
from hpcrl.config.fields import sections_of
from hpcrl.config.model import ModelConfig, PlacementConfig, models_of
from hpcrl.errors import ConfigurationError, Problem
from hpcrl.families.reader import read_config
from hpcrl.recipes.algorithm import algorithm_of


def models_held(experiment: ExperimentConfig) -> dict[str, ModelConfig]:
    """Role → the model that an engine holds, of the roles that have one."""
    return models_of(experiment) | judges_held(experiment)


def judges_held(experiment: ExperimentConfig) -> dict[str, ModelConfig]:
    """Role → the classifier that an engine holds, of those that are called."""
    called = algorithm_of(experiment).called(experiment)
    sections = sections_of(experiment, ClassifierConfig).items()
    return {role: model for role, section in sections if role in called and (model := model_of(section))}


def model_of(section: PlacementConfig) -> ModelConfig | None:
    """What an engine holds of a role that has this section; None where it has no model, or transformers loads it."""
    if isinstance(section, ModelConfig):
        return section
    if not isinstance(section, ClassifierConfig) or section.path is None or whole_because(section):
        return None
    return ModelConfig(
        path=section.path,
        dtype=section.dtype,
        layout=section.layout,
        mesh=section.mesh,
        micro_batch_tokens=section.micro_batch_tokens,
        between=section.between,
    )


def release_problems(experiment: ExperimentConfig) -> Iterator[Problem]:
    """Classifiers that are to leave the devices, and that nothing but transformers holds."""
    called = algorithm_of(experiment).called(experiment)
    for role, section in sections_of(experiment, ClassifierConfig).items():
        kept = section.between.parameters == "keep"
        if not kept and role in called and section.path is not None and (because := whole_because(section)):
            key = f"{role}.between.parameters"
            yield Problem(
                (key,),
                f"{key} = {section.between.parameters} has its model leave the devices, but transformers holds it: "
                f"{because}.",
                f"Set {key} to keep.",
            )


def whole_because(config: ClassifierConfig) -> str:
    """Why transformers loads a classifier, whole on each of its workers; empty where an engine holds it."""
    assert config.path is not None, "the checks of a configuration refuse a role without"
    folder = Path(config.path)
    try:
        head = read_config(folder).head
    except ConfigurationError as error:
        return "" if _is_ours(folder) else error.found[0].text.rstrip(".")
    if head != "reward":
        return f"{folder / 'config.json'}: architectures names a model with a {head} head"
    return "" if any(folder.glob("*.safetensors")) else f"{folder} has no safetensors"


def _is_ours(folder: Path) -> bool:
    """Whether it is a reward model that hpcrl has trained of one that transformers computes: its own class for
    classifiers has another head."""
    try:
        return read_config(folder, kind="auto").head == "reward"
    except ConfigurationError:
        return False
