"""What the headers of a folder's safetensors files say. Reads no weights, knows no models."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from hpcrl.errors import DataError


@dataclass(frozen=True)
class StoredTensor:
    """What a header says of one tensor, and by which name."""

    name: str
    file: str
    shape: tuple[int, ...]
    dtype: str
    begin: int
    """Its first byte in the file."""


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


def headers(folder: Path, places: Mapping[str, tuple[str, str]]) -> dict[str, StoredTensor]:
    """Of tensors by any name, whose `places` are (file, name there). Raises DataError."""
    found: dict[str, StoredTensor] = {}
    for file in sorted({file for file, _ in places.values()}):
        with naming(folder / file), safe_open(folder / file, framework="np") as opened:
            begins = _begins(folder / file)
            for name, stored in ((name, stored) for name, (where, stored) in places.items() if where == file):
                header = opened.get_slice(stored)
                found[name] = StoredTensor(stored, file, tuple(header.get_shape()), header.get_dtype(), begins[stored])
    return found


def _begins(path: Path) -> dict[str, int]:
    """Tensor name → its first byte in a file whose header makes sense."""
    with path.open("rb", buffering=0) as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    return {name: 8 + size + said["data_offsets"][0] for name, said in header.items() if name != "__metadata__"}


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
