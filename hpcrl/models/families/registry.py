"""The model families there are, by `model_type`. Adding one = one file here and a line below."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from hpcrl.errors import DataError
from hpcrl.models.config import TransformerConfig
from hpcrl.models.families.family import Family
from hpcrl.models.families.fields import Fields, head_fields
from hpcrl.models.families.llama import LLAMA
from hpcrl.models.families.qwen2 import QWEN2

FAMILIES: Mapping[str, Family] = MappingProxyType({family.name: family for family in (LLAMA, QWEN2)})


def family_of(name: str) -> Family:
    """Raises DataError where the family is not supported."""
    if name not in FAMILIES:
        raise DataError(f"model_type {name!r} is not supported; supported are {', '.join(FAMILIES)}.")
    return FAMILIES[name]


def config_from_hf(fields: Mapping[str, Any], source: str) -> TransformerConfig:
    """A config.json's model. Raises DataError with all problems together; `source` says where they are."""
    family = family_of(str(fields.get("model_type")))
    reader = Fields(fields)
    reader.require("classifier_dropout", 0.0, 0.0)
    reader.require("is_encoder_decoder", False, False)
    config = family.read(reader)
    if config.heads % config.kv_heads:
        reader.problems.append(
            f"num_attention_heads = {config.heads} is no multiple of num_key_value_heads = {config.kv_heads}."
        )
    if config.head_dim % 2:
        reader.problems.append(f"head_dim = {config.head_dim} is odd; rotary position embedding turns pairs.")
    if problems := reader.finish():
        raise DataError("\n".join(f"{source}: {problem}" for problem in problems))
    return config


def config_to_hf(config: TransformerConfig, dtype: str) -> dict[str, Any]:
    """config.json for a model whose tensors are saved as `dtype` ("float32", "bfloat16")."""
    family = family_of(config.family)
    return {
        "model_type": family.name,
        **config.carried,
        **family.write(config),
        **head_fields(config.head, family.architecture),
        "torch_dtype": dtype,
    }
