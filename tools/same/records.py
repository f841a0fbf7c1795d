"""Reads the files of a run into flat mappings from name to value. Knows file formats, not hpcrl."""

import io
import json
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import h5py
import numpy as np

Fields = dict[str, Any]
"""Names such as `record.lr[2]` or `array master`, with plain values or arrays."""

_DTYPES: Mapping[str, str] = MappingProxyType(
    {
        "BOOL": "?",
        "U8": "u1",
        "I8": "i1",
        "U16": "<u2",
        "I16": "<i2",
        "F16": "<f2",
        "BF16": "<u2",
        "U32": "<u4",
        "I32": "<i4",
        "F32": "<f4",
        "U64": "<u8",
        "I64": "<i8",
        "F64": "<f8",
    }
)
"""From safetensors to numpy, which lacks bfloat16: its bits are read as integers."""


def flat(value: Any, name: str = "") -> Fields:
    """The leaves of a JSON value by dotted name; an empty list or mapping is a leaf."""
    if isinstance(value, dict) and value:
        return {key: leaf for part, held in value.items() for key, leaf in flat(held, _below(name, part)).items()}
    if isinstance(value, list) and value:
        return {key: leaf for i, held in enumerate(value) for key, leaf in flat(held, f"{name}[{i}]").items()}
    return {name: value}


def json_fields(data: bytes) -> Fields:
    return flat(json.loads(data))


def safetensors_fields(data: bytes) -> Fields:
    """The arrays, and the header's metadata; a value there that is JSON itself is taken apart."""
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    fields = flat({name: _unpacked(text) for name, text in header.pop("__metadata__", {}).items()})
    for name, entry in header.items():
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        fields[f"array {name}"] = np.frombuffer(data[begin:end], _DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return fields


def hdf5_fields(data: bytes) -> Fields:
    """The datasets of all groups."""
    fields: Fields = {}

    def take(name: str, found: h5py.Group | h5py.Dataset) -> None:
        if isinstance(found, h5py.Dataset):
            fields[f"dataset {name}"] = np.asarray(found[()])

    with h5py.File(io.BytesIO(data), "r") as file:
        file.visititems(take)
    return fields


def npy_fields(data: bytes) -> Fields:
    return {"array": np.load(io.BytesIO(data), allow_pickle=False)}


def text_fields(data: bytes) -> Fields:
    return {f"line {number}": line for number, line in enumerate(data.decode().splitlines(), start=1)}


READERS: Mapping[str, Callable[[bytes], Fields]] = MappingProxyType(
    {
        ".json": json_fields,
        ".safetensors": safetensors_fields,
        ".h5": hdf5_fields,
        ".npy": npy_fields,
        ".jsonl": text_fields,
        ".txt": text_fields,
    }
)


def fields_of(path: Path, data: bytes) -> Fields:
    """The content of a file, read as its suffix says, or else its bytes."""
    try:
        return READERS[path.suffix](data)
    except Exception:  # a damaged file may fail in any way
        return {"bytes": data}


def metric_rows(data: bytes) -> dict[str, Fields]:
    """The rows of `metrics.jsonl` by step, or by line where a line has none; an unfinished last line is left out."""
    found: dict[str, Fields] = {}
    for number, line in enumerate(data.rpartition(b"\n")[0].splitlines(), start=1):
        row = json_line(line)
        found[f"step {row['step']}" if "step" in row else f"line {number}"] = row
    return found


def json_line(line: bytes) -> Fields:
    """The fields of a JSON line; a line that is no JSON is one field."""
    try:
        return flat(json.loads(line))
    except ValueError:
        return {"text": line.decode(errors="replace")}


def _below(name: str, part: str) -> str:
    return f"{name}.{part}" if name else part


def _unpacked(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
