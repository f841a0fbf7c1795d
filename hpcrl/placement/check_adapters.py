"""Roles that are to have adapters: what of them a model, a folder or a reference does not fit. Pure but for headers."""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from hpcrl.config.experiment import ExperimentConfig, calls_of
from hpcrl.config.fields import settings
from hpcrl.config.model import LoraConfig, ReferenceConfig, TrainedModelConfig, lora_of, models_of, shared_with
from hpcrl.dataflow.graph import MFC
from hpcrl.errors import DataError, Problem
from hpcrl.families.adapter_files import adapter_tensors
from hpcrl.families.adapters import targets_of, unsupported, with_adapters
from hpcrl.families.config import DecoderConfig
from hpcrl.families.reader import family_of


def adapter_problems(experiment: ExperimentConfig, models: Mapping[str, DecoderConfig]) -> Iterator[Problem]:
    """`models` are those of the roles that can be read, under their heads."""
    for role, config in models_of(experiment).items():
        if not isinstance(config, TrainedModelConfig):
            continue
        if config.lora.rank is None:
            yield from _unused(role, config.lora)
        elif role in models:
            yield from _of_model(role, config.lora, models[role])


def shared_problems(experiment: ExperimentConfig, calls: tuple[MFC, ...]) -> Iterator[Problem]:
    """Of references that are to be another role's model."""
    for role, config in models_of(experiment).items():
        if not isinstance(config, ReferenceConfig) or not (of := shared_with(experiment, role)):
            continue
        key, other = f"{role}.of", getattr(experiment, of)
        if lora_of(other) is None:
            yield Problem(
                (key, f"{of}.lora.rank"),
                f"{key} = {of} is the model of {of} without its adapters, but {of}.lora.rank = null trains the model "
                "itself.",
                f"Set {of}.lora.rank, or leave out {key}.",
            )
        for name in ("dtype", "path"):
            if (own := getattr(config, name)) != (its := getattr(other, name)):
                yield Problem(
                    (f"{role}.{name}", key),
                    f"{role}.{name} = {own}, but {key} = {of}, and {of}.{name} = {its}.",
                    f"Set {role}.{name} to {its}.",
                )
        yield from _needless(role, of, config)
        yield from _of_calls(experiment, role, of, calls)


def _unused(role: str, lora: LoraConfig) -> Iterator[Problem]:
    for name in ("alpha", "targets", "path"):
        if getattr(lora, name) != getattr(LoraConfig, name):
            yield Problem(
                (f"{role}.lora.{name}", f"{role}.lora.rank"),
                f"{role}.lora.{name} is of adapters, but {role}.lora.rank = null trains all parameters.",
                f"Set {role}.lora.rank, or leave out {role}.lora.{name}.",
            )


def _of_model(role: str, lora: LoraConfig, model: DecoderConfig) -> Iterator[Problem]:
    key, path = f"{role}.lora", f"{role}.path"
    if because := unsupported(model):
        yield Problem(
            (f"{key}.rank", path),
            f"{key}.rank = {lora.rank} is of adapters, which {path} cannot have: {because}.",
            f"Leave out {key}, or set {path} to another model.",
        )
        return
    layers = targets_of(model, family_of(model))
    unknown = [name for name in lora.targets if not any(layer.called(name) for layer in layers)]
    if unknown:
        known = ", ".join(dict.fromkeys(layer.name for layer in layers))
        yield Problem(
            (f"{key}.targets", path),
            f"{key}.targets has {', '.join(unknown)}, but the linear layers in the blocks of {path} are {known}.",
            f"Set {key}.targets.",
        )
    elif lora.path is not None:
        try:
            adapter_tensors(Path(lora.path), with_adapters(model, lora))
        except DataError as error:
            for line in str(error).splitlines():
                of_settings = "but lora." in line or "which lora." in line
                text = line.replace("lora.", f"{key}.") if of_settings else line
                part = "" if of_settings else ".path"
                yield Problem((f"{key}.path", path), f"{key}.path: {text}", f"Set {key}{part}.")


def _needless(role: str, of: str, config: ReferenceConfig) -> Iterator[Problem]:
    """Settings of a model of its own."""
    for field in fields(ReferenceConfig):
        default: Any = field.default if field.default is not MISSING else None
        if field.name in ("of", "path", "dtype") or getattr(config, field.name) == default:
            continue
        name = f"{role}.{field.name}"
        yield Problem(
            (name, f"{role}.of"),
            f"{name} is of a model of its own, but {role}.of = {of} is that of {of}.",
            f"Leave out {name}, or {role}.of.",
        )


def _or_no_blend(experiment: ExperimentConfig) -> str:
    """The setting of the algorithm that has the call blend; empty of one that has no such setting."""
    keys = [setting.key for setting in settings(type(experiment)) if setting.key.endswith("reference_ema.decay")]
    return "".join(f", or set {key} to null" for key in keys)


def _of_calls(experiment: ExperimentConfig, role: str, of: str, calls: tuple[MFC, ...]) -> Iterator[Problem]:
    for call in calls:
        if call.role != role:
            continue
        if call.kind == "blend":
            yield Problem(
                (f"{role}.of",),
                f"{role}.of = {of} never changes, but {call.name} blends {call.blends} into {role}.",
                f"Leave out {role}.of{_or_no_blend(experiment)}.",
            )
        elif call.name in calls_of(experiment):
            yield Problem(
                ("calls", f"{role}.of"),
                f"calls.{call.name} places a call of {role}, but {role}.of = {of}: it is where {of} is.",
                f"Leave out calls.{call.name}, or {role}.of.",
            )
