"""Reads config.json field by field. What would change the mathematics and is not known is refused by name."""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeGuard

from hpcrl.families.config import HeadKind, RotaryConfig

# fmt: off
HARMLESS = frozenset({
    "_name_or_path", "architectures", "attn_implementation", "bos_token_id", "cache_implementation",
    "chunk_size_feed_forward", "do_sample", "dtype", "early_stopping", "eos_token_id", "finetuning_task",
    "id2label", "initializer_range", "is_decoder", "label2id", "length_penalty", "max_length", "max_window_layers",
    "min_length", "model_type", "name_or_path", "no_repeat_ngram_size", "num_beams", "num_labels",
    "num_return_sequences", "output_attentions", "output_hidden_states", "output_router_logits", "output_scores",
    "pad_token_id", "prefix", "pretraining_tp", "problem_type", "repetition_penalty", "return_dict",
    "return_dict_in_generate", "router_aux_loss_coef", "sep_token_id", "task_specific_params", "temperature",
    "token_classification_bias", "tokenizer_class", "top_k", "top_p", "torch_dtype", "torchscript",
    "transformers_version", "typical_p", "unk_token_id", "use_bfloat16", "use_cache",
})
# fmt: on
"""Fields that no number of a forward pass depends on: token ids, bookkeeping, defaults of generation."""

TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
CARRIED = (*TOKEN_IDS, "use_cache", "max_window_layers", "pretraining_tp", "router_aux_loss_coef")

HEADS: Mapping[str, HeadKind] = MappingProxyType(
    {"ForCausalLM": "vocabulary", "ForTokenClassification": "value", "ForSequenceClassification": "reward"}
)
"""What most families' classes end with, that of a model of language first."""

GELU = "gelu_pytorch_tanh"
WINDOWED = "sliding_attention"
KINDS = ("full_attention", WINDOWED)
"""What `layer_types` has: without and with a window."""

ROTARY_FIELDS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "default": {},
        "linear": {"factor": "factor"},
        "dynamic": {"factor": "factor"},
        "llama3": {
            "factor": "factor",
            "low_freq_factor": "low_frequency_factor",
            "high_freq_factor": "high_frequency_factor",
            "original_max_position_embeddings": "original_max_positions",
        },
        "yarn": {"factor": "factor", "original_max_position_embeddings": "original_max_positions"},
    }
)
"""Rope type → its fields in config.json and in RotaryConfig."""
OPTIONAL_ROTARY_FIELDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"yarn": ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate")}
)
"""Rope type → what it may have besides, by the same name in both."""


