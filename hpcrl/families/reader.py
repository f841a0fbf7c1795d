"""What a model's config.json says: all that its mathematics depends on, and the name and shape of every parameter.

The one reader of config.json: what it refuses, no worker would load. Loads no weights and no torch.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from hpcrl.config.experiment import PPOExperiment, SFTExperiment
from hpcrl.errors import ConfigurationError
from hpcrl.families.fields import Fields, HeadKind, RotaryConfig

Shape = tuple[int, ...]
Head = Literal["vocabulary", "value"]


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a decoder-only transformer."""

    vocabulary_size: int
    hidden_size: int
    intermediate_size: int
    blocks: int
    heads: int
    kv_heads: int
    head_dim: int
    max_positions: int
    qkv_bias: bool
    tied: bool

    @property
    def kv_size(self) -> int:
        """Length of a token's keys, and of its values, in one block."""
        return self.kv_heads * self.head_dim


@dataclass(frozen=True)
class ModelFields:
    """All that a config.json says of a model."""

    family: str
    shape: ModelShape
    norm_eps: float
    rotary: RotaryConfig
    head: HeadKind
    initializer_range: float
    carried: Mapping[str, Any]
    """Fields that change no number (token ids and the like), carried to an export."""


@dataclass(frozen=True)
class FamilyFields:
    """What sets a family's config.json apart from others that follow Llama's."""

    architecture: str
    """What its classes' names begin with: `Qwen2` of `Qwen2ForCausalLM`."""
    qkv_bias: bool
    """Whether query, key and value have a bias."""
    take: Callable[[Fields], None]
    """Takes the fields that only this family has."""


def _take_llama(fields: Fields) -> None:
    fields.require("attention_bias", False, False)
    fields.require("mlp_bias", False, False)


def _take_qwen2(fields: Fields) -> None:
    fields.require("use_sliding_window", False, False)
    fields.require("use_mrope", False, False)
    fields.take("sliding_window")
    fields.full_attention()


FAMILY_FIELDS: Mapping[str, FamilyFields] = MappingProxyType(
    {"llama": FamilyFields("Llama", False, _take_llama), "qwen2": FamilyFields("Qwen2", True, _take_qwen2)}
)
"""The supported families by `model_type`."""


def model_folders(experiment: SFTExperiment | PPOExperiment) -> dict[str, Path]:
    """Role → the folder of its model; one without a config.json is left out, which other checks complain of."""
    folders = {
        role: Path(getattr(experiment, role).path)
        for role in ("actor", "critic", "reference")
        if hasattr(experiment, role)
    }
    return {role: folder for role, folder in folders.items() if (folder / "config.json").is_file()}


def read_shape(folder: Path) -> ModelShape:
    """The shape of the model in a folder. Raises ConfigurationError with all problems of its config.json."""
    path = folder / "config.json"
    try:
        fields = json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigurationError([f"{path} cannot be read: {error.strerror}. Name a folder that has it."]) from None
    except ValueError as error:
        raise ConfigurationError([f"{path} is not JSON: {error}. Name a folder with a whole one."]) from None
    return read_fields(fields, str(path)).shape


def read_fields(values: Any, source: str) -> ModelFields:
    """The model of a config.json. Raises ConfigurationError with all problems; `source` says where they are."""
    if not isinstance(values, Mapping):
        raise ConfigurationError([f"{source} holds {str(values)[:40]}; a JSON object is needed."])
    name = values.get("model_type")
    if not isinstance(name, str) or name not in FAMILY_FIELDS:
        supported = ", ".join(FAMILY_FIELDS)
        raise ConfigurationError([f"{source}: model_type {name!r} is not supported; supported are {supported}."])
    fields = Fields(values)
    found = _read(fields, name, FAMILY_FIELDS[name])
    if problems := [*_shape_problems(found.shape), *fields.finish()]:
        raise ConfigurationError([f"{source}: {problem}" for problem in problems])
    return found


def _read(fields: Fields, name: str, family: FamilyFields) -> ModelFields:
    """Everything, with stand-ins for what is wrong, which the fields remember."""
    fields.require("is_encoder_decoder", False, False)
    fields.require("classifier_dropout", 0.0, 0.0)
    fields.require("attention_dropout", 0.0, 0.0)
    fields.require("hidden_act", "silu", "silu")
    family.take(fields)
    heads, hidden = fields.size("num_attention_heads"), fields.size("hidden_size")
    shape = ModelShape(
        vocabulary_size=fields.size("vocab_size"),
        hidden_size=hidden,
        intermediate_size=fields.size("intermediate_size"),
        blocks=fields.size("num_hidden_layers"),
        heads=heads,
        kv_heads=fields.size("num_key_value_heads", heads),
        head_dim=fields.size("head_dim", max(1, hidden // heads)),
        max_positions=fields.size("max_position_embeddings"),
        qkv_bias=family.qkv_bias,
        tied=fields.flag("tie_word_embeddings", False),
    )
    return ModelFields(
        family=name,
        shape=shape,
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        rotary=fields.rotary(),
        head=fields.head(family.architecture),
        initializer_range=fields.number("initializer_range", 0.02),
        carried=fields.carried(),
    )


def _shape_problems(shape: ModelShape) -> list[str]:
    problems = []
    if shape.heads % shape.kv_heads:
        problems.append(
            f"num_attention_heads = {shape.heads} is no multiple of num_key_value_heads = {shape.kv_heads}."
        )
    if shape.head_dim % 2:
        problems.append(f"head_dim = {shape.head_dim} is odd; rotary position embedding turns pairs.")
    return problems


def parameters(model: ModelShape, head: Head = "vocabulary") -> dict[str, Shape]:
    """Every parameter by its Hugging Face name; a value head stands in the place of the vocabulary's."""
    hidden = model.hidden_size
    found: dict[str, Shape] = {"model.embed_tokens.weight": (model.vocabulary_size, hidden)}
    for block in range(model.blocks):
        found |= {f"model.layers.{block}.{name}": shape for name, shape in _block(model).items()}
    found["model.norm.weight"] = (hidden,)
    if head == "value":
        return found | {"score.weight": (1, hidden), "score.bias": (1,)}
    return found if model.tied else found | {"lm_head.weight": (model.vocabulary_size, hidden)}


def parameter_count(model: ModelShape, head: Head = "vocabulary") -> int:
    return sum(math.prod(shape) for shape in parameters(model, head).values())


def _block(model: ModelShape) -> dict[str, Shape]:
    hidden, between = model.hidden_size, model.intermediate_size
    projections = {"q": model.heads * model.head_dim, "k": model.kv_size, "v": model.kv_size}
    found: dict[str, Shape] = {}
    for name, size in projections.items():
        found[f"self_attn.{name}_proj.weight"] = (size, hidden)
        if model.qkv_bias:
            found[f"self_attn.{name}_proj.bias"] = (size,)
    return found | {
        "self_attn.o_proj.weight": (hidden, model.heads * model.head_dim),
        "mlp.gate_proj.weight": (between, hidden),
        "mlp.up_proj.weight": (between, hidden),
        "mlp.down_proj.weight": (hidden, between),
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }
