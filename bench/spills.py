"""A spill against a raw write and fsync of the same bytes, in turn on the same disk; wall time."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from figures import Figure, median

from hpcrl.data.samples import SequenceSample
from hpcrl.durable.files import Files
from hpcrl.durable.spills import write_spill

ROUNDS = 25
SAMPLES = 64
MEGABYTES = (0.1, 1.0, 10.0)


def spills(work: Path) -> list[Figure]:
    return [_spill(work, megabytes) for megabytes in MEGABYTES]


def _spill(work: Path, megabytes: float) -> Figure:
    files = Files(work)
    sample = _sample(int(megabytes * 1e6))
    image = work / "image"
    write_spill(files, image, sample)
    data = image.read_bytes()
    ours, theirs = [], []
    for number in range(ROUNDS):
        path = work / f"spill-{number}"
        ours.append(_seconds(lambda path=path: write_spill(files, path, sample)))
        path.unlink()
        theirs.append(_seconds(lambda: _raw_write(work / "raw", data)))
        (work / "raw").unlink()
    image.unlink()
    mine, raw = median(ours), median(theirs)
    detail = f"{mine * 1e3:.2f} ms and {raw * 1e3:.2f} ms, medians of {ROUNDS}"
    return Figure(f"spill of {megabytes:g} MB in raw writes with fsync", mine / raw, "×", "≤ 2", detail)


def _sample(size: int) -> SequenceSample:
    """Responses and log-probabilities, four bytes a token each."""
    tokens = size // 8 // SAMPLES
    draw = np.random.default_rng(0)
    rows = {
        "responses": [draw.integers(0, 4096, tokens, np.int32) for _ in range(SAMPLES)],
        "logprobs": [draw.standard_normal(tokens, np.float32) for _ in range(SAMPLES)],
    }
    return SequenceSample.from_rows([f"{i:03d}@0" for i in range(SAMPLES)], rows)


def _raw_write(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    os.write(descriptor, data)
    os.fsync(descriptor)
    os.close(descriptor)


def _seconds(action: Callable[[], object]) -> float:
    begun = time.perf_counter()
    action()
    return time.perf_counter() - begun