class Fields:
    """A config.json being read. Collects every problem, so that the user sees all of them at once.

    `family` is the name by which the family was found. It takes the fields it knows; what nobody took and is not
    HARMLESS is a problem.
    """

    def __init__(
        self, fields: Mapping[str, Any], family: str, architecture: str, heads: Mapping[str, HeadKind]
    ) -> None:
        self.family = family
        self._classes = {architecture + suffix: head for suffix, head in heads.items()}
        self._fields = fields
        self._left = set(fields) - HARMLESS
        self._problems: list[str] = []
        self.asked: dict[str, None] = {}
        """The names that were asked for, in this order."""
        self.only: dict[str, Any] = {}
        """Those that may have one value only, and it."""

    def size(self, name: str, default: int | None = None) -> int:
        """A positive integer that has to be there, unless there is a default."""
        value = self.take(name, default)
        if _is_integer(value) and value > 0:
            return value
        self.refuse(f"{name} = {value!r}; a positive integer is needed.")
        return 1

    def number(self, name: str, default: float) -> float:
        """A positive number."""
        return self._positive(name, self.take(name, default))

    def softcap(self, name: str, default: float | None) -> float | None:
        """A positive number, or null: none."""
        value = self.nullable(name, default)
        return None if value is None else float(self._positive(name, value))

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false; a text is neither."""
        value = self.take(name, default)
        if isinstance(value, bool):
            return value
        self.refuse(f"{name} = {value!r}; true or false is needed.")
        return default

    def take(self, name: str, default: Any = None) -> Any:
        """The field's value; the default where it is absent or null."""
        value = self.nullable(name, None)
        return default if value is None else value

    def nullable(self, name: str, default: Any) -> Any:
        """The field's value, null too; the default where it is absent."""
        self.asked[name] = None
        self._left.discard(name)
        return self._fields.get(name, default)

    def require(self, name: str, supported: Any, default: Any) -> None:
        """A field that is supported with one value only."""
        value = self.take(name, default)
        self.only[name] = supported
        if value != supported:
            self.refuse(f"{name} = {value!r} would change the mathematics; only {supported!r} is supported.")

    def refuse(self, problem: str) -> None:
        """Remember what is wrong with a value; goes on, so that the rest can be read."""
        self._problems.append(problem)

    def gelu(self) -> None:
        """The activation is gelu by its tanh, which transformers takes for the plain one of old files, too."""
        for name in ("hidden_activation", "hidden_act"):
            if self.take(name, GELU) != "gelu":
                self.require(name, GELU, GELU)
            self.only[name] = GELU

    def windows(self, window: int | None, usual: Sequence[bool]) -> tuple[int, ...]:
        """Of each block, which has one where `layer_types` says so, or `usual` where that is absent."""
        kinds = self.take("layer_types", [KINDS[windowed] for windowed in usual])
        if not isinstance(kinds, list) or len(kinds) != len(usual) or any(kind not in KINDS for kind in kinds):
            self.refuse(f"layer_types = {kinds!r}; a list of {len(usual)} is needed, each {' or '.join(KINDS)}.")
            return ()
        if WINDOWED not in kinds:
            return ()
        if not _is_integer(window) or window < 1:
            self.refuse(f"layers have a window, which is {window!r} by sliding_window and what turns it off or on.")
            return ()
        return tuple(window if kind == WINDOWED else 0 for kind in kinds)

    def rotary(self, usual_theta: float = 10000.0) -> RotaryConfig:
        """`rope_parameters` (transformers 5), or `rope_scaling` with `rope_theta` (4)."""
        theta = self.take("rope_theta", usual_theta)
        old, new = self.object("rope_scaling"), self.object("rope_parameters")
        return self.rotary_of(new or old, theta)

    def rotary_of(self, given_scaling: Mapping[str, Any], theta: Any) -> RotaryConfig:
        """As one such object says; `theta` where it names none."""
        scaling = dict(given_scaling)
        self.require("partial_rotary_factor", 1.0, 1.0)
        theta = self._positive("rope_theta", scaling.pop("rope_theta", theta))
        old_kind = scaling.pop("type", "default")
        kind = scaling.pop("rope_type", old_kind)
        if kind not in tuple(ROTARY_FIELDS):
            self.refuse(f"rope type {kind!r} is not supported; supported are {', '.join(ROTARY_FIELDS)}.")
            return RotaryConfig()
        if "original_max_position_embeddings" in ROTARY_FIELDS[kind]:
            scaling.setdefault("original_max_position_embeddings", self._fields.get("max_position_embeddings"))
        known, optional = ROTARY_FIELDS[kind], OPTIONAL_ROTARY_FIELDS.get(kind, ())
        given = {name: value for name in optional if (value := scaling.pop(name, None)) is not None}
        if set(scaling) != set(known):
            self.refuse(f"rope type {kind!r} needs the fields {sorted(known)} and has {sorted(scaling)}.")
            return RotaryConfig()
        truncate = given.pop("truncate", True)
        if not isinstance(truncate, bool):
            self.refuse(f"rope's truncate = {truncate!r}; true or false is needed.")
        numbers: dict[str, Any] = {
            known.get(name, name): self._positive(f"rope's {name}", value) for name, value in (scaling | given).items()
        }
        return RotaryConfig(theta=float(theta), kind=kind, truncate=truncate is not False, **numbers)

    def head(self) -> HeadKind:
        """Which head the checkpoint has, from `architectures`; a value or reward head has one output."""
        listed = self._fields.get("architectures") or list(self._classes)
        named = listed[0] if isinstance(listed, list) else listed
        head = self._classes.get(named) if isinstance(named, str) else None
        if head is None:
            self.refuse(f"architectures names {named!r}; supported are {', '.join(self._classes)}.")
            return "vocabulary"
        labels = self._fields.get("num_labels") or len(self.object("id2label") or (0, 1))
        if head != "vocabulary" and labels != 1:
            self.refuse(f"{named} has {labels} labels; a value or reward head has num_labels = 1.")
        return head

    def object(self, name: str) -> Mapping[str, Any]:
        """The field's object; an empty one where it is absent."""
        value = self.take(name, {})
        if isinstance(value, dict):
            return value
        self.refuse(f"{name} = {value!r}; an object is needed.")
        return {}

    def carried(self) -> dict[str, Any]:
        """Harmless fields that an export says again. The ids among them have to be ids: generation ends by them."""
        for name in TOKEN_IDS:
            value = self._fields.get(name)
            ids = value if isinstance(value, list) else [value]
            if value is not None and not all(map(_is_integer, ids)):
                self.refuse(f"{name} = {value!r}; a token id or a list of them is needed.")
        return {name: self._fields[name] for name in CARRIED if name in self._fields}

    def finish(self) -> list[str]:
        """All problems, those of fields that nobody took included."""
        unknown = [
            f"{name} = {self._fields[name]!r} is not known here and may change the mathematics."
            for name in sorted(self._left)
        ]
        return self._problems + unknown

    def _positive(self, name: str, value: Any) -> float:
        """The value as it is, if it is a finite number above 0."""
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf:
            return value
        self.refuse(f"{name} = {value!r}; a positive number is needed.")
        return 1.0


def _is_integer(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def rotary_fields(rotary: RotaryConfig) -> dict[str, Any]:
    """`rope_theta` and `rope_scaling`, the form that every version of transformers and vLLM reads."""
    known = ROTARY_FIELDS[rotary.kind]
    known = {**known, **{name: name for name in OPTIONAL_ROTARY_FIELDS.get(rotary.kind, ())}}
    written = {name: getattr(rotary, own) for name, own in known.items()}
    scaling = {"rope_type": rotary.kind} | {name: value for name, value in written.items() if value is not None}
    return {"rope_theta": rotary.theta, "rope_scaling": scaling if rotary.kind != "default" else None}


def whole(number: float) -> float:
    """An integer where it is one, as transformers asks of some fields."""
    return int(number) if number == int(number) else number


def window_fields(windows: Sequence[int], unused: int | None = None) -> dict[str, Any]:
    """`sliding_window` and `layer_types`; where no block has a window, its size is `unused`. Raises ValueError where
    blocks have different ones."""
    sizes = set(windows) - {0}
    if len(sizes) > 1:
        raise ValueError(f"A config.json names one sliding_window, not {sorted(sizes)}.")
    return {"sliding_window": max(sizes, default=unused), "layer_types": [KINDS[window > 0] for window in windows]}


def head_fields(head: HeadKind, architecture: str, heads: Mapping[str, HeadKind]) -> dict[str, Any]:
    """`architectures`, and for a value or reward head its one label and no dropout before it."""
    suffix = next(suffix for suffix, kind in heads.items() if kind == head)
    fields: dict[str, Any] = {"architectures": [architecture + suffix]}
    if head != "vocabulary":
        fields |= {"id2label": {"0": head}, "label2id": {head: 0}, "classifier_dropout": 0.0}
    return fields
