"""Hugging Face folders in and out: config.json, sharded safetensors, the tokenizer's files. Never imports transformers.

A critic is saved as `…ForTokenClassification` with one label (`score.weight`, `score.bias`: a value a token), a
reward model as `…ForSequenceClassification` with one label (`score.weight`: read at the last token).
"""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import split_state_dict_into_shards_factory
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from hpcrl.data.tokens import TOKENIZER_FILES
from hpcrl.errors import ConfigurationError, DataError
from hpcrl.families import reader
from hpcrl.families.config import DecoderConfig, HeadKind
from hpcrl.families.family import Parameter, Piece
from hpcrl.families.reader import config_to_json, family_of, parameters_of
from hpcrl.families.stored import check_tensors, naming, refuse_other_head, weight_map
from hpcrl.models.init import initial, random_init
from hpcrl.models.padding import say_padding
from hpcrl.models.rotary import deinterleave, interleave

MAX_SHARD_BYTES = 5_000_000_000


def read_config(folder: Path | str, family: str | None = None) -> DecoderConfig:
    """The model that a folder's config.json describes. Raises DataError naming every field that is not supported."""
    try:
        return reader.read_config(Path(folder), family)
    except ConfigurationError as error:
        raise DataError(str(error)) from None


def load_pretrained(
    folder: Path | str,
    *,
    family: str | None = None,
    head: HeadKind | None = None,
    seed: int = 0,
    trained: bool = False,
) -> tuple[DecoderConfig, Iterator[tuple[str, Tensor]]]:
    """A folder's configuration, and its parameters under our names, read from disk one by one as they are asked for.

    Under another `head` than the folder's it keeps the trunk. Only a value head, or one for rewards that is to be
    `trained`, may be one that the folder does not have: it is random from `seed`. Raises DataError where another head
    is wanted and not there, and where a tensor is missing, has another shape than the configuration says, or is not
    part of it.
    """
    config = read_config(folder, family)
    wanted = config if head is None else config.with_head(head)
    refuse_other_head(Path(folder), config, head, trained)
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
    padding = None
    if tokenizer_from is not None:
        copy_tokenizer(tokenizer_from, folder)
        padding = say_padding(folder, config) if config.head == "reward" else None
    fields = config_to_json(config, str(dtype).removeprefix("torch.")) | (padding or {})
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


def copy_tokenizer(source: Path | str, folder: Path | str) -> None:
    """Copy the tokenizer's files that are there, byte for byte; the model has a config.json of its own."""
    for name in TOKENIZER_FILES:
        if name != "config.json" and (path := Path(source) / name).is_file():
            shutil.copyfile(path, Path(folder) / name)


class _TensorFiles:
    """The safetensors files of a folder, opened one at a time. Knows no model. Raises DataError naming the file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = weight_map(folder)
        self._open: tuple[str, Any] | None = None

    def read(self, name: str) -> Tensor:
        file = self._files[name]
        with naming(self._folder / file):
            if self._open is None or self._open[0] != file:
                self._open = (file, safe_open(self._folder / file, framework="pt"))
            return self._open[1].get_tensor(name)


def _parameters(folder: Path, config: DecoderConfig) -> Iterator[tuple[str, Tensor]]:
    check_tensors(folder, config)
    files, family = _TensorFiles(folder), family_of(config)
    for parameter in parameters_of(config):
        parts = [_from_hf(files.read(piece.name), piece, config) for piece in family.pieces(config, parameter)]
        yield parameter.name, parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


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
