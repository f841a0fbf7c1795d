"""All logs of a run as one, in the order of time: the master's events and the calls that it had executed, each worker's
and agent's events and output, and what the jobs of master and agents printed. The time is the master's, as far as it is
known what the clocks of nodes say in it; the lines of a file stay in the order in which they were written.

What a process printed carries no time; it stands where its file was last written, or, while the log is followed, when
it was seen. What a Slurm job printed stands at the next time that a line of its file carries: hpcrl prints one as the
job begins and one as it ends. Files are read piece by piece: a log may be larger than memory.
"""

import copy
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from hpcrl.durable.rundir import RunDirectory
from hpcrl.foreign import LONGEST
from hpcrl.inspect.call_lines import CallLines
from hpcrl.inspect.clocks import MASTER, Clock, read_clocks
from hpcrl.inspect.lines import Tail, first_at, mono_of
from hpcrl.inspect.log_lines import KNOWN, LEVELS, NO_ATTEMPT, LogLine, clock, described, whose
from hpcrl.inspect.merging import Piece, in_order
from hpcrl.ops.log_lines import shown
from hpcrl.stamps import time_of

FOLLOW_POLL_S = 0.3
PIECE = 256
"""Lines of a file that are taken at a time."""
BYTES_HELD, LEAST_BYTES, MOST_BYTES = 8 << 20, 4 << 10, 64 << 10
"""Of all files together, and of each, that are read at a time where all lines are shown."""
FILES_READ_PER_S = 200
"""What a run with thousands of workers may cost the file server while somebody follows its logs."""
_TRACEBACK = "Traceback (most recent call last)"
_TELLS_OF_AN_ERROR = re.compile(
    r"\b(\w*(Error|Exception)|error|fatal|critical): |Segmentation fault|^Fatal Python error", re.IGNORECASE
)

_NAMES = f"\n{chr(10).join(sorted(KNOWN))}\n".encode()
_SEEN = bytes([*b"\n", *range(ord(" "), ord("~") + 1)])

_OF_SLURM = re.compile(r"(?:(?P<name>master|run)-\d+|workers-\d+_(?P<node>\d+))\.out")
_OF_SUBMITIT = re.compile(r"(?P<pid>\d+)_\d+_log\.(?:out|err)")
_SUBMITIT_ITSELF = "submitit INFO ("


@dataclass(frozen=True)
class LogFilter:
    """Which lines to show: all, unless told otherwise. The pattern is looked for in a line's text.

    Of a step, or of calls, are events alone: what a process printed says neither.
    """

    processes: frozenset[str] = frozenset()
    pattern: re.Pattern[str] | None = None
    level: str = "info"
    since: float = 0.0
    until: float = float("inf")
    attempt: int | None = None
    step: int | None = None
    calls: frozenset[str] | None = None

    def is_from(self, process: str, attempt: int) -> bool:
        return (not self.processes or process in self.processes) and self.attempt in (None, attempt)

    @property
    def is_all(self) -> bool:
        """Whether it wants every line of the files that it reads."""
        return self == LogFilter(self.processes, attempt=self.attempt)

    def wants(self, line: LogLine) -> bool:
        return (
            self.since <= line.time <= self.until
            and LEVELS.index(line.level) <= LEVELS.index(self.level)
            and self.step in (None, line.step)
            and (self.calls is None or line.call in self.calls)
            and (self.pattern is None or self.pattern.search(line.text) is not None)
        )


EVERYTHING = LogFilter()


