"""Fingerprints of what a run reads, so that a resume can refuse, by name, what has changed."""

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from hpcrl.config.experiment import ExperimentConfig
from hpcrl.config.fields import sections_of
from hpcrl.config.model import models_of
from hpcrl.config.reward import RewardConfig
from hpcrl.data.rows.kind import RowKind
from hpcrl.data.user_code import is_installed, module_file
from hpcrl.errors import DataError

_BLOCK = 4 << 20  # bytes


def fingerprints(experiment: ExperimentConfig, rows: RowKind[Any]) -> dict[str, str]:
    """Setting → sizes and CRCs of the files that it names: rows, tokenizer, base weights, installed code of others.

    Weights are known by the first and last 4 MiB of each file, everything else by all of it.

    Raises:
        DataError: a file cannot be read.
    """
    return {setting: _of_files(setting, files) for setting, files in _inputs(experiment, rows) if files}


def _inputs(experiment: ExperimentConfig, rows: RowKind[Any]) -> Iterator[tuple[str, list[Path]]]:
    yield from rows.inputs(experiment)
    for role, model in models_of(experiment).items():
        folder = Path(model.path)
        yield f"{role}.path", [folder / "config.json", *sorted(folder.glob("*.safetensors"))]
    for role, reward in sections_of(experiment, RewardConfig).items():
        yield f"{role}.function", _installed(reward.function)


def _installed(function: str) -> list[Path]:
    """The file of a function of an installed module; what is the user's own is copied."""
    module = function.rpartition(":")[0]
    file = module_file(module) if module and "/" not in module else None
    return [file] if file is not None and is_installed(file) else []


def _of_files(setting: str, files: list[Path]) -> str:
    try:
        return " ".join(f"{path.name}:{path.stat().st_size}:{_crc(path):08x}" for path in files)
    except OSError as error:
        raise DataError(
            f"cannot read {error.filename}: {error.strerror}.", f"Set {setting} to what can be read."
        ) from error


def _crc(path: Path) -> int:
    crc = 0
    with path.open("rb") as file:
        if path.suffix == ".safetensors" and path.stat().st_size > 2 * _BLOCK:
            crc = zlib.crc32(file.read(_BLOCK))
            file.seek(-_BLOCK, 2)
        for block in _blocks(file):
            crc = zlib.crc32(block, crc)
    return crc


def _blocks(file: BinaryIO) -> Iterator[bytes]:
    while block := file.read(_BLOCK):
        yield block
