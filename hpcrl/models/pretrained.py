"""Hugging Face folders in, as tensors, and out. Never imports transformers."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from hpcrl.durable.model_folder import MAX_FILE_BYTES, write_model
from hpcrl.errors import ConfigurationError, DataError
from hpcrl.families import reader
from hpcrl.families.adapter_files import adapter_tensors
from hpcrl.families.adapters import DOWN, UP
from hpcrl.families.config import DecoderConfig, HeadKind
from hpcrl.families.family import Parameter
from hpcrl.families.reader import Kind, family_of, parameters_of
from hpcrl.families.stored import checked_headers, refuse_other_head, twins_of
from hpcrl.models.init import initial, random_init
from hpcrl.models.parts import parts_of
from hpcrl.models.reading import read_together
from hpcrl.parallel.replica import Readers, reads_alone
from hpcrl.placement.reading import stored_pieces
from hpcrl.placement.shards import EMBEDDING


def read_config(folder: Path | str, family: str | None = None, kind: Kind = "own") -> DecoderConfig:
    """The model that a folder's config.json describes. Raises DataError naming every field that is not supported."""
    try:
        return reader.read_config(Path(folder), family, kind=kind)
    except ConfigurationError as error:
        raise DataError(str(error)) from None


def load_pretrained(
    folder: Path | str,
    *,
    family: str | None = None,
    kind: Kind = "own",
    head: HeadKind | None = None,
    seed: int = 0,
    trained: bool = False,
    experts: Literal["inner", "whole"] = "inner",
    readers: Readers | None = None,
) -> tuple[DecoderConfig, Iterator[tuple[str, Tensor]]]:
    """A folder's configuration, and its parameters under our names, or what a rank has of them. They are read as they
    are asked for, few at a time, by all `readers` together (None: by this process alone, which has all of them).

    Under another `head` than the folder's it keeps the trunk. Only a value head, or one for rewards that is to be
    `trained`, may be one that the folder does not have: it is random from `seed`. Raises DataError where another head
    is wanted and not there, and where a tensor is missing, has another shape than the configuration says, or is not
    part of it.
    """
    config = read_config(folder, family, kind).with_experts_cut(experts)
    wanted = config.with_head(head)
    refuse_other_head(Path(folder), config, head, trained)
    return wanted, _parts(Path(folder), config, wanted, readers or reads_alone(), seed)


def save_pretrained(
    folder: Path | str,
    config: DecoderConfig,
    tensors: Mapping[str, Tensor],
    *,
    tokenizer_from: Path | str | None = None,
    max_file_bytes: int = MAX_FILE_BYTES,
) -> None:
    """Write a folder that transformers and vLLM load. `tensors` are all parameters under our names, of one type.

    The folder is made; publishing it whole is the caller's part.
    """
    dtype = str(tensors[parameters_of(config)[0].name].dtype).removeprefix("torch.")

    def whole(parameter: Parameter) -> np.ndarray:
        tensor = tensors[parameter.name].detach().cpu()
        return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()

    write_model(Path(folder), config, dtype, whole, tokenizer_from=tokenizer_from, max_file_bytes=max_file_bytes)


def load_adapters(
    config: DecoderConfig, folder: Path | str | None, *, seed: int = 0, readers: Readers | None = None
) -> Iterator[tuple[str, Tensor]]:
    """What a rank has of a model's adapters, out of a folder of PEFT's, or new, by the names that PEFT has for them; of
    new heads nothing. `config` has them. Raises DataError where the folder's are others."""
    readers, family = readers or reads_alone(), family_of(config)
    stored = {} if folder is None else adapter_tensors(Path(folder), config)
    found, new = [], []
    for parameter in parameters_of(config):
        pieces = family.pieces(config, parameter)
        if all(piece.name in stored for piece in pieces):
            found.append(stored_pieces(parameter, pieces, stored, config.head_dim))
        elif parameter.name.endswith((DOWN, UP)):
            new.append((parameter, pieces[0].name))
    yield from read_together(Path(folder or ""), config, found, readers)
    for parameter, name in new:
        yield from parts_of(config, readers.cut, [(parameter.name, initial(config, parameter, seed, name))])


def _parts(
    folder: Path, config: DecoderConfig, wanted: DecoderConfig, readers: Readers, seed: int
) -> Iterator[tuple[str, Tensor]]:
    """What a rank has of a folder's parameters, as far as the wanted model has them; what that one's head has beside
    them is random."""
    stored, family = checked_headers(folder, config), family_of(config)
    twins = twins_of(stored, config)
    due = {parameter.name: parameter for parameter in parameters_of(wanted)}
    found = []
    for parameter in parameters_of(config):
        if parameter.name in due and due[parameter.name].shape == parameter.shape:
            parameter = due.pop(parameter.name)
            twin = twins[1] if twins is not None and parameter.name == EMBEDDING else None
            found.append(stored_pieces(parameter, family.pieces(config, parameter), stored, config.head_dim, twin))
    yield from read_together(folder, wanted, found, readers)
    for name, parameter in due.items():
        yield from parts_of(wanted, readers.cut, [(name, initial(wanted, parameter, seed))])


def write_random_pretrained(
    folder: Path | str, config: DecoderConfig, seed: int, *, tokenizer_from: Path | str | None = None
) -> None:
    """A folder with a new model of random fp32 parameters, as a run's starting point."""
    save_pretrained(folder, config, dict(random_init(config, seed)), tokenizer_from=tokenizer_from)
