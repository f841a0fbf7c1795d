"""The one reader and the one writer of config.json: what is refused here, no worker would load. Loads no weights."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from hpcrl.errors import ConfigurationError
from hpcrl.families.adapters import adapter_family
from hpcrl.families.config import DecoderConfig
from hpcrl.families.family import FAMILIES, Family, Parameter
from hpcrl.families.fields import Fields, head_fields
from hpcrl.families.foreign import ForeignConfig, foreign_family, foreign_fields, read_foreign
from hpcrl.plugins import find, names

Kind = Literal["auto", "own", "transformers"]
"""Whose code runs a model: hpcrl's, transformers', or hpcrl's wherever it can."""
SETTING = "<role>.family"
"""What is named where nobody says of which role a model is."""


def read_config(folder: Path, family: str | None = None, setting: str = SETTING, kind: Kind = "own") -> DecoderConfig:
    """The model of a folder, as `family` reads it, or (None) whoever has its config.json's `model_type` for a name.

    Of `kind` auto it is transformers' where hpcrl's own code would refuse a field of its config.json. Raises
    ConfigurationError with all problems of its config.json; `setting` is the one that names the family.
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
    if kind == "transformers" and isinstance(values, Mapping):
        return read_foreign(folder, values, str(path), f"{setting.rpartition('.')[0]}.model = transformers")
    try:
        return config_from_json(values, str(path), family, setting)
    except ConfigurationError as error:
        if kind == "own" or family is not None or not isinstance(values, Mapping):
            raise
        return _else_foreign(folder, values, str(path), error)


def _else_foreign(folder: Path, values: Mapping[str, Any], source: str, error: ConfigurationError) -> DecoderConfig:
    """A model that hpcrl's own code does not run. Raises ConfigurationError with why nobody does."""
    own = (problem.text.removeprefix(f"{source}: ").partition("; supported")[0].rstrip(".") for problem in error.found)
    try:
        return read_foreign(folder, values, source, "; ".join(own))
    except ConfigurationError as foreign:
        first, *others = error.found
        why = " ".join(problem.text for problem in foreign.found)
        both = replace(first, text=f"{why} hpcrl's own code does not run it either: {first.text}")
        raise ConfigurationError([both, *others]) from None


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
    if isinstance(config, ForeignConfig):
        return foreign_fields(config, dtype)
    family = family_of(config)
    head = head_fields(config.head, family.architecture, family.heads)
    return {**family.write(config), **head, "torch_dtype": dtype}


def family_of(config: DecoderConfig) -> Family:
    """What declares a model's parameters; of one with adapters, those that are trained."""
    if config.adapters is not None:
        return adapter_family(config, family_of(config.base))
    if isinstance(config, ForeignConfig):
        return foreign_family(config)
    return find(FAMILIES, config.family, SETTING)


@lru_cache(maxsize=64)
def parameters_of(config: DecoderConfig) -> tuple[Parameter, ...]:
    """All parameters of a model, layer by layer."""
    return tuple(family_of(config).parameters(config))


def fingerprint(parameters: Iterable[Parameter]) -> str:
    """Equal for models of the same parameters."""
    text = "\n".join(f"{parameter.name} {parameter.shape}" for parameter in parameters)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


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
