"""All logs of a run as one, in the order of time: the master's events, each worker's and agent's events and output, and
what the jobs of master and agents printed.

What a process printed carries no time; it stands where its file was last written, or, while the log is followed, when
it was seen. Files are read piece by piece: a log may be larger than memory.
"""

import heapq
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import msgspec

from hpcrl.durable.rundir import RunDirectory
from hpcrl.events import (
    AttemptEnded,
    CallFailed,
    CommandRefused,
    DrainBegun,
    Event,
    NodeLeaving,
    NotDeterministic,
    NumericsChanged,
    ReplayDrifted,
    RowsLeftOut,
    WorkerEnded,
)
from hpcrl.foreign import plain
from hpcrl.inspect.entries import entry_of
from hpcrl.inspect.lines import Tail
from hpcrl.member_events import MasterLost, MessageLost

FOLLOW_POLL_S = 0.3
FILES_READ_PER_S = 200
"""What a run with thousands of workers may cost the file server while somebody follows its logs."""
MASTER = "master"
NO_ATTEMPT = -1
"""Of what the jobs printed: a job may see several attempts."""

LEVELS = ("error", "warning", "info")
"""error: what failed, tracebacks. warning: also losses, ends of attempts, and all of stderr. info: everything."""
_WARNINGS = (
    CommandRefused
    | DrainBegun
    | MasterLost
    | MessageLost
    | NodeLeaving
    | NotDeterministic
    | NumericsChanged
    | ReplayDrifted
    | RowsLeftOut
)
_LEVELS_OF_ENDINGS = {"failed": "error", "done": "info"}
_TRACEBACK = "Traceback (most recent call last)"
_TELLS_OF_AN_ERROR = re.compile(
    r"\b(\w*(Error|Exception)|error|fatal|critical): |Segmentation fault|^Fatal Python error", re.IGNORECASE
)

_OF_SLURM = re.compile(r"(?:(?P<name>master|run)-\d+|workers-\d+_(?P<node>\d+))\.out")
_OF_SUBMITIT = re.compile(r"(?P<pid>\d+)_\d+_log\.(?:out|err)")
_SUBMITIT_ITSELF = "submitit INFO ("


@dataclass(frozen=True, order=True)
class LogLine:
    """One line of one process."""

    time: float
    attempt: int
    process: str
    number: int
    text: str
    kind: str = "event"
    level: str = "info"

    def __str__(self) -> str:
        clock = datetime.fromtimestamp(self.time).strftime("%H:%M:%S.%f")[:-3]
        mark = "│" if self.kind == "event" else f"│ {self.kind}:"
        attempt = " job" if self.attempt == NO_ATTEMPT else f"a{self.attempt:03d}"
        return f"{clock} {attempt} {self.process:<9} {mark} {plain(self.text)}"


@dataclass(frozen=True)
class LogFilter:
    """Which lines to show: all, unless told otherwise. The pattern is looked for in a line's text."""

    processes: frozenset[str] = frozenset()
    pattern: re.Pattern[str] | None = None
    level: str = "info"
    since: float = 0.0

    def is_from(self, process: str) -> bool:
        return not self.processes or process in self.processes

    def wants(self, line: LogLine) -> bool:
        return (
            line.time >= self.since
            and LEVELS.index(line.level) <= LEVELS.index(self.level)
            and (self.pattern is None or self.pattern.search(line.text) is not None)
        )


EVERYTHING = LogFilter()


class LogFile:
    """One file of one process. A line without a time has that of the line before it, or of the file."""

    def __init__(self, attempt: int, process: str, path: Path) -> None:
        self.process = process
        self._attempt = attempt
        self._kind = "event" if path.suffix == ".jsonl" else path.suffix.removeprefix(".")
        self._path = path
        self._tail = Tail(path)
        self._number = 0
        self._time = 0.0
        self._in_traceback = False

    def read(self, since: float = 0.0, to_the_end: bool = False) -> Iterator[LogLine]:
        """What was added since the last call, by time; with its torn last line, if nothing more comes.

        A file that was not written since `since` may be left out.
        """
        written = self._written()
        if written < since:
            return
        for text in self._tail.each():
            if not text.startswith(_SUBMITIT_ITSELF):
                yield self._line(text, written)
        if to_the_end and self._kind != "event" and (torn := self._tail.rest()):
            yield self._line(torn, written)

    def _line(self, text: str, written: float) -> LogLine:
        self._number += 1
        if self._kind == "event":
            return self._event(text)
        self._time = max(self._time, written)
        return self._made(text, self._level(text))

    def _event(self, text: str) -> LogLine:
        """What cannot be read is shown as it is."""
        entry = entry_of(text)
        if entry is None:
            return self._made(text, "warning")
        self._time = max(self._time, entry.time)
        return self._made(describe(entry.event), level_of(entry.event, self.process))

    def _made(self, text: str, level: str) -> LogLine:
        return LogLine(self._time, self._attempt, self.process, self._number, text, self._kind, level)

    def _level(self, text: str) -> str:
        """Of a line that is no event. A traceback goes on up to the line that names the exception."""
        begins = text.startswith(_TRACEBACK)
        is_alive = self._in_traceback and (not text.strip() or text.startswith((" ", "\t")))
        if begins or is_alive or self._in_traceback or _TELLS_OF_AN_ERROR.search(text):
            self._in_traceback = begins or is_alive
            return "error"
        return "warning" if self._kind == "err" else "info"

    def _written(self) -> float:
        try:
            return self._path.stat().st_mtime
        except FileNotFoundError:
            return 0.0


