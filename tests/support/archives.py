"""What runs have kept of their samples, as the newest attempt believes it."""

from typing import Any

import numpy as np

from hpcrl.durable.archives import parts_by_key, read_archive, text_of
from hpcrl.durable.history import read_history
from hpcrl.durable.journal import Archived, Closed
from hpcrl.durable.rundir import RunDirectory


def archive_lines(run: RunDirectory) -> dict[int, Archived]:
    """Step → the line of its archive; every closed step has one."""
    events = [line.event for line in read_history(run).lines]
    found = [event for event in events if isinstance(event, Archived)]
    assert len({event.step for event in found}) == len(found), "a step was archived twice"
    assert {event.step for event in found} == {event.step for event in events if isinstance(event, Closed)}
    return {event.step: event for event in found}


def archives(run: RunDirectory) -> dict[int, bytes]:
    """Step → its archive, of those that have one. The run is over, and nothing else is in samples/."""
    named = {event.samples.name for event in archive_lines(run).values() if event.samples is not None}
    assert named == {run.files.name(path) for path in run.samples.rglob("*") if path.is_file()}
    return kept_files(run)


def kept_files(run: RunDirectory) -> dict[int, bytes]:
    """As `archives`, of a run that may not be over."""
    events = [line.event for line in read_history(run).lines]
    found = [event for event in events if isinstance(event, Archived)]
    return {event.step: run.files.read_verified(event.samples) for event in found if event.samples is not None}


def kept_rows(run: RunDirectory, data_set: str = "train") -> list[tuple[int, str, dict[str, list[Any]]]]:
    """(step, sample, key → its sub-sequences), texts as texts and numbers as lists."""
    found = []
    for step, event in sorted(archive_lines(run).items()):
        if event.samples is not None:
            _, groups = read_archive(run.files.path(event.samples))
            if data_set in groups:
                found += [
                    (step, sample, {key: [_value(part) for part in parts] for key, parts in columns.items()})
                    for sample, columns in parts_by_key(groups[data_set])
                ]
    return found


def _value(part: np.ndarray) -> Any:
    return text_of(part) if part.dtype == np.uint8 else part.tolist()
