"""The model families there are, by `model_type`. Adding one = one file here, a line below, and one in
`hpcrl.families.reader`."""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from hpcrl.errors import ConfigurationError, DataError
from hpcrl.families.config import TransformerConfig
from hpcrl.families.fields import head_fields
from hpcrl.families.reader import read_fields
from hpcrl.models.families.family import Family
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
    try:
        found = read_fields(fields, source)
    except ConfigurationError as error:
        raise DataError(str(error)) from None
    return TransformerConfig(
        family=found.family,
        **{field.name: getattr(found.shape, field.name) for field in dataclasses.fields(found.shape)},
        norm_eps=found.norm_eps,
        rotary=found.rotary,
        head=found.head,
        initializer_range=found.initializer_range,
        carried=found.carried,
    )


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
