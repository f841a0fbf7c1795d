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
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from hpcrl.errors import DataError
from hpcrl.models.config import TransformerConfig
from hpcrl.models.families.family import Piece
from hpcrl.models.families.registry import config_from_hf, config_to_hf, family_of
from hpcrl.models.init import initial, random_init
from hpcrl.models.layout import Entry, lay_out
from hpcrl.models.rotary import deinterleave, interleave
from hpcrl.models.transformer import Transformer
from hpcrl.placement.fields import HeadKind

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
"""What an export takes over from the folder that the run began with, where it is there."""

MAX_SHARD_BYTES = 5_000_000_000


def read_config(folder: Path | str) -> TransformerConfig:
    """The model that a folder's config.json describes. Raises DataError naming every field that is not supported."""
    path = Path(folder) / "config.json"
    return config_from_hf(_read_json(path), str(path))


def load_pretrained(folder: Path | str) -> tuple[TransformerConfig, Iterator[tuple[str, Tensor]]]:
    """A folder's configuration, and its parameters under our names, read from disk one by one as they are asked for.

    Raises DataError where a tensor is missing, has another shape than the configuration says, or is not part of it.
    """
    config = read_config(folder)
    return config, _parameters(Path(folder), config)


def new_model(
    folder: Path | str,
    *,
    head: HeadKind | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    trainable: bool = True,
    seed: int = 0,
) -> Transformer:
    """A folder's model, ready. Under another `head` than the folder's it keeps the trunk; a head that the folder does
    not have is random from `seed`."""
    config, parameters = load_pretrained(folder)
    if head is not None:
        config = config.with_head(head)
    model = Transformer(config, dtype=dtype, device=device, trainable=trainable)
    model.load(_with_new_head(model, parameters, seed))
    return model


def save_pretrained(
    folder: Path | str,
    config: TransformerConfig,
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
    entries = lay_out(config).entries
    dtype = tensors[entries[0].name].dtype
    fields = config_to_hf(config, str(dtype).removeprefix("torch."))
    (folder / "config.json").write_text(json.dumps(fields, indent=2) + "\n")
    sizes = {entry.name: entry.numel * dtype.itemsize for entry in entries}
    shards = plan_shards(sizes, max_shard_bytes)
    weight_map: dict[str, str] = {}
    for number, names in enumerate(shards, start=1):
        file = "model.safetensors" if len(shards) == 1 else f"model-{number:05}-of-{len(shards):05}.safetensors"
        shard = _shard(config, [entry for entry in entries if entry.name in names], tensors)
        save_file(shard, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(shard, file)
    if len(shards) > 1:
        index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
    if tokenizer_from is not None:
        copy_tokenizer(tokenizer_from, folder)


def copy_tokenizer(source: Path | str, folder: Path | str) -> None:
    """Copy the tokenizer's files that are there, byte for byte."""
    for name in TOKENIZER_FILES:
        if (path := Path(source) / name).is_file():
            shutil.copyfile(path, Path(folder) / name)


def plan_shards(sizes: Mapping[str, int], max_bytes: int) -> list[list[str]]:
    """Parameter names in order, cut so that no file exceeds `max_bytes` unless one parameter alone does."""
    shards: list[list[str]] = [[]]
    filled = 0
    for name, size in sizes.items():
        if shards[-1] and filled + size > max_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += size
    return shards


class _TensorFiles:
    """The safetensors files of a folder, opened one at a time. Knows no model."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = _weight_map(folder)
        self._open: tuple[str, Any] | None = None

    def names(self) -> set[str]:
        return set(self._files)

    def read(self, name: str) -> Tensor:
        if name not in self._files:
            raise DataError(f"{self._folder} has no tensor {name}, which its config.json calls for.")
        file = self._files[name]
        if self._open is None or self._open[0] != file:
            self._open = (file, safe_open(self._folder / file, framework="pt"))
        return self._open[1].get_tensor(name)


def _weight_map(folder: Path) -> dict[str, str]:
    """Tensor name → file."""
    index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
    if index.is_file():
        return _read_json(index)["weight_map"]
    if not single.is_file():
        raise DataError(
            f"{folder} has neither model.safetensors nor model.safetensors.index.json. "
            "Save the model with safe_serialization=True, or change the model's path."
        )
    with safe_open(single, framework="pt") as file:
        return dict.fromkeys(file.keys(), single.name)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise DataError(f"{path} does not exist. A model's path is a folder in Hugging Face's format.") from None
    except ValueError as error:
        raise DataError(f"{path} is no JSON: {error}") from None


def _parameters(folder: Path, config: TransformerConfig) -> Iterator[tuple[str, Tensor]]:
    files, family = _TensorFiles(folder), family_of(config.family)
    entries = lay_out(config).entries
    pieces = {entry.name: family.pieces(config, entry) for entry in entries}
    _refuse_strangers(folder, files.names(), {piece.name for group in pieces.values() for piece in group})
    for entry in entries:
        parts = [_from_hf(files.read(piece.name), piece, config) for piece in pieces[entry.name]]
        yield entry.name, parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


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


def _from_hf(tensor: Tensor, piece: Piece, config: TransformerConfig) -> Tensor:
    if tensor.shape[0] != piece.rows:
        raise DataError(f"{piece.name} has {tensor.shape[0]} rows; the configuration makes it {piece.rows}.")
    if piece.paired:
        tensor = interleave(tensor, config.head_dim)
    return tensor.t() if piece.transposed else tensor


def _to_hf(tensor: Tensor, piece: Piece, config: TransformerConfig) -> Tensor:
    if piece.transposed:
        tensor = tensor.t()
    if piece.paired:
        tensor = deinterleave(tensor, config.head_dim)
    return tensor.contiguous().cpu()


def _shard(config: TransformerConfig, entries: Sequence[Entry], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of one file, in Hugging Face's names and shapes."""
    family, shard = family_of(config.family), {}
    for entry in entries:
        pieces = family.pieces(config, entry)
        tensor = tensors[entry.name].detach()
        parts = [tensor] if len(pieces) == 1 else tensor.split([piece.rows for piece in pieces], dim=-1)
        for piece, part in zip(pieces, parts, strict=True):
            shard[piece.name] = _to_hf(part, piece, config)
    return shard


def _with_new_head(
    model: Transformer, parameters: Iterator[tuple[str, Tensor]], seed: int
) -> Iterator[tuple[str, Tensor]]:
    """The parameters that fit the model, then random ones for those of its head that did not come."""
    missing = {entry.name: entry for entry in model.layout.entries}
    for name, tensor in parameters:
        if name in missing and missing[name].shape == tensor.shape:
            del missing[name]
            yield name, tensor
    for name, entry in missing.items():
        yield name, initial(model.config, entry, seed)


def write_random_pretrained(
    folder: Path | str, config: TransformerConfig, seed: int, *, tokenizer_from: Path | str | None = None
) -> None:
    """A folder with a new model of random fp32 parameters, as a run's starting point."""
    save_pretrained(folder, config, dict(random_init(config, seed)), tokenizer_from=tokenizer_from)