class Logs:
    """The log files of a run, found anew at each reading, since attempts and workers come."""

    def __init__(self, run: RunDirectory, wanted: LogFilter = EVERYTHING) -> None:
        self._run = run
        self._wanted = wanted
        self._sources: dict[Path, LogFile] = {}

    def read(self, to_the_end: bool = False) -> Iterator[LogLine]:
        """What was added since the last call and is wanted, of all processes, by time."""
        self._find()
        wanted = self._wanted
        sources = [source for source in self._sources.values() if wanted.is_from(source.process)]
        lines = heapq.merge(*(source.read(wanted.since, to_the_end) for source in sources))
        return (line for line in lines if wanted.wants(line))

    @property
    def files(self) -> int:
        return len(self._sources)

    def processes(self) -> list[str]:
        """Who has files, wanted or not."""
        self._find()
        return sorted({source.process for source in self._sources.values()})

    def _find(self) -> None:
        for attempt in self._run.numbers():
            self._add(attempt, MASTER, self._run.events(attempt))
            for path in _files(self._run.logs(attempt)):
                if path.suffix in (".jsonl", ".out", ".err"):
                    self._add(attempt, path.stem, path)
        for submission in self._run.submissions():
            jobs = {str(job): name for name, job in submission.jobs.items() if name != "group"}
            for path in _files(self._run.submitit_folder(submission.nonce)):
                process = _process_of(path.name, jobs)
                if process is not None:
                    self._add(NO_ATTEMPT, process, path)

    def _add(self, attempt: int, process: str, path: Path) -> None:
        if path not in self._sources:
            self._sources[path] = LogFile(attempt, process, path)


def merged(run: RunDirectory, wanted: LogFilter = EVERYTHING) -> Iterator[LogLine]:
    """What all processes have logged, by time."""
    return Logs(run, wanted).read(to_the_end=True)


def follow(run: RunDirectory, ended: Callable[[], bool], wanted: LogFilter = EVERYTHING) -> Iterator[LogLine]:
    """What is there, then what comes, until `ended` says that nothing more will."""
    logs = Logs(run, wanted)
    while True:
        last_round = ended()
        yield from logs.read(to_the_end=last_round)
        if last_round:
            return
        time.sleep(max(FOLLOW_POLL_S, logs.files / FILES_READ_PER_S))


def level_of(event: Event, process: str) -> str:
    """How bad an event is."""
    match event:
        case CallFailed():
            return "error"
        case WorkerEnded(how=how):
            # An agent also tells of workers that it was told to end.
            return "info" if how == "exit code 0" else "error" if process == MASTER else "warning"
        case AttemptEnded(state=state):
            return _LEVELS_OF_ENDINGS.get(state, "warning")
    return "warning" if isinstance(event, _WARNINGS) else "info"


def describe(event: Event) -> str:
    """An event in one line: its name, then its fields; a traceback stands below."""
    fields = msgspec.to_builtins(event)
    name, traceback = fields.pop("event"), fields.pop("traceback", "").rstrip()
    text = " ".join([name, *(f"{key}={_show(value)}" for key, value in fields.items())])
    return f"{text}\n{traceback}" if traceback else text


def _files(folder: Path) -> Iterable[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else ()


def _process_of(name: str, jobs: dict[str, str]) -> str | None:
    """Whose output a file in a submission's folder is. An element of the workers' array has one agent."""
    if found := _OF_SLURM.fullmatch(name):
        return found["name"] or f"agent-{found['node']}"
    if found := _OF_SUBMITIT.fullmatch(name):
        return jobs.get(found["pid"])
    return None


def _show(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text if text and " " not in text else json.dumps(text, ensure_ascii=False)