class LogFile:
    """One file of one process. A line without a time has that of the line before it, or of the file."""

    def __init__(self, attempt: int, process: str, path: Path) -> None:
        self.process = process
        self.attempt = attempt
        self._kind = "event" if path.suffix == ".jsonl" else path.suffix.removeprefix(".")
        self._who = f"{whose(attempt, process, self._kind)} ".encode()
        self._path = path
        self.clock: Clock | None = None
        """Its node's, once that is known."""
        self._tail = Tail(path)
        self._time = 0.0
        self._in_traceback = False

    @property
    def has_events(self) -> bool:
        return self._kind == "event"

    def set_clock(self, clock: Clock | None) -> None:
        """From now on its lines have the master's time, which may be before what they had up to now."""
        if clock is not None:
            self.clock, self._time = clock, 0.0

    def read(self, wanted: LogFilter = EVERYTHING, to_the_end: bool = False) -> Iterator[Piece[LogLine]]:
        """What was added since the last call; with its torn last line, if nothing more comes.

        What is before `wanted.since`, or after `wanted.until`, may be left out.
        """
        written = self._written()
        if written < wanted.since:
            return
        if wanted.since and self._kind == "event" and not self._time:
            base = None if self.clock is None else self.clock.marks[0].base
            self._tail.skip(first_at(self._path, wanted.since, base))
        texts = self._tail.each()
        while lines := [
            self._line(text, written) for text in islice(texts, PIECE) if not text.startswith(_SUBMITIT_ITSELF)
        ]:
            yield _piece(lines)
            if self._time > wanted.until:
                return
        if to_the_end and self._kind != "event" and (torn := self._tail.rest()):
            yield _piece([self._line(torn, written)])

    def shown(self, piece_bytes: int) -> Iterator[Piece[bytes]]:
        """The same as `read` to the end of all that there is, as people read it, in a tenth of the time."""
        written = self._written()
        show = self._shown_events if self._kind == "event" else self._shown_output
        for block in self._tail.blocks(piece_bytes):
            if len((piece := show(block, written)).lines):
                yield piece
        if self._kind != "event" and (torn := self._tail.rest()):
            yield self._shown_output(torn.encode(), written)

    def _shown_events(self, block: bytes, written: float) -> Piece[bytes]:
        base = None if self.clock is None else round(1e6 * self.clock.mark(mono_of(block)).base)
        times, lines, at = list[np.ndarray](), list[bytes](), 0
        while at < len(block):
            found = shown(block, at, _NAMES, self._who, base, round(self._time * 1e6))
            if found.lines:
                times.append(found.times / 1e6)
                lines += found.lines
                self._time = float(times[-1][-1])
            at += found.read
            if at < len(block):
                end = (block.find(b"\n", at) + 1) or len(block)
                line = self._line(block[at:end].decode(errors="replace").removesuffix("\n"), written)
                times.append(np.array([line.time]))
                lines.append(str(line).encode())
                at = end
        return Piece(np.concatenate(times), lines)

    def _shown_output(self, block: bytes, written: float) -> Piece[bytes]:
        self._time = max(self._time, written)
        lines = block.removesuffix(b"\n").split(b"\n")
        if _SUBMITIT_ITSELF.encode() in block:
            lines = [line for line in lines if not line.startswith(_SUBMITIT_ITSELF.encode())]
        if block.translate(None, _SEEN) or len(max(lines, key=len, default=b"")) > LONGEST:
            lines = [str(self._made(line.decode(errors="replace"), "")).encode() for line in lines]
        else:
            begin = clock(self._time).encode() + self._who
            lines = [begin + line for line in lines]
        return Piece(np.full(len(lines), self._time), lines)

    def _line(self, text: str, written: float) -> LogLine:
        if self._kind == "event":
            return self._event(text)
        self._time = max(self._time, written)
        return self._made(text, self._level(text))

    def _event(self, text: str) -> LogLine:
        """What cannot be read is shown as it is."""
        it = described(text, self.process, self.clock)
        if it is None:
            return self._made(text, "warning")
        self._time = max(self._time, it.time)
        return LogLine(self._time, self.attempt, self.process, it.text, "event", it.level, it.step, it.call)

    def _made(self, text: str, level: str) -> LogLine:
        return LogLine(self._time, self.attempt, self.process, text, self._kind, level)

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


class JobFile(LogFile):
    """What all starts of a Slurm job printed, one after another. Some lines carry their time; each other one was there
    by the next such time, or, where none follows, when the file was last written."""

    def __init__(self, process: str, path: Path) -> None:
        super().__init__(NO_ATTEMPT, process, path)
        self._coming: deque[float] = deque()
        """Times that lines carry which are still to be read."""

    def read(self, wanted: LogFilter = EVERYTHING, to_the_end: bool = False) -> Iterator[Piece[LogLine]]:
        ahead = copy.copy(self._tail)
        self._coming = deque(when for line in ahead.each() if (when := time_of(line)) is not None)
        yield from super().read(wanted, to_the_end)

    def shown(self, piece_bytes: int) -> Iterator[Piece[bytes]]:
        for piece in self.read(to_the_end=True):
            yield Piece(piece.times, [str(line).encode() for line in piece.lines])

    def _line(self, text: str, written: float) -> LogLine:
        when = time_of(text)
        if when is not None and self._coming:
            self._coming.popleft()
        by = when or (self._coming[0] if self._coming else written)
        return super()._line(text, by)


def _piece(lines: list[LogLine]) -> Piece[LogLine]:
    return Piece(np.fromiter((line.time for line in lines), float, len(lines)), lines)


