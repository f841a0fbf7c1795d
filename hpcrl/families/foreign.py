"""Models that transformers computes: their tensors as they are in the folder, under Hugging Face's names, whole.

Sizes come from the headers of the tensors' files, everything else is config.json as it is. What is known here of a
model is where its tensors belong, not what it computes.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hpcrl.errors import ConfigurationError, DataError
from hpcrl.families.config import DecoderConfig, HeadKind
from hpcrl.families.family import Family, Parameter, Piece
from hpcrl.families.headers import headers, weight_map
from hpcrl.families.library import UNKNOWN, LibraryModel, library_model

UNBOUNDED = 1 << 17
"""Tokens of the longest text where config.json names no bound: such a model has no table of positions."""
TIED = "lm_head.weight"
"""What a tied model's output matrix is called where a folder has a copy of it."""

_SIZES: Mapping[str, tuple[str, ...]] = {
    "vocabulary_size": ("vocab_size",),
    "hidden_size": ("hidden_size", "n_embd", "d_model"),
    "intermediate_size": ("intermediate_size", "ffn_dim", "ffn_hidden_size", "n_inner", "d_ff"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "multi_query_group_num"),
    "head_dim": ("head_dim",),
    "max_positions": ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "n_ctx"),
}
"""What config.json files call a size."""
EXPERT = re.compile(r"\.experts\.(?P<number>\d+)\.(?:w1|gate_proj|w3|up_proj|(?P<down>w2|down_proj))\.weight$")
"""Matrices of experts that a folder has one by one; transformers stacks gate and up, and what leads down."""
_BLOCK = re.compile(r"(?:^|\.)(?:layers|layer|h|blocks)\.(\d+)\.")
_ENTERS = re.compile(r"embed|\bwte\b|\bwpe\b")
_IGNORED = ("rotary_emb.inv_freq", ".masked_bias", ".attn.bias", ".attention.bias")
"""How tensors of old folders end that are no parameters: frequencies and masks."""
_MASKS = (".attn.bias", ".attention.bias")


@dataclass(frozen=True)
class ForeignConfig(DecoderConfig):
    """A model that transformers computes. `family` is its model_type; `carried` is its whole config.json."""

    tensors: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Name and shape of each, layer by layer."""
    library: LibraryModel = UNKNOWN
    because: str = field(default="", compare=False)
    """Why hpcrl's own code does not run it."""
    found: HeadKind = "vocabulary"
    """The head that its folder has."""

    @property
    def stacked(self) -> bool:
        """Whether transformers' class has stacks of tensors that the folder has one by one."""
        return any(EXPERT.search(name) for name, _ in self.tensors)

    def with_head(self, head: HeadKind | None) -> "ForeignConfig":
        """The same trunk; a value or reward head is the one that transformers' class for tokens has."""
        if head is None or head == self.head:
            return self
        if "vocabulary" not in (head, self.head):
            return replace(self, head=head)
        assert head != "vocabulary" and self.library.tokens is not None, (head, self.library)
        own = tuple(each for each in self.tensors if _in_trunk(each[0], self.library.prefix))
        added = ((f"{self.library.head}.weight", (1, self.hidden_size)), (f"{self.library.head}.bias", (1,)))
        return replace(self, head=head, tied=False, tensors=(*own, *added))


def head_problem(config: ForeignConfig, head: HeadKind | None) -> str:
    """Why the model cannot be had under a head; empty where it can."""
    if head in (None, "vocabulary", config.head) or config.library.tokens is not None:
        return ""
    return (
        f"transformers has no class for {config.family} that gives a number for each token "
        f"(…ForTokenClassification, ending in one linear module), which a {head} head is"
    )


