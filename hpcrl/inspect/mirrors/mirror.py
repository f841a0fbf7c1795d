"""A run's curves in the files of another program. What is there already is read back from those files alone, so that a
mirror that was killed goes on where it was: no step twice, none missing."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, get_args

from filelock import FileLock, Timeout

from hpcrl.config.control import MirrorProgram
from hpcrl.costs import StepCost
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ConfigurationError, DataError, MissingExtraError
from hpcrl.inspect.archives import Archives, Sample
from hpcrl.inspect.lines import Row
from hpcrl.inspect.reader import RunReader
from hpcrl.plugins import load

LOOK_S = 2.0
PROGRAMS = get_args(MirrorProgram)
"""Each has a file of its name here, which declares MIRROR."""


@dataclass(frozen=True)
class MirroredStep:
    """What is told of one step."""

    step: int
    time: float
    """Seconds since 1970, when it closed; when it was read where no row of costs says it."""
    values: dict[str, float]
    samples: list[Sample]
    """Those that the run archived of it."""


class Mirror(Protocol):
    """Files of one run, in one folder, of which nobody else writes any."""

    steps: set[int]
    """Those that are in the files."""
    shows_samples: bool
    """Whether it has a use for samples."""
    how_to_look: str
    """A command."""

    def write(self, step: MirroredStep) -> None:
        """All of a step or, if this process is killed, nothing of it."""
        ...

    def close(self) -> None: ...


def open_mirror(kind: str, run: RunDirectory, folder: Path) -> Mirror:
    """Raises MissingExtraError where the program's package is not installed."""
    try:
        made: Mirror = load(f"hpcrl.inspect.mirrors.{kind}:MIRROR")(run, folder)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != kind:
            raise
        raise MissingExtraError(kind, kind) from None
    return made


def values_of(row: Row, cost: StepCost | None) -> dict[str, float]:
    """A step's metrics, and what it cost: seconds of the step, tokens a second, seconds of the workers by call."""
    values = {
        key: float(value)
        for key, value in row.items()
        if key != "step" and isinstance(value, int | float) and not isinstance(value, bool)
    }
    if cost is not None:
        values |= {"time/step_s": cost.seconds, "time/tokens_per_s": cost.tokens / max(1e-9, cost.seconds)}
        values |= {f"time/{call}_workers_s": it.workers_s for call, it in cost.calls.items()}
    return values


class Told:
    """How far a mirror is. Looks at the run and tells the mirror what is new, in order of steps."""

    def __init__(self, run: RunDirectory, mirror: Mirror) -> None:
        self._reader = RunReader(run)
        self._mirror = mirror
        self._costs = {row.step: row for attempt in self._reader.attempts.values() for row in attempt.costs()}

    def look(self, over: bool) -> int:
        """How many steps were new. One whose samples are not archived yet waits, unless it is over."""
        self._reader.update()
        for attempt in self._reader.attempts.values():
            self._costs |= {row.step: row for row in attempt.activity.closed}
        new = [row for row in self._reader.rows() if row["step"] not in self._mirror.steps]
        archives = self._archives(new) if new and self._mirror.shows_samples else None
        told = 0
        for row in new:
            step, cost = row["step"], self._costs.get(row["step"])
            if archives is not None and not over and not archives.is_done_with(step):
                break
            samples = [] if archives is None or not archives.has(step) else _samples(archives, step)
            at = time.time() if cost is None else cost.time
            self._mirror.write(MirroredStep(step, at, values_of(row, cost), samples))
            self._mirror.steps.add(step)
            told += 1
        return told

    def _archives(self, rows: Sequence[Row]) -> Archives:
        """With the lines of these steps."""
        archives = Archives(self._reader.run)
        archives.between(rows[0]["step"], rows[-1]["step"])
        return archives


def _samples(archives: Archives, step: int) -> list[Sample]:
    """None of an archive that is damaged: the curves go on."""
    try:
        return list(archives.samples(step))
    except DataError:
        return []


@contextmanager
def mirroring(kind: str, run: RunDirectory, folder: Path) -> Iterator[Mirror]:
    """A mirror that is this process's alone. Raises ConfigurationError where another process has it."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = FileLock(folder / "lock", timeout=0, mode=0o600)
    try:
        lock.acquire()
    except Timeout:
        raise ConfigurationError([f"Another process mirrors a run into {folder}."], "Wait for it, or end it.") from None
    try:
        mirror = open_mirror(kind, run, folder)
        try:
            yield mirror
        finally:
            mirror.close()
    finally:
        lock.release()
