"""All logs of a run as one, in the order of time: the master's events, and each worker's and agent's events and output.

What a process printed carries no time; it stands where its file was last written, or, while the log is followed, when
it was seen.
"""

import heapq
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from hpcrl.durable.rundir import RunDirectory
from hpcrl.inspect.lines import Row, Tail, parse

FOLLOW_POLL_S = 0.3
FILES_READ_PER_S = 200
"""What a run with thousands of workers may cost the file server while somebody follows its logs."""
MASTER = "master"


@dataclass(frozen=True, order=True)
class LogLine:
    """One line of one process."""

    time: float
    attempt: int
    process: str
    number: int
    text: str
    kind: str = "event"

    def __str__(self) -> str:
        clock = datetime.fromtimestamp(self.time).strftime("%H:%M:%S.%f")[:-3]
        mark = "│" if self.kind == "event" else f"│ {self.kind}:"
        return f"{clock} a{self.attempt:03d} {self.process:<9} {mark} {self.text}"


class Source:
    """One file of one process. A line without a time has that of the line before it, or of the file."""

    def __init__(self, attempt: int, process: str, path: Path) -> None:
        self.process = process
        self._attempt = attempt
        self._kind = "event" if path.suffix == ".jsonl" else path.suffix.removeprefix(".")
        self._tail = Tail(path)
        self._number = 0
        self._time = 0.0

    def read(self) -> list[LogLine]:
        """What was added since the last call, by time."""
        lines = []
        texts = self._tail.lines()
        written = self._tail.path.stat().st_mtime if texts else 0.0
        for text in texts:
            row = parse(text) if self._kind == "event" else None
            when = written if row is None else row.get("time", self._time)
            self._time = max(self._time, float(when))
            self._number += 1
            shown = text if row is None else describe(row)
            lines.append(LogLine(self._time, self._attempt, self.process, self._number, shown, self._kind))
        return lines


class Logs:
    """The log files of a run, found anew at each reading, since attempts and workers come."""

    def __init__(self, run: RunDirectory, process: str | None = None) -> None:
        self._run = run
        self._process = process
        self._sources: dict[Path, Source] = {}

    def read(self) -> list[LogLine]:
        """What was added since the last call, of all processes, by time."""
        self._find()
        return list(heapq.merge(*(source.read() for source in self._sources.values())))

    @property
    def files(self) -> int:
        return len(self._sources)

    def _find(self) -> None:
        for attempt in self._run.numbers():
            events = self._run.events(attempt)
            self._sources.setdefault(events, Source(attempt, MASTER, events))
            logs = self._run.logs(attempt)
            for path in sorted(logs.iterdir()) if logs.is_dir() else ():
                if path.suffix in (".jsonl", ".out", ".err"):
                    self._sources.setdefault(path, Source(attempt, path.stem, path))
        if self._process is not None:
            self._sources = {path: source for path, source in self._sources.items() if source.process == self._process}


def merged(run: RunDirectory, process: str | None = None) -> list[LogLine]:
    """Everything that all processes (or the one named, e.g. worker-1) have logged, by time."""
    return Logs(run, process).read()


def follow(run: RunDirectory, ended: Callable[[], bool], process: str | None = None) -> Iterator[LogLine]:
    """What is there, then what comes, until `ended` says that nothing more will."""
    logs = Logs(run, process)
    while True:
        last_round = ended()
        yield from logs.read()
        if last_round:
            return
        time.sleep(max(FOLLOW_POLL_S, logs.files / FILES_READ_PER_S))


def describe(row: Row) -> str:
    """An event in one line: its name, then its fields; a traceback stands below."""
    fields = {key: value for key, value in row.items() if key not in ("time", "event", "traceback")}
    shown = " ".join(f"{key}={_show(value)}" for key, value in fields.items())
    traceback = str(row.get("traceback", "")).rstrip()
    text = f"{row.get('event', '?')} {shown}".rstrip()
    return f"{text}\n{traceback}" if traceback else text


def _show(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text if text and " " not in text else json.dumps(text, ensure_ascii=False)
