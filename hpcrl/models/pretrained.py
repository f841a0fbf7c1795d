"""Hugging Face folders in, as tensors, and out. Never imports transformers."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from hpcrl.durable.model_folder import MAX_FILE_BYTES, write_model
from hpcrl.errors import ConfigurationError, DataError
from hpcrl.families import reader
from hpcrl.families.adapter_files import adapter_tensors
from hpcrl.families.adapters import DOWN, UP
from hpcrl.families.config import DecoderConfig, HeadKind
from hpcrl.families.family import Parameter, Piece
from hpcrl.families.headers import naming
from hpcrl.families.places import Place, Span
from hpcrl.families.reader import Kind, family_of, parameters_of
from hpcrl.families.stored import check_tensors, refuse_other_head, tensor_places
from hpcrl.models.init import initial, random_init
from hpcrl.models.parts import parts_of
from hpcrl.models.rotary import interleave
from hpcrl.placement.shards import WHOLE, Cut, Held, held

EVERYTHING = slice(None)
Bounds = tuple[int, int]
"""The first, and the one behind the last."""


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
    cut: Cut = WHOLE,
) -> tuple[DecoderConfig, Iterator[tuple[str, Tensor]]]:
    """A folder's configuration, and its parameters under our names, or what a rank has of them, read from disk one by
    one as they are asked for.

    Under another `head` than the folder's it keeps the trunk. Only a value head, or one for rewards that is to be
    `trained`, may be one that the folder does not have: it is random from `seed`. Raises DataError where another head
    is wanted and not there, and where a tensor is missing, has another shape than the configuration says, or is not
    part of it.
    """
    config = read_config(folder, family, kind).with_experts_cut(experts)
    wanted = config.with_head(head)
    refuse_other_head(Path(folder), config, head, trained)
    return wanted, _parts(Path(folder), config, wanted, cut, seed)


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
    config: DecoderConfig, folder: Path | str | None, *, seed: int = 0, cut: Cut = WHOLE
) -> Iterator[tuple[str, Tensor]]:
    """What a rank has of a model's adapters, out of a folder of PEFT's, or new, by the names that PEFT has for them; of
    new heads nothing. `config` has them. Raises DataError where the folder's are others."""
    parameters = parameters_of(config)
    stored = {} if folder is None else adapter_tensors(Path(folder), config)
    places = {name: (tensor.file, tensor.name) for name, tensor in stored.items()}
    files, family = _TensorFiles(Path(folder or ""), config, places), family_of(config)
    for parameter in parameters:
        pieces = family.pieces(config, parameter)
        if all(piece.name in stored for piece in pieces):
            yield from parts_of(config, cut, [(parameter.name, _whole(files, pieces))])
        elif parameter.name.endswith((DOWN, UP)):
            yield from parts_of(config, cut, [(parameter.name, initial(config, parameter, seed, pieces[0].name))])


class _TensorFiles:
    """The safetensors files of a folder, each open only while a tensor is read: what is mapped of one that stays open
    stays in memory. Raises DataError naming the file."""

    def __init__(self, folder: Path, config: DecoderConfig, places: Mapping[str, tuple[str, str]]) -> None:
        self._folder = folder
        self._head_dim = config.head_dim
        self._places = places

    def read(self, piece: Piece, rows: slice = EVERYTHING, columns: slice = EVERYTHING) -> Tensor:
        """These rows and columns of what a piece is in its parameter (a vector is one row), and nothing else. A
        rotary head is read whole."""
        file, stored = self._places[piece.name]
        with naming(self._folder / file), safe_open(self._folder / file, framework="pt") as opened:
            there = opened.get_slice(stored)
            if len(there.get_shape()) == 1:
                found = there[columns]
            else:
                found = there[columns, rows] if piece.transposed else there[rows, columns]
        if piece.paired:
            found = interleave(found, self._head_dim)
        return found.t() if piece.transposed else found


