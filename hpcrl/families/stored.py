"""The tensors of a model folder, by the headers of its safetensors files. Reads no weights, needs no torch."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from hpcrl.errors import DataError
from hpcrl.families.config import DecoderConfig, HeadKind
from hpcrl.families.headers import StoredTensor, headers, naming, weight_map
from hpcrl.families.reader import family_of, parameters_of
from hpcrl.families.tensors import widened

NUMBERS: Mapping[str, str] = {"F64": "float64", "F32": "float32", "BF16": "bfloat16", "F16": "float16"}
"""What tensors may be stored as; others need a scale that lies elsewhere."""
_NUMPY = {"F64": "<f8", "F32": "<f4", "BF16": "<u2", "F16": "<f2"}
"""What numpy has their numbers in (of bf16 the bits)."""
HEAD = "lm_head.weight"
"""A tied model's output matrix, where its files have a copy of the embedding under this name."""
_SHOWN = 8
_BLOCK = 16 << 20  # bytes


def check_tensors(folder: Path, config: DecoderConfig, wanted: HeadKind | None = None, trained: bool = False) -> None:
    """Whether a folder holds the model of its config.json, and whether that can be had under the `wanted` head.

    Raises DataError with each tensor that is missing, strange, of another shape or of numbers that cannot be read.
    """
    refuse_other_head(folder, config, wanted, trained)
    stored = checked_headers(folder, config)
    twins = twins_of(stored, config)
    if twins is not None:
        both = zip(*(_blocks(folder / tensor.file, tensor.name) for tensor in twins), strict=True)
        if not all(one == other for one, other in both):
            raise untied(folder, *twins)


def checked_headers(folder: Path, config: DecoderConfig) -> dict[str, StoredTensor]:
    """What the headers say of a model's tensors, by the names that its family gives them. Reads no weights.

    Raises DataError with each tensor that is missing, strange, of another shape or of numbers that cannot be read.
    """
    stored, ignored = headers(folder, tensor_places(folder, config)), family_of(config).ignored
    others = {name for name in stored.keys() - shapes(config).keys() if not name.endswith(ignored)}
    problems = [*_strangers(folder, others), *_misfits(folder, stored, config)]
    if problems:
        more = [f"… and {len(problems) - _SHOWN} more such tensors."] if len(problems) > _SHOWN else []
        raise DataError("\n".join([*problems[:_SHOWN], *more]))
    pair = twins_of(stored, config)
    if pair is not None and (pair[0].shape, pair[0].dtype) != (pair[1].shape, pair[1].dtype):
        raise untied(folder, *pair)
    return stored


def twins_of(stored: Mapping[str, StoredTensor], config: DecoderConfig) -> tuple[StoredTensor, StoredTensor] | None:
    """A tied model's embedding and the copy that its files have of it; None where they have none."""
    if not config.shares_embedding or HEAD not in stored:
        return None
    parameter = next(it for it in parameters_of(config) if it.name == "layers.0.embedding")
    return stored[family_of(config).pieces(config, parameter)[0].name], stored[HEAD]


def untied(folder: Path, embedding: StoredTensor, head: StoredTensor) -> DataError:
    """Of an output matrix of its own, where config.json says that the embedding is it."""
    return DataError(
        f"{folder / 'config.json'}: tie_word_embeddings is true, but {HEAD} differs from {embedding.name}, and one of "
        f"the two would be ignored. Set tie_word_embeddings to false, or remove {HEAD} from {head.file}."
    )


def refuse_other_head(folder: Path, config: DecoderConfig, wanted: HeadKind | None, trained: bool) -> None:
    """Only a value head may be one that the folder does not have, and a reward head that is to be `trained`. Raises
    DataError."""
    made_up = ("value", "reward") if trained else ("value",)
    if wanted not in (None, config.head, *made_up):
        raise DataError(
            f"{folder / 'config.json'}: architectures names a model with a {config.head} head; "
            f"one with a {wanted} head is needed."
        )


def tensor_places(folder: Path, config: DecoderConfig) -> dict[str, tuple[str, str]]:
    """By the names that the model's family gives its tensors: the file, and the name there."""
    prefix, known, named = family_of(config).prefix, shapes(config), weight_map(folder)
    short = {name for name in named if prefix + name in known and prefix + name not in named}
    return {prefix + name if name in short else name: (file, name) for name, file in named.items()}


def read_tensor(folder: Path, file: str, name: str) -> np.ndarray:
    """A tensor in its shape, in at least fp32. Raises DataError."""
    path = folder / file
    with naming(path), path.open("rb") as opened:
        size = int.from_bytes(opened.read(8), "little")
        header = json.loads(opened.read(size))[name]
        begin, end = header["data_offsets"]
        opened.seek(8 + size + begin)
        numbers = np.frombuffer(opened.read(end - begin), _NUMPY[header["dtype"]])
    return widened(numbers).reshape(header["shape"])


def shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """The tensors that a model is made of, and their shapes in its files."""
    family = family_of(config)
    pieces = ((piece, parameter) for parameter in parameters_of(config) for piece in family.pieces(config, parameter))
    return {piece.name: piece.stored_shape(parameter) for piece, parameter in pieces}


def _strangers(folder: Path, names: set[str]) -> Iterator[str]:
    """Tied checkpoints may hold a copy of the embedding; anything else is mathematics."""
    strange = sorted(names - {HEAD})
    if strange:
        more = " …" if len(strange) > _SHOWN else ""
        yield (f"{folder} has tensors that its config.json does not account for: {', '.join(strange[:_SHOWN])}{more}.")


def _blocks(path: Path, name: str) -> Iterator[bytes]:
    """The bytes of a tensor as they are stored."""
    with naming(path), path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        begin, end = json.loads(file.read(size))[name]["data_offsets"]
        file.seek(8 + size + begin)
        for start in range(begin, end, _BLOCK):
            yield file.read(min(_BLOCK, end - start))


def _misfits(folder: Path, stored: Mapping[str, StoredTensor], config: DecoderConfig) -> Iterator[str]:
    for name, shape in shapes(config).items():
        tensor = stored.get(name)
        if tensor is None:
            yield f"{folder} has no tensor {name}, which its config.json calls for."
        elif tensor.shape != shape:
            yield f"{folder / tensor.file}: {tensor.name} is {list(tensor.shape)}; config.json makes it {list(shape)}."
        elif tensor.dtype not in NUMBERS:
            supported = ", ".join(NUMBERS.values())
            yield f"{folder / tensor.file}: {tensor.name} is stored as {tensor.dtype}; supported are {supported}."
