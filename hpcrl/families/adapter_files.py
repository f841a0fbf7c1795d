"""Folders of adapters as PEFT writes and reads them: adapter_config.json, and tensors under PEFT's names."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcrl.errors import DataError
from hpcrl.families.adapters import DOWN, PREFIX, UP, adapted_targets, head_modules
from hpcrl.families.config import DecoderConfig, HeadKind
from hpcrl.families.headers import StoredTensor, headers, naming, read_json
from hpcrl.families.reader import family_of, parameters_of

CONFIG = "adapter_config.json"
TENSORS = "adapter_model.safetensors"
_PLAIN: Mapping[str, Any] = {
    "peft_type": "LORA",
    "use_dora": False,
    "use_rslora": False,
    "bias": "none",
    "rank_pattern": {},
    "alpha_pattern": {},
    "layer_replication": None,
    "layers_to_transform": None,
    "trainable_token_indices": None,
    "lora_bias": False,
    "use_qalora": False,
    "target_parameters": None,
}
"""Fields that change what is computed, and what they have to be where they are there."""
_TASKS: Mapping[HeadKind, str] = {"vocabulary": "CAUSAL_LM", "value": "TOKEN_CLS", "reward": "SEQ_CLS"}
_SHOWN = 4


def adapter_config(config: DecoderConfig, base: str) -> dict[str, Any]:
    """adapter_config.json of a model with adapters, whose base is a folder or a name of the hub."""
    assert config.adapters is not None
    family = family_of(config.base)
    layers = adapted_targets(config, family)
    targets = config.adapters.targets or tuple(sorted({layer.name for layer in layers}))
    heads = list(head_modules(config, family))
    return {
        "peft_type": "LORA",
        "task_type": _TASKS[config.head],
        "base_model_name_or_path": base,
        "r": config.adapters.rank,
        "lora_alpha": config.adapters.alpha,
        "target_modules": list(targets),
        "modules_to_save": heads or None,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": not all(layer.transposed for layer in layers),
        "inference_mode": True,
        "init_lora_weights": True,
        "use_rslora": False,
        "use_dora": False,
    }


def adapter_tensors(folder: Path, config: DecoderConfig) -> dict[str, StoredTensor]:
    """What a folder has of a model's adapters, by their names. Raises DataError with all in which they differ."""
    for name in (CONFIG, TENSORS):
        if not (folder / name).is_file():
            raise DataError(f"{folder / name} does not exist. Adapters are read from a folder that PEFT has written.")
    fields, stored = read_json(folder / CONFIG), _stored(folder)
    family = family_of(config)
    wanted = {
        piece.name: (piece.stored_shape(parameter), parameter.name.rpartition(".")[2])
        for parameter in parameters_of(config)
        for piece in family.pieces(config, parameter)
    }
    problems = [*_differences(folder, fields, config), *_misfits(folder, stored, wanted)]
    if problems:
        raise DataError("\n".join(problems))
    return stored


def _stored(folder: Path) -> dict[str, StoredTensor]:
    from safetensors import safe_open

    path = folder / TENSORS
    with naming(path), safe_open(path, framework="np") as opened:
        names = list(opened.keys())
    return headers(folder, {name: (TENSORS, name) for name in names})


def _differences(folder: Path, fields: Mapping[str, Any], config: DecoderConfig) -> Iterator[str]:
    """Fields that say something else than the settings do, or ask for what nobody does here."""
    assert config.adapters is not None
    path = folder / CONFIG
    for name, own in (("r", config.adapters.rank), ("lora_alpha", config.adapters.alpha)):
        if fields.get(name) != own:
            setting = "rank" if name == "r" else "alpha"
            yield f"{path} has {name} = {fields.get(name)}, but lora.{setting} = {own:g}."
    for name, plain in _PLAIN.items():
        if name in fields and fields[name] != plain and (fields[name] or plain):
            yield f"{path} has {name} = {fields[name]}; {plain} is supported."


def _misfits(
    folder: Path, stored: Mapping[str, StoredTensor], wanted: Mapping[str, tuple[Sequence[int], str]]
) -> Iterator[str]:
    path = folder / TENSORS
    missing = [name for name, (_, kind) in wanted.items() if kind in (DOWN, UP) and name not in stored]
    if missing:
        yield f"{path} has no {_some(missing)}, for which lora.targets asks."
    if strange := sorted(stored.keys() - wanted.keys()):
        yield f"{path} has {_some(strange)}, for which lora.targets does not ask, or which the model does not have."
    for name in sorted(stored.keys() & wanted.keys()):
        if stored[name].shape != tuple(shape := wanted[name][0]):
            yield f"{path} is of another base: {name} is {list(stored[name].shape)}, and this model's is {list(shape)}."


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(name.removeprefix(PREFIX) for name in names[:_SHOWN]) + more