class Logs:
    """The log files of a run, found anew at each reading, since attempts and workers come."""

    def __init__(self, run: RunDirectory, wanted: LogFilter = EVERYTHING) -> None:
        self._run = run
        self._wanted = wanted
        self._sources: dict[Path, LogFile] = {}
        self._calls: dict[int, CallLines] = {}
        self._timed: set[int] = set()
        """Attempts whose clocks were asked for."""

    def read(self, to_the_end: bool = False) -> Iterator[LogLine]:
        """What was added since the last call and is wanted, of all processes, by time."""
        wanted = self._wanted
        pieces = [source.read(wanted, to_the_end) for source in self._wanted_sources()]
        for lines in in_order(pieces + [calls.read(to_the_end) for calls in self._wanted_calls()]):
            yield from lines if wanted.is_all else filter(wanted.wants, lines)

    def shown(self) -> Iterator[bytes]:
        """The same, read to the end, as people read it."""
        if not self._wanted.is_all:
            for line in self.read(to_the_end=True):
                yield f"{line}\n".encode()
            return
        sources = self._wanted_sources()
        size = max(LEAST_BYTES, min(MOST_BYTES, BYTES_HELD // max(1, len(sources))))
        pieces = [source.shown(size) for source in sources]
        for lines in in_order(pieces + [calls.shown() for calls in self._wanted_calls()]):
            yield b"\n".join([*lines, b""])

    def _wanted_sources(self) -> list[LogFile]:
        self._find()
        found = [source for source in self._sources.values() if self._wanted.is_from(source.process, source.attempt)]
        return sorted(found, key=lambda source: (source.attempt, source.process))

    def _wanted_calls(self) -> list[CallLines]:
        return [calls for attempt, calls in sorted(self._calls.items()) if self._wanted.is_from(MASTER, attempt)]

    @property
    def files(self) -> int:
        return len(self._sources)

    def processes(self) -> list[str]:
        """Who has files, wanted or not."""
        self._find()
        return sorted({source.process for source in self._sources.values()})

    def _find(self) -> None:
        numbers = self._run.numbers()
        for attempt in numbers:
            self._add(attempt, MASTER, self._run.events(attempt))
            self._calls.setdefault(attempt, CallLines(self._run, attempt))
            for path in _files(self._run.logs(attempt)):
                if path.suffix in (".jsonl", ".out", ".err"):
                    self._add(attempt, path.stem, path)
            if attempt not in self._timed or attempt == numbers[-1]:
                self._set_clocks(attempt)
        for submission in self._run.submissions():
            jobs = {str(job): name for name, job in submission.jobs.items() if name != "group"}
            for path in _files(self._run.submitit_folder(submission.nonce)):
                if path in self._sources:
                    continue
                if (process := _process_of_slurms(path.name)) is not None:
                    self._sources[path] = JobFile(process, path)
                elif (process := _process_of_submitits(path.name, jobs)) is not None:
                    self._add(NO_ATTEMPT, process, path)

    def _set_clocks(self, attempt: int) -> None:
        """Of those files of an attempt whose clocks are not known yet."""
        self._timed.add(attempt)
        of = [source for source in self._sources.values() if source.attempt == attempt]
        if without := [source for source in of if source.clock is None and source.has_events]:
            clocks = read_clocks(self._run, attempt)
            for source in without:
                source.set_clock(clocks.of.get(source.process))

    def _add(self, attempt: int, process: str, path: Path) -> None:
        if path not in self._sources:
            self._sources[path] = LogFile(attempt, process, path)


def merged(run: RunDirectory, wanted: LogFilter = EVERYTHING) -> Iterator[LogLine]:
    """What all processes have logged, by time."""
    return Logs(run, wanted).read(to_the_end=True)


def shown_together(run: RunDirectory, wanted: LogFilter = EVERYTHING) -> Iterator[bytes]:
    """The same as people read it: lines with their ends, one or many at a time."""
    return Logs(run, wanted).shown()


def follow(run: RunDirectory, ended: Callable[[], bool], wanted: LogFilter = EVERYTHING) -> Iterator[LogLine]:
    """What is there, then what comes, until `ended` says that nothing more will."""
    logs = Logs(run, wanted)
    while True:
        last_round = ended()
        yield from logs.read(to_the_end=last_round)
        if last_round:
            return
        time.sleep(max(FOLLOW_POLL_S, logs.files / FILES_READ_PER_S))


def _files(folder: Path) -> Iterable[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else ()


def _process_of_slurms(name: str) -> str | None:
    """Whose output a file in a submission's folder is, if Slurm has made it. An element of an array has one agent."""
    found = _OF_SLURM.fullmatch(name)
    return None if found is None else found["name"] or f"agent-{found['node']}"


def _process_of_submitits(name: str, jobs: dict[str, str]) -> str | None:
    found = _OF_SUBMITIT.fullmatch(name)
    return None if found is None else jobs.get(found["pid"])
