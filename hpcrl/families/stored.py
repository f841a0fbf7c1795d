"""The tensors of a model folder, by the headers of its safetensors files. Reads no weights, needs no torch."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from hpcrl.errors import DataError
from hpcrl.families.config import DecoderConfig, HeadKind
from hpcrl.families.reader import family_of, parameters_of

NUMBERS: Mapping[str, str] = {"F64": "float64", "F32": "float32", "BF16": "bfloat16", "F16": "float16"}
"""What tensors may be stored as; others need a scale that lies elsewhere."""
HEAD = "lm_head.weight"
"""A tied model's output matrix, where its files have a copy of the embedding under this name."""
_SHOWN = 8
_BLOCK = 16 << 20  # bytes


@dataclass(frozen=True)
class StoredTensor:
    """What a header says of one tensor, and by which name."""

    name: str
    file: str
    shape: tuple[int, ...]
    dtype: str


def weight_map(folder: Path) -> dict[str, str]:
    """Tensor name → file. Raises DataError naming the file that is missing or damaged."""
    index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
    if index.is_file():
        named = read_json(index).get("weight_map")
        if not isinstance(named, dict) or not all(isinstance(file, str) for file in named.values()):
            raise DataError(f"{index} has no weight_map from tensor to file.", "Copy the whole folder again.")
        return named
    if not single.is_file():
        raise DataError(
            f"{folder} has neither model.safetensors nor model.safetensors.index.json.",
            "Save the model with safe_serialization=True, or change the model's path.",
        )
    with naming(single), safe_open(single, framework="np") as file:
        return dict.fromkeys(file.keys(), single.name)


def check_tensors(folder: Path, config: DecoderConfig, wanted: HeadKind | None = None, trained: bool = False) -> None:
    """Whether a folder holds the model of its config.json, and whether that can be had under the `wanted` head.

    Raises DataError with each tensor that is missing, strange, of another shape or of numbers that cannot be read.
    """
    refuse_other_head(folder, config, wanted, trained)
    stored, ignored = _headers(folder, config), family_of(config).ignored
    others = {name for name in stored.keys() - shapes(config).keys() if not name.endswith(ignored)}
    problems = [*_strangers(folder, others), *_misfits(folder, stored, config)]
    if not problems and config.shares_embedding and HEAD in stored:
        problems += _untied(folder, stored, config)
    if problems:
        more = [f"… and {len(problems) - _SHOWN} more such tensors."] if len(problems) > _SHOWN else []
        raise DataError("\n".join([*problems[:_SHOWN], *more]))


def refuse_other_head(folder: Path, config: DecoderConfig, wanted: HeadKind | None, trained: bool) -> None:
    """Only a value head may be one that the folder does not have, and a reward head that is to be `trained`. Raises
    DataError."""
    made_up = ("value", "reward") if trained else ("value",)
    if wanted not in (None, config.head, *made_up):
        raise DataError(
            f"{folder / 'config.json'}: architectures names a model with a {config.head} head; "
            f"one with a {wanted} head is needed."
        )


@contextmanager
def naming(path: Path) -> Iterator[None]:
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


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises DataError."""
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


def tensor_places(folder: Path, config: DecoderConfig) -> dict[str, tuple[str, str]]:
    """By the names that the model's family gives its tensors: the file, and the name there."""
    prefix, known, named = family_of(config).prefix, shapes(config), weight_map(folder)
    short = {name for name in named if prefix + name in known and prefix + name not in named}
    return {prefix + name if name in short else name: (file, name) for name, file in named.items()}


def _headers(folder: Path, config: DecoderConfig) -> dict[str, StoredTensor]:
    places = tensor_places(folder, config)
    found: dict[str, StoredTensor] = {}
    for file in sorted({file for file, _ in places.values()}):
        with naming(folder / file), safe_open(folder / file, framework="np") as opened:
            for name, stored in ((name, stored) for name, (where, stored) in places.items() if where == file):
                header = opened.get_slice(stored)
                found[name] = StoredTensor(stored, file, tuple(header.get_shape()), header.get_dtype())
    return found


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


def _untied(folder: Path, stored: Mapping[str, StoredTensor], config: DecoderConfig) -> Iterator[str]:
    """An output matrix of its own, where config.json says that the embedding is it."""
    parameter = next(it for it in parameters_of(config) if it.name == "layers.0.embedding")
    embedding = family_of(config).pieces(config, parameter)[0].name
    pair = [stored[name] for name in (embedding, HEAD)]
    if pair[0].shape == pair[1].shape and pair[0].dtype == pair[1].dtype:
        both = zip(*(_blocks(folder / tensor.file, tensor.name) for tensor in pair), strict=True)
        if all(one == other for one, other in both):
            return
    yield (
        f"{folder / 'config.json'}: tie_word_embeddings is true, but {HEAD} differs from {embedding}, and one of the "
        f"two would be ignored. Set tie_word_embeddings to false, or remove {HEAD} from {pair[1].file}."
    )


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