def read_foreign(folder: Path, values: Mapping[str, Any], source: str, because: str) -> ForeignConfig:
    """The model of a folder whose config.json has these `values`. Raises ConfigurationError with all that is wrong."""
    name = values.get("model_type")
    library = library_model(name) if isinstance(name, str) else None
    if library is None:
        raise ConfigurationError([f"{source}: transformers has no decoder of model_type {name!r}."])
    if problems := [*_refused(values), *_unsized(values)]:
        raise ConfigurationError([f"{source}: {problem}" for problem in problems])
    try:
        places = {tensor: (file, tensor) for tensor, file in weight_map(folder).items()}
        shapes = {tensor: found.shape for tensor, found in headers(folder, places).items()}
    except DataError as error:
        raise ConfigurationError([_unreadable(folder, error)]) from None
    tensors = {_full(each, library.prefix): shape for each, shape in shapes.items() if not _ignored(each, shape)}
    if values.get("tie_word_embeddings") and TIED in tensors:
        del tensors[TIED]
    head = _head(values, library)
    wrong = [f"tensor {tensor} is a single number" for tensor, shape in tensors.items() if not shape]
    wrong += [] if head else [f"architectures names {values.get('architectures')!r}, not {library.causal}"]
    if not any(map(_BLOCK.search, tensors)):
        wrong.append("no tensor's name has the number of a block")
    if wrong or head is None:
        raise ConfigurationError([f"{source}: {problem}; transformers' models are not held so." for problem in wrong])
    return _config(values, name or "", library, because, tensors, head)


def foreign_fields(config: ForeignConfig, dtype: str) -> dict[str, Any]:
    """config.json for its tensors in `dtype`: the one it was read from, under the head that it has now."""
    fields = {**config.carried, ("dtype" if "dtype" in config.carried else "torch_dtype"): dtype}
    if config.head != config.found or config.head == "reward":
        fields |= {"architectures": [config.library.tokens], "num_labels": 1}
        fields |= {"id2label": {"0": config.head}, "label2id": {config.head: 0}}
    return fields


def _parameters(config: DecoderConfig) -> Iterator[Parameter]:
    """A parameter for each tensor. Norms and biases, which are vectors, do not decay."""
    assert isinstance(config, ForeignConfig), config
    placed = [(_layer(name, config), name, shape) for name, shape in config.tensors]
    for layer, name, shape in sorted(placed, key=lambda each: (each[0], *_stacked(each[1]))):
        yield Parameter(name, layer, shape, decays=len(shape) > 1)


def _stacked(name: str) -> tuple[Any, ...]:
    """By this, experts' matrices stand side by side as they are stacked, behind all others of their block."""
    found = EXPERT.search(name)
    if found is None:
        return (False,)
    second = name.endswith((".up_proj.weight", ".w3.weight"))
    return True, name[: found.start()], bool(found["down"]), int(found["number"]), second


def current_name(name: str) -> str:
    """What transformers calls a tensor, of which folders have an older name."""
    return name.replace(".block_sparse_moe", ".mlp")


def _pieces(config: DecoderConfig, parameter: Parameter) -> tuple[Piece, ...]:
    return (Piece(parameter.name, parameter.shape[0]),)


def foreign_family(config: ForeignConfig) -> Family:
    """What a family declares, of a model of any model_type."""
    return Family(
        architecture=config.library.causal,
        read=_unread,
        write=lambda _: config.carried,
        parameters=_parameters,
        pieces=_pieces,
        prefix=f"{config.library.prefix}.",
        ignored=_IGNORED,
    )


def _unread(fields: Any) -> DecoderConfig:
    raise AssertionError("a foreign model is read from its folder")


def _refused(values: Mapping[str, Any]) -> Iterator[str]:
    if "auto_map" in values:
        yield (
            "auto_map names code of the folder's own, which is not run. Remove auto_map if transformers' own class is "
            "meant."
        )
    if "quantization_config" in values:
        yield "quantization_config: quantised weights are not supported."
    if values.get("is_encoder_decoder"):
        yield "is_encoder_decoder = true: only decoders are supported."
    rope = values.get("rope_parameters") or values.get("rope_scaling") or {}
    kinds = [each for each in (rope, *rope.values()) if isinstance(each, dict)] if isinstance(rope, dict) else []
    if any("longrope" in (kind.get("rope_type"), kind.get("type")) for kind in kinds):
        yield "rope type 'longrope' turns a text by the length of the longest beside it; it is not supported."


