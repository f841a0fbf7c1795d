"""Hugging Face folders in and out: config.json, sharded safetensors, the tokenizer's files. Never imports transformers.

A critic is saved as `…ForTokenClassification` with one label (`score.weight`, `score.bias`: a value a token), a
reward model as `…ForSequenceClassification` with one label (`score.weight`: read at the last token).
"""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import split_state_dict_into_shards_factory
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from hpcrl.errors import ConfigurationError, DataError
from hpcrl.families import reader
from hpcrl.families.config import DecoderConfig, HeadKind
from hpcrl.families.family import Parameter, Piece
from hpcrl.families.reader import config_to_json, family_of, parameters_of
from hpcrl.models.init import initial, random_init
from hpcrl.models.rotary import deinterleave, interleave

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
)
"""What an export takes along from the folder of the run's tokenizer, where it is there."""

MAX_SHARD_BYTES = 5_000_000_000

WEIGHT_TYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
"""What tensors may be stored as; others need a scale that lies elsewhere."""


def read_config(folder: Path | str, family: str | None = None) -> DecoderConfig:
    """The model that a folder's config.json describes. Raises DataError naming every field that is not supported."""
    try:
        return reader.read_config(Path(folder), family)
    except ConfigurationError as error:
        raise DataError(str(error)) from None


def load_pretrained(
    folder: Path | str, *, family: str | None = None, head: HeadKind | None = None, seed: int = 0
) -> tuple[DecoderConfig, Iterator[tuple[str, Tensor]]]:
    """A folder's configuration, and its parameters under our names, read from disk one by one as they are asked for.

    Under another `head` than the folder's it keeps the trunk. Only a value head may be one that the folder does not
    have: it is random from `seed`. Raises DataError where another head is wanted and not there, and where a tensor is
    missing, has another shape than the configuration says, or is not part of it.
    """
    config = read_config(folder, family)
    wanted = config if head is None else config.with_head(head)
    if wanted.head not in (config.head, "value"):
        raise DataError(
            f"{Path(folder) / 'config.json'}: architectures names a model with a {config.head} head; "
            f"one with a {wanted.head} head is needed."
        )
    return wanted, _with_new_head(wanted, _parameters(Path(folder), config), seed)


