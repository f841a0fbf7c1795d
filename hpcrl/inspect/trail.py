"""What the processes of an attempt wrote last, by time. Only the ends of files are read, however long a run is."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from hpcrl.durable.accounting import account_path, read_accounts, state_of
from hpcrl.durable.records import Claim, Verdict
from hpcrl.durable.rundir import RunDirectory
from hpcrl.event_log import Entry
from hpcrl.events import Event
from hpcrl.inspect.clocks import MASTER, Clocks, read_clocks
from hpcrl.inspect.entries import entry_of
from hpcrl.inspect.older import begun_in, located, unplaced

END_BYTES, MASTER_END_BYTES = 64 << 10, 1 << 20
LONGEST_BYTES = 1 << 20
"""Of a line, which may hold a traceback."""
COUNT_BYTES = 1 << 20
SETTLING_S = 30.0
_TOLD = re.compile(
    rb'"event":"(?:failed|worker ended|ending|node|node leaving|missing|connected|master lost|message lost|finish'
    rb'|loaded|allocation|stalled|went on)"'
)
"""Kinds of events that tell of an end, or of what was being done."""
_FAULT = re.compile(rb"^Fatal Python error: (?P<what>.*)$", re.MULTILINE)
_EXIT = re.compile(r"(?P<place>master|run|workers-\d+)\.(?P<number>\d+)\.(?P<restarts>\d+)")


@dataclass(frozen=True)
class Told:
    """An event, and where it stands: the byte of its file at which its line begins. Its time is the master's, up to
    the error, where the clock of its node is known; else its node's own."""

    process: str
    path: Path
    offset: int
    entry: Entry
    node: str = ""
    """Whose clock it has; empty where that is not known."""
    error_s: float = 0.0
    """Of a clock that nobody has compared, among others that were: infinite."""

    def apart_s(self, other: "Told") -> float:
        """By how much the times of both may be wrong together: nothing where one clock stands for both."""
        is_one = self.process == other.process or (self.node == other.node and self.node != "")
        return 0.0 if is_one else self.error_s + other.error_s

    @property
    def event(self) -> Event:
        return self.entry.event


@dataclass(frozen=True)
class Fault:
    """The stacks that a process left which a signal such as SIGSEGV ended."""

    process: str
    path: Path
    offset: int
    text: str


class JobEnded(msgspec.Struct, frozen=True):
    """What the exit hook of a Slurm job wrote of it. `cause` is one of `launch.slurm.requeue.Cause`."""

    cause: str
    exit_code: int | None
    when: float
    place: str = ""
    """`master`, `run` or `workers-3`."""
    number: int = 0
    """The job's own id."""
    path: str = ""
    state: str = ""
    """Slurm's word for it, where accounting was asked and knew: NODE_FAIL, PREEMPTED, …"""
    account: str = ""
    """The file that says so."""


@dataclass(frozen=True)
class Trail:
    """Of one attempt. `told` is in the order of time."""

    run: RunDirectory
    number: int
    claim: Claim | None
    verdict: Verdict | None
    told: tuple[Told, ...]
    faults: tuple[Fault, ...]
    jobs: tuple[JobEnded, ...]
    """That ended between this attempt's begin and the next one's."""
    requeued: bool = False
    """Whether the next attempt is the same submission's."""

    def of(self, process: str) -> Iterator[Told]:
        return (told for told in self.told if told.process == process)


def read_trail(run: RunDirectory, number: int) -> Trail:
    """Damaged, missing and foreign lines are passed over."""
    clocks = read_clocks(run, number)
    told = [*_told(clocks, MASTER, run.events(number), MASTER_END_BYTES)]
    faults: list[Fault] = []
    logs = run.logs(number)
    for path in sorted(logs.iterdir()) if logs.is_dir() else ():
        if path.suffix == ".jsonl":
            told += _told(clocks, path.stem, path, END_BYTES)
        elif path.suffix == ".err" and (fault := fault_in(path)) is not None:
            faults.append(fault)
    claims = {each: run.read_claim(each) for each in run.numbers() if abs(each - number) <= 1}
    claim, later = claims.get(number), claims.get(number + 1)
    jobs = _jobs(run, claims.get(number - 1), claim, later, clocks)
    told = _located(run, number, told)
    told.sort(key=lambda each: each.entry.time)
    requeued = claim is not None and later is not None and claim.submission == later.submission
    return Trail(run, number, claim, run.read_verdict(number), tuple(told), tuple(faults), jobs, requeued)


