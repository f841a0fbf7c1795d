"""Archives: what stays of a step's samples, an HDF5 file a step that is laid out as spills are.

A group for the samples of each data set, `train` and `eval`, and the group `about`, which says in JSON what all samples
have in common. Of a sample there are the keys of the graph, without the prefix of an evaluation's, and for a key of
tokens its text (`responses.text`, UTF-8) and the character at which each token ends (`responses.ends`). `record` is the
row of the data set as JSON, `ended` says of each response why it did. A key that a sample lacks has no sub-sequence.

Who reads one needs neither tokenizer nor data set nor settings. The same samples make the same bytes.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from hpcrl.data.samples import SequenceSample
from hpcrl.durable.files import FileRef
from hpcrl.durable.rundir import RunDirectory
from hpcrl.durable.spills import read_groups, write_groups

TEXT, ENDS = ".text", ".ends"
RECORD, ENDED, DETAILS = "record", "ended", "reward_details"
ABOUT = "about"


class About(msgspec.Struct, frozen=True):
    """What the samples of an archive have in common. `components` are the names of a reward's components, in order."""

    step: int
    components: tuple[str, ...] = ()


def write_archive(run: RunDirectory, attempt: int, about: About, samples: Mapping[str, SequenceSample]) -> FileRef:
    """Publish the archive of a step: the samples of each data set."""
    told = SequenceSample.from_rows([ABOUT], {"json": [text_row(msgspec.json.encode(about))]})
    path = run.archive(about.step, attempt)
    return write_groups(run.files, path, {ABOUT: told, **dict(sorted(samples.items()))}, "archive")


def read_archive(path: Path) -> tuple[About, dict[str, SequenceSample]]:
    """What the samples have in common, and those of each data set. DamagedFileError where the file cannot be read."""
    groups = read_groups(path)
    about = msgspec.json.decode(groups.pop(ABOUT).data["json"].tobytes(), type=About)
    return about, groups


def text_row(text: str | bytes) -> np.ndarray:
    """A text as a row: uint8 [bytes]."""
    return np.frombuffer(text.encode("utf-8", "replace") if isinstance(text, str) else text, np.uint8)


def text_of(row: np.ndarray) -> str:
    """The text of a row; what is no UTF-8 is replaced."""
    return row.tobytes().decode("utf-8", "replace")


def json_of(row: np.ndarray) -> Any:
    """What a row of JSON says; None where it says nothing."""
    return msgspec.json.decode(row.tobytes()) if len(row) else None


def parts_by_key(sample: SequenceSample) -> Iterator[tuple[str, Mapping[str, Sequence[np.ndarray]]]]:
    """Per sample its id and, by key, its sub-sequences."""
    columns = {key: sample.parts(key) for key in sample.keys}
    for i, name in enumerate(sample.ids):
        yield name, {key: parts[i] for key, parts in columns.items()}
