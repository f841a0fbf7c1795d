"""How many numbers the folder of a classifier has that transformers loads, by its files. Reads no weights."""

import json
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any


def numbers_of_classifier(folder: Path, fields: Mapping[str, Any]) -> int:
    """By the headers of its safetensors files; a pickle is not opened, so it goes by its size and the type in
    config.json."""
    if files := [*folder.glob("*.safetensors")]:
        return sum(map(_numbers_in, files))
    dtype = str(fields.get("dtype") or fields.get("torch_dtype") or "float32")
    number_bytes = {"float16": 2, "bfloat16": 2, "float64": 8}.get(dtype, 4)
    return sum(file.stat().st_size for file in folder.glob("pytorch_model*.bin")) // number_bytes


def _numbers_in(file: Path) -> int:
    """How many numbers a safetensors file has, by its header."""
    with file.open("rb") as opened:
        header = json.loads(opened.read(int.from_bytes(opened.read(8), "little")))
    return sum(prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")
