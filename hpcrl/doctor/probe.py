"""What `hpcrl doctor` runs on every node: `python -m hpcrl.doctor.probe FOLDER`.

The probes find each other by greetings in the folder, which all nodes share. Each measures its own node, then the next
node in the ring as a reader of what that one writes, and connects to all others. It publishes result-N.json and goes on
answering until all results are there. Judges nothing.
"""

import contextlib
import errno
import os
import random
import resource
import socket
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from hpcrl.doctor.gpus import gpus_here
from hpcrl.doctor.measure_disk import measure_disk
from hpcrl.doctor.measurements import NodeMeasurements, PairMeasurements, Race, Replaced, Seen, node_name, software_here
from hpcrl.doctor.peer import (
    ATTEMPTS,
    Append,
    Asker,
    Attempt,
    Churn,
    Clock,
    Hello,
    Listener,
    Make,
    attempt,
    whole,
)
from hpcrl.durable.files import Files
from hpcrl.wire.address import address_of_this_node

GREETING_DEADLINE_S = 90.0
"""A directory's contents may be remembered for a minute on NFS (acdirmax)."""
FOLDER_DEADLINE_S = 30.0
SEEN_DEADLINE_S = 70.0
SEEN_ROUNDS = 5
LONG_S = 3.0
"""Who has waited this long once need not wait again to know it."""
RACES = 40
PINGS = 25
CHURN_S = 1.0
RECOVERIES = 5


def main(arguments: Sequence[str]) -> int:
    parser = ArgumentParser(prog="hpcrl.doctor.probe")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--index", type=int, default=int(os.environ.get("SLURM_PROCID") or 0))
    parser.add_argument("--count", type=int, default=int(os.environ.get("SLURM_STEP_NUM_TASKS") or 1))
    parser.add_argument("--deadline", type=float, default=SEEN_DEADLINE_S, help="seconds to wait for one file")
    given = parser.parse_args(arguments)
    os.umask(0o077)
    try:
        probe(given.folder, given.index, given.count, given.deadline)
    except OSError as error:
        print(f"{node_name()}: {error}", file=sys.stderr)
        return 1
    return 0


def probe(folder: Path, index: int, count: int, deadline_s: float = SEEN_DEADLINE_S) -> None:
    """Measure, publish, and stay until the others have measured too. Raises OSError where the folder is no use."""
    _find(folder)
    files = Files(folder)
    address = address_of_this_node()
    listener = Listener(index, address, folder)
    try:
        files.publish(folder / f"hello-{index}.json", msgspec.json.encode(listener.hello), "hello")
        measured = _this_node(folder, index, address)
        present = _await(files, "hello", count, GREETING_DEADLINE_S)
        hellos = [msgspec.json.decode(files.read(folder / name), type=Hello) for name in present]
        pairs = tuple(_pair(folder, index, hello, count, deadline_s) for hello in hellos if hello.index != index)
        absent = tuple(sorted(set(range(count)) - {hello.index for hello in hellos}))
        measured = msgspec.structs.replace(measured, pairs=pairs, absent=absent)
        files.publish(folder / f"result-{index}.json", msgspec.json.encode(measured), "result")
        _await(files, "result", len(hellos), 3 * deadline_s + GREETING_DEADLINE_S)
    finally:
        listener.close()


def _find(folder: Path) -> None:
    """The folder was made moments ago, on another node perhaps. Made here it would be shared with nobody."""
    until = time.monotonic() + FOLDER_DEADLINE_S
    while folder.name not in os.listdir(folder.parent) or not folder.is_dir():
        if time.monotonic() > until:
            raise FileNotFoundError(errno.ENOENT, "is not on this node", str(folder))
        time.sleep(0.1)


def _await(files: Files, kind: str, count: int, deadline_s: float) -> list[str]:
    """Names of the files of a kind, once there are so many; fewer after the deadline."""
    until = time.monotonic() + deadline_s
    while True:
        names = files.listing(files.root)
        found = [name for name in names if name.startswith(f"{kind}-") and name.endswith(".json")]
        # Without our own greeting: whoever asked has what he wants and has cleared away.
        if len(found) >= count or time.monotonic() > until or not names:
            return found
        time.sleep(0.05)


def _this_node(folder: Path, index: int, address: str) -> NodeMeasurements:
    return NodeMeasurements(
        index=index,
        name=node_name(),
        host=socket.gethostname(),
        boot_id=Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        address=address,
        cpus=len(os.sched_getaffinity(0)),
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        software=software_here(),
        disk=measure_disk(folder),
        gpus=gpus_here(),
    )


def _pair(folder: Path, index: int, hello: Hello, count: int, deadline_s: float) -> PairMeasurements:
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
        return _Pair(folder, f"{index}-{hello.index}", index, asker, deadline_s).measure(found)
    except OSError as error:
        return msgspec.structs.replace(found, error=error.strerror or str(error))
    finally:
        asker.close()


class _Pair:
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
