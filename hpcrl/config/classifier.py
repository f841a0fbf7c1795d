"""A classifier that scores responses as a component of the reward."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from hpcrl.config.bounds import Count
from hpcrl.config.fields import ChangeClass, ModelText
from hpcrl.config.model import BetweenConfig, PlacementConfig
from hpcrl.errors import Problem


@dataclass(frozen=True, kw_only=True)
class ClassifierConfig(PlacementConfig):
    """A model that scores a prompt with its response, of any family that transformers knows."""

    changes: ClassVar[ChangeClass] = ChangeClass.FORK

    path: ModelText | None = None
    """A folder as transformers writes a …ForSequenceClassification, with its tokenizer: one that algorithm reward_model
    has exported, or any other, or ORG/NAME of the hub if it is in the local cache. Read only where a component of the
    reward has role: reward_model."""
    label: str | None = None
    """The label, of several, whose probability is the score; null for a model of one label, whose number is the
    score."""
    dtype: Literal["fp32", "bf16", "fp64"] = "fp32"
    """What it computes in. fp64 is for checking numerics."""
    micro_batch_tokens: Annotated[Count, ChangeClass.PLACEMENT] = 16384
    """Most tokens in one forward pass on a worker; of a model that transformers runs, padding included."""
    between: BetweenConfig = BetweenConfig()
    """What of it leaves the devices between calls; nothing of a model that transformers runs."""


def labels_of(folder: str) -> tuple[str, ...]:
    """The labels of a classifier, by config.json. Raises OSError or ValueError."""
    config = json.loads((Path(folder) / "config.json").read_bytes())
    if named := config.get("id2label"):
        return tuple(str(label) for _, label in sorted(named.items(), key=lambda pair: int(pair[0])))
    return tuple(f"LABEL_{i}" for i in range(config.get("num_labels", 2)))


def classifier_problems(role: str, config: ClassifierConfig, component: str) -> Iterator[Problem]:
    """What is wrong with the folder of a section of this name, and with the label; `component` has this role."""
    path = f"{role}.path"
    if config.path is None:
        yield Problem((path,), f"{path} is not set, but {component} scores with its model.", f"Set {path}.")
        return
    try:
        labels = labels_of(config.path)
    except (OSError, ValueError, AttributeError) as error:
        text = f"{path} = {config.path} must be a folder of a classifier, but its config.json cannot be read ({error})."
        yield Problem((path,), text, f"Set {path}.")
        return
    key, named = f"{role}.label", ", ".join(labels)
    if config.label is None and len(labels) > 1:
        yield Problem(
            (key,), f"{key} is not set, but {config.path} has several: {named}.", f"Set {key} to one of them."
        )
    elif config.label is not None and (config.label not in labels or len(labels) == 1):
        need = f"one of {named}" if len(labels) > 1 else "null: the model has one label, and its number is the score"
        yield Problem((key,), f"{key} = {config.label} must be {need}.", f"Set {key}.")
