"""Fingerprints of what a run reads, so that a resume can refuse, by name, what has changed."""

import importlib.util
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from hpcrl.config.experiment import Experiment, ToyExperiment
from hpcrl.config.model import models_of
from hpcrl.data.tokens import SAYS_THE_END
from hpcrl.errors import DataError

_BLOCK = 4 << 20  # bytes


def fingerprints(experiment: Experiment) -> dict[str, str]:
    """Setting → sizes and CRCs of the files that it names: data sets, tokenizer, base weights, the reward's file.

    Weights are known by the first and last 4 MiB of each file, everything else by all of it.

    Raises:
        DataError: a file cannot be read.
    """
    return {setting: _of_files(setting, files) for setting, files in _inputs(experiment) if files}


def _inputs(experiment: Experiment) -> Iterator[tuple[str, list[Path]]]:
    if isinstance(experiment, ToyExperiment):
        return
    data = experiment.data
    yield "data.train", [Path(data.train)]
    if data.evaluate is not None:
        yield "data.evaluate", [Path(data.evaluate)]
    tokenizer = Path(data.tokenizer or experiment.actor.path)
    said = [tokenizer / name for name in SAYS_THE_END if (tokenizer / name).is_file()]
    yield "data.tokenizer", [tokenizer / "tokenizer.json", *said]
    for role, model in models_of(experiment).items():
        folder = Path(model.path)
        yield f"{role}.path", [folder / "config.json", *sorted(folder.glob("*.safetensors"))]
        yield f"{role}.family", _source_of(model.family or "")
        yield f"{role}.backend", _source_of(model.backend)
    yield "reward.function", _source_of(experiment.reward.function)


def _source_of(function: str) -> list[Path]:
    """The file of a user's function, given as `file.py:function` or `module:function`; none of hpcrl's own."""
    place, colon, _ = function.rpartition(":")
    if not colon:
        return []
    if place.endswith(".py"):
        return [Path(place)]
    package, *inner = place.split(".")
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        return []
    if not inner:
        return [Path(found.origin)]
    path = Path(found.origin).parent.joinpath(*inner)
    return [file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()]


def _of_files(setting: str, files: list[Path]) -> str:
    try:
        return " ".join(f"{path.name}:{path.stat().st_size}:{_crc(path):08x}" for path in files)
    except OSError as error:
        raise DataError(
            f"cannot read {error.filename} ({error.strerror}); set {setting} to what can be read"
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
