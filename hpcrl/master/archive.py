"""What steps made of their samples, as lines of JSON that people and programs read, in a file for each step.

Written behind the work, before the step closes, so that a closed step has its file and no sample a second line. Knows
no units and no order: it is told which spills a step has.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from hpcrl.data.datasets import open_texts
from hpcrl.data.form import TOKENS
from hpcrl.data.rows.kind import Dataset
from hpcrl.data.samples import SequenceSample
from hpcrl.durable.files import FileRef
from hpcrl.durable.journal import Ids
from hpcrl.durable.rundir import RunDirectory
from hpcrl.durable.spills import SpillRef, read_spill
from hpcrl.recipes.algorithm import algorithm_of


class Archive:
    """Makes the files of one attempt. A line is the row's record, the sample's name, and a field for each key."""

    def __init__(self, run: RunDirectory, attempt: int, experiment: Any, datasets: Mapping[str, Dataset]) -> None:
        algorithm = algorithm_of(experiment)
        self._run = run
        self._attempt = attempt
        self._fields = algorithm.archived
        self._forms = algorithm.forms(experiment)
        self._makers = {
            key: call.name for call in algorithm.calls(experiment) for key in call.outputs if key in self._fields
        }
        self._texts = open_texts(experiment, datasets)

    def write(self, step: int, ids: Ids, parts: Mapping[tuple[str, int], SpillRef]) -> FileRef:
        """Publish the file of a step with these samples. `parts` are the spills of all its units, by call and part."""
        found = {key: self._rows(key, parts) for key in self._makers}
        lines = [json.dumps(self._line(sample, found), ensure_ascii=False) + "\n" for sample in ids]
        return self._run.files.publish(self._run.step_samples(step, self._attempt), "".join(lines).encode(), "samples")

    def _rows(self, key: str, parts: Mapping[tuple[str, int], SpillRef]) -> dict[str, list[np.ndarray]]:
        """Sample → its sub-sequences under a key, part by part."""
        rows: dict[str, list[np.ndarray]] = {}
        for (call, _), spill in sorted(parts.items()):
            if call == self._makers[key]:
                made = self._read(key, spill)
                rows.update(zip(made.ids, made.parts(key), strict=True))
        return rows

    def _read(self, key: str, spill: SpillRef) -> SequenceSample:
        return read_spill(self._run.files.path(spill.file), spill.group, [key])

    def _line(self, sample: str, found: Mapping[str, Mapping[str, list[np.ndarray]]]) -> dict[str, Any]:
        made = {self._fields[key]: self._value(key, rows[sample]) for key, rows in found.items()}
        return {**self._texts.record("train", sample), "sample": sample, **made}

    def _value(self, key: str, parts: list[np.ndarray]) -> Any:
        """Tokens as text; a lone text or number as itself, several as a list."""
        if self._forms[key] == TOKENS:
            values = [self._texts.decode(part) for part in parts]
        else:
            values = [_json(number) for part in parts for number in part.tolist()]
        return values[0] if len(values) == 1 else values


def _json(number: Any) -> Any:
    """JSON has no NaN: a number that there is none of is null."""
    return None if isinstance(number, float) and not math.isfinite(number) else number