def _unsized(values: Mapping[str, Any]) -> Iterator[str]:
    for size in ("vocabulary_size", "hidden_size"):
        if _size(values, size) is None:
            yield f"{' or '.join(_SIZES[size])} is needed, as a positive integer."


def _size(values: Mapping[str, Any], name: str) -> int | None:
    found = (values.get(called) for called in _SIZES[name])
    return next((size for size in found if isinstance(size, int) and not isinstance(size, bool) and size > 0), None)


def _unreadable(folder: Path, error: DataError) -> str:
    pickled = sorted(path.name for path in folder.glob("*.bin"))
    if pickled and not any(folder.glob("*.safetensors")):
        return (
            f"{folder} has only pickled weights ({pickled[0]}), which may run code when they are loaded. Save the "
            "model with safe_serialization=True."
        )
    return str(error)


def _config(
    values: Mapping[str, Any],
    name: str,
    library: LibraryModel,
    because: str,
    tensors: Mapping[str, tuple[int, ...]],
    head: HeadKind,
) -> ForeignConfig:
    hidden = _size(values, "hidden_size") or 1
    heads = _size(values, "heads") or max(1, hidden // 64)
    deviation = values.get("initializer_range")
    return ForeignConfig(
        family=name,
        vocabulary_size=_size(values, "vocabulary_size") or 1,
        hidden_size=hidden,
        intermediate_size=_size(values, "intermediate_size") or 4 * hidden,
        blocks=1 + max(int(found[1]) for tensor in tensors if (found := _BLOCK.search(tensor))),
        heads=heads,
        kv_heads=_size(values, "kv_heads") or heads,
        head_dim=_size(values, "head_dim") or max(1, hidden // heads),
        max_positions=_size(values, "max_positions") or UNBOUNDED,
        tied=head == "vocabulary" and all(_in_trunk(tensor, library.prefix) for tensor in tensors),
        head=head,
        found=head,
        initializer_range=deviation if isinstance(deviation, float) and deviation > 0 else 0.02,
        carried=dict(values),
        tensors=tuple(tensors.items()),
        library=library,
        because=because,
    )


def _head(values: Mapping[str, Any], library: LibraryModel) -> HeadKind | None:
    """The one whose class `architectures` names; a reward head is called so by its label."""
    listed = values.get("architectures") or [library.causal]
    named = listed[0] if isinstance(listed, list) else listed
    if named == library.causal:
        return "vocabulary"
    labels = values.get("id2label")
    if named != library.tokens or not isinstance(labels, dict) or len(labels) != 1:
        return None
    return "reward" if "reward" in labels.values() else "value"


def _layer(name: str, config: ForeignConfig) -> int:
    found = _BLOCK.search(name)
    if found is not None:
        return 1 + int(found[1])
    enters = _in_trunk(name, config.library.prefix) and _ENTERS.search(name)
    return 0 if enters else config.blocks + 1


def _in_trunk(name: str, prefix: str) -> bool:
    return name.startswith(f"{prefix}.")


def _full(name: str, prefix: str) -> str:
    """With what begins its name, which is missing in folders of a trunk alone."""
    inside = _BLOCK.search(name) or _ENTERS.search(name.split(".")[0]) or name.startswith(("ln_f.", "norm."))
    return f"{prefix}.{name}" if inside and not _in_trunk(name, prefix) and "embed_out" not in name else name


def _ignored(name: str, shape: tuple[int, ...]) -> bool:
    return name.endswith(_IGNORED) and (not name.endswith(_MASKS) or len(shape) != 1)
