"""The rows that a rehearsed script has computed, in a file, which the second rehearsal reads as a resumed run does; and
their digests."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np

from hpcrl.data.samples import SequenceSample

Computed = Mapping[tuple[int, str], SequenceSample]
"""(step, call as asked for) → its rows, by keys of the graph."""


class RowsComputed(msgspec.Struct, frozen=True, tag=True):
    """A call of the script's own has made these: key → digest."""

    step: int
    call: str
    digests: dict[str, str]
    at: str = ""


def digests_of(made: SequenceSample) -> dict[str, str]:
    """By key of the graph."""
    return {
        key: hashlib.blake2b(made.data[key].tobytes() + repr(made.length(key)).encode(), digest_size=16).hexdigest()
        for key in made.keys
    }


def write_computed(file: Path, computed: Computed) -> None:
    """Put them into a file of numpy's."""
    arrays: dict[str, np.ndarray] = {}
    listed = []
    for number, ((step, call), made) in enumerate(computed.items()):
        listed.append((step, call, made.ids, made.keys))
        for key in made.keys:
            arrays[f"{number} {key}"] = made.data[key]
            arrays[f"{number} {key} lengths"] = np.array(made.length(key), np.int64)
    arrays["calls"] = np.frombuffer(json.dumps(listed).encode(), np.uint8)
    with open(file, "wb") as out:
        np.savez(out, **arrays)  # type: ignore[arg-type]


def read_computed(file: Path, step: int) -> Computed:
    """Those of a step."""
    found = {}
    with np.load(file, allow_pickle=False) as arrays:
        for number, (of_step, call, ids, keys) in enumerate(json.loads(arrays["calls"].tobytes())):
            if of_step == step:
                rows = {
                    key: np.split(arrays[f"{number} {key}"], np.cumsum(arrays[f"{number} {key} lengths"])[:-1])
                    for key in keys
                }
                found[of_step, call] = SequenceSample.from_rows(ids, rows)
    return found