def save_pretrained(
    folder: Path | str,
    config: DecoderConfig,
    tensors: Mapping[str, Tensor],
    *,
    tokenizer_from: Path | str | None = None,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> None:
    """Write a folder that transformers and vLLM load. `tensors` are all parameters under our names, of one type.

    Holds one shard in memory beside `tensors`. The folder is made; publishing it whole is the caller's part.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    parameters = parameters_of(config)
    dtype = tensors[parameters[0].name].dtype
    fields = config_to_json(config, str(dtype).removeprefix("torch."))
    (folder / "config.json").write_text(json.dumps(fields, indent=2) + "\n")
    plan = split_state_dict_into_shards_factory(
        {parameter.name: parameter.numel * dtype.itemsize for parameter in parameters},
        get_storage_size=lambda size: size,
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=max_shard_bytes,
    )
    weight_map: dict[str, str] = {}
    for file, names in plan.filename_to_tensors.items():
        shard = _shard(config, [parameter for parameter in parameters if parameter.name in names], tensors)
        save_file(shard, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(shard, file)
    if plan.is_sharded:
        index = {"metadata": plan.metadata, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
    if tokenizer_from is not None:
        copy_tokenizer(tokenizer_from, folder)


def copy_tokenizer(source: Path | str, folder: Path | str) -> None:
    """Copy the tokenizer's files that are there, byte for byte."""
    for name in TOKENIZER_FILES:
        if (path := Path(source) / name).is_file():
            shutil.copyfile(path, Path(folder) / name)


class _TensorFiles:
    """The safetensors files of a folder, opened one at a time. Knows no model. Raises DataError naming the file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = _weight_map(folder)
        self._open: tuple[str, Any] | None = None

    def names(self) -> set[str]:
        return set(self._files)

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor, which has to have this shape and numbers that need no scale."""
        if name not in self._files:
            raise DataError(f"{self._folder} has no tensor {name}, which its config.json calls for.")
        file = self._files[name]
        with _naming(self._folder / file):
            if self._open is None or self._open[0] != file:
                self._open = (file, safe_open(self._folder / file, framework="pt"))
            tensor = self._open[1].get_tensor(name)
        if tensor.shape != shape:
            raise DataError(
                f"{self._folder / file}: {name} is {list(tensor.shape)}; config.json makes it {list(shape)}."
            )
        if tensor.dtype not in WEIGHT_TYPES:
            supported = ", ".join(str(dtype).removeprefix("torch.") for dtype in WEIGHT_TYPES)
            raise DataError(f"{self._folder / file}: {name} is {tensor.dtype}; supported are {supported}.")
        return tensor


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """What goes wrong with this tensor file becomes a DataError that names it."""
    try:
        yield
    except FileNotFoundError:
        raise DataError(f"{path} does not exist, but the folder's index names it.", "Copy the whole folder.") from None
    except (OSError, SafetensorError) as error:
        raise DataError(
            f"{path} is not the safetensors file that it should be: {error}.",
            "Copy it again; where it is a few lines of text, `git lfs pull` brings the file itself.",
        ) from None


def _weight_map(folder: Path) -> dict[str, str]:
    """Tensor name → file."""
    index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
    if index.is_file():
        named = _read_json(index).get("weight_map")
        if not isinstance(named, dict) or not all(isinstance(file, str) for file in named.values()):
            raise DataError(f"{index} has no weight_map from tensor to file.", "Copy the whole folder again.")
        return named
    if not single.is_file():
        raise DataError(
            f"{folder} has neither model.safetensors nor model.safetensors.index.json.",
            "Save the model with safe_serialization=True, or change the model's path.",
        )
    with _naming(single), safe_open(single, framework="pt") as file:
        return dict.fromkeys(file.keys(), single.name)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise DataError(f"{path} does not exist. A model's path is a folder in Hugging Face's format.") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise DataError(f"{path} is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise DataError(f"{path} holds a {type(found).__name__}; a JSON object is needed.")
    return found


def _parameters(folder: Path, config: DecoderConfig) -> Iterator[tuple[str, Tensor]]:
    files, family, parameters = _TensorFiles(folder), family_of(config), parameters_of(config)
    pieces = {parameter.name: family.pieces(config, parameter) for parameter in parameters}
    _refuse_strangers(folder, files.names(), {piece.name for group in pieces.values() for piece in group})
    for parameter in parameters:
        parts = [
            _from_hf(files.read(piece.name, piece.stored_shape(parameter)), piece, config)
            for piece in pieces[parameter.name]
        ]
        yield parameter.name, parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


def _refuse_strangers(folder: Path, found: set[str], known: set[str]) -> None:
    """Old checkpoints hold rotary frequencies, tied ones a copy of the embedding; anything else is mathematics."""
    strangers = sorted(
        name for name in found - known if not name.endswith("rotary_emb.inv_freq") and name != "lm_head.weight"
    )
    if strangers:
        raise DataError(
            f"{folder} has tensors that its config.json does not account for: {', '.join(strangers[:8])}"
            f"{' …' if len(strangers) > 8 else ''}."
        )


def _from_hf(tensor: Tensor, piece: Piece, config: DecoderConfig) -> Tensor:
    if piece.paired:
        tensor = interleave(tensor, config.head_dim)
    return tensor.t() if piece.transposed else tensor


def _to_hf(tensor: Tensor, piece: Piece, config: DecoderConfig) -> Tensor:
    if piece.transposed:
        tensor = tensor.t()
    if piece.paired:
        tensor = deinterleave(tensor, config.head_dim)
    return tensor.contiguous().cpu()


def _shard(config: DecoderConfig, parameters: Sequence[Parameter], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of one file, in Hugging Face's names and shapes."""
    family, shard = family_of(config), {}
    for parameter in parameters:
        pieces = family.pieces(config, parameter)
        tensor = tensors[parameter.name].detach()
        parts = [tensor] if len(pieces) == 1 else tensor.split([piece.rows for piece in pieces], dim=-1)
        for piece, part in zip(pieces, parts, strict=True):
            shard[piece.name] = _to_hf(part, piece, config)
    return shard


def _with_new_head(
    config: DecoderConfig, tensors: Iterator[tuple[str, Tensor]], seed: int
) -> Iterator[tuple[str, Tensor]]:
    """The tensors, of whose head only what fits this model's; then random ones for what is missing of the head."""
    missing = {parameter.name: parameter for parameter in parameters_of(config) if _is_of_head(parameter.name)}
    for name, tensor in tensors:
        if _is_of_head(name):
            if name not in missing or missing[name].shape != tensor.shape:
                continue
            del missing[name]
        yield name, tensor
    for name, parameter in missing.items():
        yield name, initial(config, parameter, seed)


def _is_of_head(name: str) -> bool:
    return name.endswith((".head", ".head_bias"))


def write_random_pretrained(
    folder: Path | str, config: DecoderConfig, seed: int, *, tokenizer_from: Path | str | None = None
) -> None:
    """A folder with a new model of random fp32 parameters, as a run's starting point."""
    save_pretrained(folder, config, dict(random_init(config, seed)), tokenizer_from=tokenizer_from)
