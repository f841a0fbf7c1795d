"""The one reader and the one writer of config.json: what is refused here, no worker would load. Loads no weights."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcrl.errors import ConfigurationError
from hpcrl.families.config import DecoderConfig
from hpcrl.families.family import FAMILIES, Family, Parameter
from hpcrl.families.fields import Fields, head_fields
from hpcrl.plugins import find, names

SETTING = "<role>.family"
"""What is named where nobody says of which role a model is."""


def read_config(folder: Path, family: str | None = None, setting: str = SETTING) -> DecoderConfig:
    """The model of a folder, as `family` reads it, or (None) whoever has its config.json's `model_type` for a name.

    Raises ConfigurationError with all problems of its config.json; `setting` is the one that names the family.
    """
    path = folder / "config.json"
    try:
        values = json.loads(path.read_bytes())
    except FileNotFoundError:
        missing = f"{path} does not exist. A model's path is a folder in Hugging Face's format."
        raise ConfigurationError([missing]) from None
    except OSError as error:
        raise ConfigurationError([f"{path} cannot be read: {error.strerror}."]) from None
    except (ValueError, RecursionError) as error:
        raise ConfigurationError([f"{path} is no JSON: {error}."]) from None
    return config_from_json(values, str(path), family, setting)


def config_from_json(values: Any, source: str, family: str | None = None, setting: str = SETTING) -> DecoderConfig:
    """The model of a config.json. Raises ConfigurationError with all problems; `source` says where they are."""
    if not isinstance(values, Mapping):
        raise ConfigurationError([f"{source} holds a {type(values).__name__}; a JSON object is needed."])
    name = _named(values, source, setting) if family is None else family
    declared = find(FAMILIES, name, setting)
    fields = Fields(values, name, declared.architecture, declared.heads)
    config = declared.read(fields)
    if problems := fields.finish():
        raise ConfigurationError([f"{source}: {problem}" for problem in problems])
    return config


def config_to_json(config: DecoderConfig, dtype: str) -> dict[str, Any]:
    """config.json for a model whose tensors are saved as `dtype` ("float32", "bfloat16")."""
    family = family_of(config)
    head = head_fields(config.head, family.architecture, family.heads)
    return {**family.write(config), **head, "torch_dtype": dtype}


def family_of(config: DecoderConfig) -> Family:
    return find(FAMILIES, config.family, SETTING)


def parameters_of(config: DecoderConfig) -> tuple[Parameter, ...]:
    """All parameters of a model, layer by layer."""
    return tuple(family_of(config).parameters(config))


def parameter_count(config: DecoderConfig) -> int:
    return sum(parameter.numel for parameter in parameters_of(config))


def _named(values: Mapping[str, Any], source: str, setting: str) -> str:
    """The family that a config.json names by its `model_type`."""
    name, known = values.get("model_type"), names(FAMILIES)
    if isinstance(name, str) and name in known:
        return name
    raise ConfigurationError(
        [f"{source}: model_type {name!r} is not supported; supported are {', '.join(known)}."],
        f"Name the family in {setting}.",
    )