def _located(run: RunDirectory, number: int, told: list[Told]) -> list[Told]:
    """Of an older format: ends with what the worker had begun last, as its own file says."""
    begun: dict[str, tuple[int, str, int]] = {}
    for who in {who for each in told if (who := unplaced(each.event))}:
        lines = lines_at_end(run.worker_log(number, who), END_BYTES)
        units = [unit for _, line in lines if (unit := begun_in(line)) is not None]
        begun |= {who: units[-1]} if units else {}
    entries = [each.entry._replace(event=located(each.event, begun)) for each in told]
    return [replace(each, entry=entry) for each, entry in zip(told, entries, strict=True)]


def _told(clocks: Clocks, process: str, path: Path, size: int) -> Iterator[Told]:
    clock = clocks.of.get(process)
    for offset, line in lines_at_end(path, size):
        if not _TOLD.search(line) or (entry := entry_of(line)) is None:
            continue
        if clock is not None:
            yield Told(process, path, offset, clock.corrected(entry), clock.node, clock.mark(entry.mono).error_s)
        else:
            yield Told(process, path, offset, entry, error_s=math.inf if clocks.of else 0.0)


def lines_at_end(path: Path, size: int) -> Iterator[tuple[int, bytes]]:
    """The whole lines in the last bytes of a file, with the byte at which each begins."""
    content, begin = _end(path, size)
    while begin and b"\n" not in content[:-1] and size < LONGEST_BYTES:
        size *= 4
        content, begin = _end(path, size)
    if begin:
        first = content.find(b"\n") + 1
        content, begin = content[first:], begin + first
    for line in content[: content.rfind(b"\n") + 1].splitlines(keepends=True):
        yield begin, line
        begin += len(line)


def fault_in(path: Path) -> Fault | None:
    """The last one that a process left on its standard error."""
    content, begin = _end(path, END_BYTES)
    found = list(_FAULT.finditer(content))
    if not found:
        return None
    at = found[-1].start()
    return Fault(path.stem, path, begin + at, content[at:].decode(errors="replace"))


def line_at(path: Path, offset: int) -> int:
    """The number of the line that begins at a byte, from 1."""
    count = 1
    try:
        with open(path, "rb") as file:
            while offset > 0 and (piece := file.read(min(COUNT_BYTES, offset))):
                count += piece.count(b"\n")
                offset -= len(piece)
    except OSError:
        return 0
    return count


def _end(path: Path, size: int) -> tuple[bytes, int]:
    """The last bytes of a file, and where they begin."""
    try:
        with open(path, "rb") as file:
            begin = max(0, file.seek(0, 2) - size)
            file.seek(begin)
            return file.read(size), begin
    except OSError:
        return b"", 0


def _jobs(
    run: RunDirectory, before: Claim | None, claim: Claim | None, later: Claim | None, clocks: Clocks
) -> tuple[JobEnded, ...]:
    """The jobs of a submission that ended while this attempt was its newest, or before its first one was begun."""
    if claim is None:
        return ()
    is_first = before is None or before.submission != claim.submission
    begin, end = 0.0 if is_first else claim.time, float("inf") if later is None else later.time
    # The next attempt may begin while the job of a node that was lost is still being settled.
    ends = {False: end, True: end + SETTLING_S}
    jobs = sorted(
        (_by_masters_clock(job, clocks) for job in ended_jobs(run, claim.submission)), key=lambda job: job.when
    )
    return tuple(job for job in jobs if begin <= job.when <= ends[job.place.startswith("workers-")])


def _by_masters_clock(job: JobEnded, clocks: Clocks) -> JobEnded:
    name, _, node = job.place.partition("-")
    ahead_s = clocks.ahead.get(int(node), 0.0) if name == "workers" else 0.0
    return msgspec.structs.replace(job, when=job.when - ahead_s)


def ended_jobs(run: RunDirectory, nonce: str) -> list[JobEnded]:
    """What is written down of the ends of a submission's jobs, the first one first. What is damaged is left out."""
    folder, found = run.submitit_folder(nonce) / "exits", []
    kept = read_accounts(run, nonce)
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        name = _EXIT.fullmatch(path.stem)
        try:
            job = msgspec.json.decode(path.read_bytes(), type=JobEnded)
        except (OSError, msgspec.DecodeError):
            continue
        if name is None:
            continue
        at = {"place": name["place"], "number": int(name["number"]), "path": str(path)}
        if state := state_of(kept.get(path.stem, [])):
            at |= {"state": state, "account": str(account_path(run, nonce, path.stem))}
        found.append(msgspec.structs.replace(job, **at))
    return sorted(found, key=lambda job: job.when)
