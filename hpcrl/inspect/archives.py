"""The archives of a run, as it believes them, and the samples in them as values. Writes nothing."""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import takewhile
from typing import Any

import msgspec
import numpy as np

from hpcrl.data.order import row_of
from hpcrl.durable.archives import (
    DETAILS,
    ENDED,
    ENDS,
    RECORD,
    TEXT,
    About,
    json_of,
    parts_by_key,
    read_archive,
    text_of,
)
from hpcrl.durable.files import is_temporary
from hpcrl.durable.journal import Archived
from hpcrl.durable.paths import step_of
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import DataError
from hpcrl.inspect.archive_lines import archived_lines

SINGULAR = {
    "prompts": "prompt",
    "responses": "response",
    "rewards": "reward",
    "judge_scores": "judge_score",
    "judge_texts": "judge",
}
"""What keys are called here of which a response has one."""

Figures = Mapping[str, float]


class Sample(msgspec.Struct, frozen=True):
    """A response, or what else a sample has; several responses to a prompt of an evaluation are as many."""

    step: int
    data_set: str
    """train or eval."""
    sample: str
    row: str
    number: int
    """Among the responses of the sample."""
    texts: dict[str, str]
    """By key, prompt and response among them."""
    figures: dict[str, float]
    """Reward, its components, what reward functions returned besides, lengths, and means over tokens; those that it
    has."""
    ended: str
    error: str
    """Why the response was dropped."""
    record: Any
    """The row of the data set."""
    columns: dict[str, list[float]]
    """What tokens have: ids, ends, log-probabilities, …, by the keys of the archive."""


class Archives:
    """Of one run, as of when this was made."""

    def __init__(self, run: RunDirectory) -> None:
        self.run = run
        self._lines: dict[int, Archived] = {}
        """By step, of those that were asked for."""

    @cached_property
    def archived(self) -> frozenset[int]:
        """Steps that are done with: also those of which no sample is kept."""
        self._lines |= {line.step: line for line in archived_lines(self.run)}
        return frozenset(self._lines)

    @property
    def steps(self) -> list[int]:
        """All that have an archive."""
        return sorted(step for step in self.archived if self._lines[step].samples is not None)

    def between(self, first: int, last: int | None = None) -> dict[int, Archived]:
        """The lines of the steps from one to another, or to the end, as far as they are done with."""
        found = {line.step: line for line in archived_lines(self.run, first, last)}
        listed = list(takewhile(lambda step: step >= first, self._listed()))
        if any(step not in found for step in listed[1:] if last is None or step <= last):
            # It came out of its turn. What is missing of the newest has no line yet.
            found = {
                step: self._lines[step] for step in self.archived if first <= step and (last is None or step <= last)
            }
        self._lines |= found
        return dict(sorted(found.items()))

    def newest_first(self) -> Iterator[int]:
        """The steps that have an archive, found one by one; of the newest the file may be missing."""
        listed = list(self._listed())
        if not listed:
            yield from reversed(self.steps)
            return
        yield from reversed([step for step in self.between(listed[0]) if self.has(step)])
        for step in listed[1:]:
            self.between(step, step)
            if self.has(step):
                yield step

    def is_done_with(self, step: int) -> bool:
        """Of a step that was asked for, whether what is kept of it is kept, if anything."""
        return step in self._lines

    def has(self, step: int) -> bool:
        """Of a step that was asked for, whether it has an archive."""
        return step in self._lines and self._lines[step].samples is not None

    def is_gone(self, step: int) -> bool:
        """Of a step that has an archive, whether somebody has deleted it."""
        ref = self._line(step).samples
        assert ref is not None, step
        try:
            self.run.files.path(ref).stat()
        except FileNotFoundError:
            return True
        except OSError:  # whoever reads it says so
            return False
        return False

    def lost(self, step: int) -> str:
        """Why something of a step that was asked for could not be archived; empty if all could."""
        return self._lines[step].lost if step in self._lines else ""

    def _line(self, step: int) -> Archived:
        """Of a step that is done with."""
        assert step in self._lines or step in self.archived, step
        return self._lines[step]

    def _listed(self) -> Iterator[int]:
        """The steps of which a file is there, the newest first; its line may be missing."""
        listing, root = self.run.files.listing, self.run.samples
        for folder in sorted(filter(str.isdecimal, listing(root)), key=int, reverse=True):
            numbers = (step_of(name) for name in listing(root / folder) if not is_temporary(name))
            yield from sorted({number for number in numbers if number is not None}, reverse=True)

    def samples(self, step: int) -> Iterator[Sample]:
        """Those of a step that has an archive. Raises DataError where it is not what was written."""
        ref = self._line(step).samples
        assert ref is not None, step
        if damage := self.run.files.damage(ref):
            raise DataError(f"{damage}.", "Look at other steps with --step.")
        about, groups = read_archive(self.run.files.path(ref))
        for data_set, group in sorted(groups.items(), reverse=True):
            for name, columns in parts_by_key(group):
                yield from _responses(about, data_set, name, columns)


def _responses(about: About, data_set: str, name: str, columns: Mapping[str, Sequence[np.ndarray]]) -> Iterator[Sample]:
    count = max(1, len(columns.get("responses", ())))
    for number in range(count):
        own = {key: parts[number if len(parts) == count else 0] for key, parts in columns.items() if parts}
        yield _sample(about, data_set, name, number, own)


def _sample(about: About, data_set: str, name: str, number: int, own: Mapping[str, np.ndarray]) -> Sample:
    details = json_of(own[DETAILS]) if DETAILS in own else None
    details = details or {}
    texts = {
        SINGULAR.get(key.removesuffix(TEXT), key.removesuffix(TEXT)): text_of(row)
        for key, row in own.items()
        if row.dtype == np.uint8 and key not in (DETAILS, ENDED, RECORD)
    }
    numbers = {key: row for key, row in own.items() if row.dtype != np.uint8}
    return Sample(
        step=about.step,
        data_set=data_set,
        sample=name,
        row=row_of(name),
        number=number,
        texts=texts,
        figures={key: value for key, value in _figures(about, numbers, details).items() if math.isfinite(value)},
        ended=text_of(own[ENDED]) if ENDED in own else "",
        error=details.get("error", ""),
        record=json_of(own[RECORD]),
        columns={key: row.reshape(-1).tolist() for key, row in numbers.items()},
    )


def _figures(about: About, numbers: Mapping[str, np.ndarray], details: Mapping[str, Any]) -> dict[str, float]:
    """The reward comes first, then what it consists of, what functions returned besides, and the rest."""
    judged = numbers.get("reward_components", np.zeros(0)).tolist()
    found: dict[str, float] = dict.fromkeys(("reward", *about.components), math.nan)
    found |= {str(name): float(value) for name, value in details.get("numbers", {}).items()}
    found |= dict(zip(about.components, judged, strict=False))
    for key, row in numbers.items():
        if key.endswith(ENDS) or row.size == 0:
            continue
        if key + ENDS in numbers:
            found["length" if key == "responses" else f"{SINGULAR.get(key, key)}_length"] = float(len(row))
        elif key not in ("reward_components", "token_rewards"):
            found[SINGULAR.get(key, key)] = float(row.mean(dtype=np.float64))
    if {"logprobs", "ref_logprobs"} <= numbers.keys() and len(numbers["logprobs"]):
        ratio = numbers["logprobs"].astype(np.float64) - numbers["ref_logprobs"]
        found["log_ratio"] = float(ratio.mean())
    return found
