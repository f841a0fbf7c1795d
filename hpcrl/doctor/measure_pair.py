"""What one node finds out about another: whether it is reached, its clock, and when its files are seen here.

The other does at once what it is asked over TCP (`peer`), and this one looks at the folder that both share.
"""

import contextlib
import errno
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from hpcrl.doctor.measurements import PairMeasurements, Race, Replaced, Seen
from hpcrl.doctor.peer import ATTEMPTS, Append, Asker, Attempt, Churn, Clock, Hello, Make, attempt, whole

SEEN_ROUNDS = 5
LONG_S = 3.0
"""Who has waited this long once need not wait again to know it."""
RACES = 40
PINGS = 25
CHURN_S = 1.0
RECOVERIES = 5


def measure_pair(folder: Path, index: int, hello: Hello, count: int, deadline_s: float) -> PairMeasurements:
    """This node as the reader of another, if that is the next one, else only whether it can be reached."""
    begun = time.monotonic()
    try:
        asker = Asker(hello)
        asker.ask(Clock())
    except OSError as error:
        reason = f"{hello.address}:{hello.port}: {error.strerror or error}"
        return PairMeasurements(other=hello.index, connect_s=None, connect_error=reason)
    found = PairMeasurements(other=hello.index, connect_s=time.monotonic() - begun)
    try:
        if hello.index != (index + 1) % count:
            return found
        return PairReader(folder, f"{index}-{hello.index}", index, asker, deadline_s).measure(found)
    except OSError as error:
        return msgspec.structs.replace(found, error=error.strerror or str(error))
    finally:
        asker.close()


class PairReader:
    """The reading side of two nodes. `mark` keeps its names apart from those of other pairs."""

    def __init__(self, folder: Path, mark: str, index: int, asker: Asker, deadline_s: float) -> None:
        self._folder = folder
        self._mark = mark
        self._index = index
        self._asker = asker
        self._deadline_s = deadline_s
        self._round_trip_s = 0.0

    def measure(self, found: PairMeasurements) -> PairMeasurements:
        ahead_s, self._round_trip_s = self._clock()
        return msgspec.structs.replace(
            found,
            clock_ahead_s=ahead_s,
            round_trip_s=self._round_trip_s,
            seen=tuple(self._seen(how) for how in ("list", "open", "append")),
            races=tuple(self._race(how) for how in ATTEMPTS),
            replaced=self._replaced(),
        )

    def _clock(self) -> tuple[float, float]:
        """Of the quickest of some questions, when the answer can have been delayed least."""
        answers = []
        for _ in range(PINGS):
            before, begun = time.time(), time.monotonic()
            other = self._asker.ask(Clock()).time
            took = time.monotonic() - begun
            answers.append((took, other - (before + took / 2)))
        took, ahead = min(answers)
        return ahead, took

    def _seen(self, how: str) -> Seen:
        seconds: list[float | None] = []
        for number in range(SEEN_ROUNDS):
            seconds.append(self._seen_once(how, f"{how}-{self._mark}-{number}"))
            if seconds[-1] is None or seconds[-1] > LONG_S:
                break
        return Seen(how, tuple(seconds))

    def _seen_once(self, how: str, name: str) -> float | None:
        """Look, so that what is there now is remembered; have the other change it; look until the change is seen."""
        path = self._folder / name
        if how == "append":
            self._wished(Make(name))
            self._until(lambda: _size(path) == 1)
            self._wished(Append(name))
            return self._until(lambda: _size(path) == 2)
        look: Callable[[], bool] = (lambda: _size(path) == 1) if how == "open" else self._listed(name)
        look()
        self._wished(Make(name))
        return self._until(look)

    def _listed(self, name: str) -> Callable[[], bool]:
        return lambda: name in os.listdir(self._folder)

    def _wished(self, wish: Make | Append) -> None:
        answer = self._asker.ask(wish)
        if answer.error:
            raise OSError(errno.EIO, f"the other node could not write: {answer.error}")

    def _until(self, look: Callable[[], bool]) -> float | None:
        begun = time.monotonic()
        pause = 0.001
        while not look():
            if time.monotonic() - begun > self._deadline_s:
                return None
            time.sleep(pause)
            pause = min(2 * pause, 0.1)
        return time.monotonic() - begun

    def _race(self, how: str) -> Race:
        counts = [0, 0, 0]
        for number in range(RACES):
            name = f"race-{how}-{self._mark}-{number}"
            mine = _Attempt(how, self._folder / name, self._index, random.uniform(0, self._round_trip_s))
            answer = self._asker.ask(Attempt(how, name), mine.make)
            if failed := mine.error or answer.error:
                return Race(how, counts[1], counts[0], counts[2], failed)
            counts[mine.done + answer.done] += 1
        return Race(how, counts[1], counts[0], counts[2])

    def _replaced(self) -> Replaced:
        name = f"churn-{self._mark}"
        path = self._folder / name
        self._asker.ask(Churn(name, CHURN_S))
        self._until(lambda: _size(path) is not None)
        reads = stale = missing = torn = lost = 0
        until = time.monotonic() + CHURN_S
        while time.monotonic() < until:
            reads += 1
            try:
                torn += not whole(_read_slowly(path))
            except OSError as error:
                if error.errno not in (errno.ESTALE, errno.ENOENT):
                    raise
                stale += error.errno == errno.ESTALE
                missing += error.errno == errno.ENOENT
                lost += not _recovers(path)
        return Replaced(reads, stale, missing, torn, lost)


class _Attempt:
    """This node's part of a race, a little after the other was told to run."""

    def __init__(self, how: str, path: Path, index: int, delay_s: float) -> None:
        self._how, self._path, self._index, self._delay_s = how, path, index, delay_s
        self.done = False
        self.error = ""

    def make(self) -> None:
        time.sleep(self._delay_s)
        try:
            self.done = attempt(self._how, self._path, self._index)
        except OSError as error:
            self.error = error.strerror or str(error)


def _size(path: Path) -> int | None:
    """By reading it, as hpcrl does; None if there is no such file, or its handle is stale."""
    try:
        return len(path.read_bytes())
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ESTALE):
            return None
        raise


def _read_slowly(path: Path) -> bytes:
    """In two pieces, so that the file is replaced while it is open."""
    with open(path, "rb", buffering=0) as file:
        first = file.read(1000)
        time.sleep(0.0005)
        return first + file.read()


def _recovers(path: Path) -> bool:
    for number in range(RECOVERIES):
        time.sleep(0.02 * 2**number)
        with contextlib.suppress(OSError):
            return whole(path.read_bytes())
    return False