def _parts(
    folder: Path, config: DecoderConfig, wanted: DecoderConfig, cut: Cut, seed: int
) -> Iterator[tuple[str, Tensor]]:
    """What a rank has of a folder's parameters, as far as the wanted model has them; what that one's head has beside
    them is random."""
    check_tensors(folder, config)
    files, family = _TensorFiles(folder, config, tensor_places(folder, config)), family_of(config)
    holds = {part.parameter.name: part for part in held(wanted, cut)}
    due = {parameter.name: parameter for parameter in parameters_of(wanted) if parameter.name in holds}
    for parameter in parameters_of(config):
        name, pieces = parameter.name, family.pieces(config, parameter)
        if name not in due or due[name].shape != parameter.shape:
            continue
        del due[name]
        if cut.tp == 1 or parameter.tp_dim is None:
            yield name, _whole(files, pieces)
        else:
            yield name, _part(files, pieces, parameter, holds[name])
    for name, parameter in due.items():
        yield from parts_of(wanted, cut, [(name, initial(wanted, parameter, seed))])


def _whole(files: _TensorFiles, pieces: Sequence[Piece]) -> Tensor:
    """A parameter from all of its tensors."""
    matrices = []
    for _, alike in groupby(pieces, lambda piece: piece.matrix):
        parts = [files.read(piece) for piece in alike]
        matrices.append(parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1))
    return matrices[0] if pieces[0].matrix is None else torch.stack(matrices)


def _part(files: _TensorFiles, pieces: Sequence[Piece], parameter: Parameter, own: Held) -> Tensor:
    """What a rank has of a matrix or vector that is cut, of which it reads nothing else. Padding is zero."""
    width, part = parameter.shape[-1], torch.zeros(0)
    for span in _rectangular(own.spans, width):
        rows, columns = _rectangle(span.place, width)
        for piece, (top, bottom), (left, right) in _rectangles(pieces, parameter):
            above, below = max(top, rows.start), min(bottom, rows.stop)
            first, last = max(left, columns.start), min(right, columns.stop)
            if first >= last or above >= below:
                continue
            found = files.read(piece, slice(above - top, below - top), slice(first - left, last - left))
            if not len(part):
                part = torch.zeros(own.parameter.numel, dtype=found.dtype)
            step = span.step if span.place.rows > 1 else columns.stop - columns.start
            begin = span.offset + (above - rows.start) * step + first - columns.start
            part.as_strided((below - above, last - first), (step, 1), begin).copy_(found)
    return part.view(own.parameter.shape) if len(part) else torch.zeros(own.parameter.shape)


def _rectangles(pieces: Sequence[Piece], parameter: Parameter) -> Iterator[tuple[Piece, Bounds, Bounds]]:
    """The rows and columns of each piece; a parameter of several matrices has them one below another."""
    height = 1 if len(parameter.shape) == 1 else parameter.shape[-2]
    for matrix, alike in groupby(pieces, lambda piece: piece.matrix):
        top, right = height * (matrix or 0), 0
        for piece in alike:
            wide = piece.rows if piece.transposed or len(parameter.shape) == 1 else parameter.shape[-1]
            left, right = right, right + wide
            yield piece, (top, top + height), (left, right)


def _rectangular(spans: Iterable[Span], width: int) -> Iterator[Span]:
    """The same, those of several runs of whole rows run by run."""
    for span in spans:
        if span.place.rows > 1 and span.place.run > width:
            yield from (span.part(row, 1) for row in range(span.place.rows))
        else:
            yield span


def _rectangle(place: Place, width: int) -> tuple[slice, slice]:
    """The rows and columns of a place in a matrix of such rows; a vector has one row."""
    row, column = divmod(place.first, width)
    if place.rows == 1 and place.run > width:
        return slice(row, row + place.run // width), slice(0, width)
    return slice(row, row + place.rows), slice(column, column + place.run)


def write_random_pretrained(
    folder: Path | str, config: DecoderConfig, seed: int, *, tokenizer_from: Path | str | None = None
) -> None:
    """A folder with a new model of random fp32 parameters, as a run's starting point."""
    save_pretrained(folder, config, dict(random_init(config, seed)), tokenizer_from=tokenizer_from)
