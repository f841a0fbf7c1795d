"""What squeue and sacct say, as values. Pure: texts in, values out, and the formats that are asked for.

Only fields and format letters that Slurm 22.05 to 25.11 all know are used. Fields are separated by a control character,
because comments, reasons and paths may contain everything that can be typed.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from hpcrl.durable.accounting import JobAccount

SEPARATOR = "\x1f"
"""Between two fields of a line; Slurm prints it as it is given."""

SQUEUE_FORMAT = SEPARATOR.join(("%i", "%A", "%T", "%r", "%P", "%N", "%k"))
"""What parse_squeue reads: id, number, state, reason, partition, nodes, comment."""

SACCT_FIELDS = (
    *("JobIDRaw", "JobID", "State", "ExitCode", "Submit", "Start", "End", "NodeList"),
    *("JobName", "WorkDir", "Comment"),
)
"""What parse_sacct reads."""

ACCOUNT_FIELDS = ("JobID", "State", "ExitCode", "Reason", "MaxRSS", "Elapsed", "NodeList", "Start", "End")
"""What parse_account reads."""

_ID = re.compile(r"(\d+)(?:_(\d+)|\+(\d+))?")
_RANGE = re.compile(r"(\d+)_\[([^\]%]*)(?:%\d+)?\]?")
_SPAN = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?")
_ABSENT = frozenset({"", "(null)", "N/A", "None", "Unknown", "None assigned"})


@dataclass(frozen=True, order=True)
class JobId:
    """A job, an element of a job array (`123_4`) or a component of a heterogeneous job (`123+1`)."""

    job: int
    element: int | None = None
    component: int | None = None

    def __str__(self) -> str:
        if self.element is not None:
            return f"{self.job}_{self.element}"
        return f"{self.job}" if self.component is None else f"{self.job}+{self.component}"


def parse_id(text: str) -> JobId:
    """One id; what `sbatch --parsable` adds (`;cluster`) is left out. Raises ValueError for a range or a step."""
    found = _ID.fullmatch(text.strip().partition(";")[0])
    if found is None:
        raise ValueError(f"{text!r} is not the id of one job, like 123, 123_4 or 123+1")
    return JobId(*(None if part is None else int(part) for part in found.groups()))  # type: ignore[arg-type]


def parse_ids(text: str) -> tuple[JobId, ...]:
    """One id, or the elements of an array that still wait in one record: `123_[0-3,7%2]`.

    A list that Slurm has cut short (`...`) yields the elements that it names. Raises ValueError for a step.
    """
    found = _RANGE.fullmatch(text.strip())
    if found is None:
        return (parse_id(text.strip().removesuffix("_*")),)
    job = int(found[1])
    return tuple(JobId(job, element) for span in found[2].split(",") for element in _elements(span))


def _elements(span: str) -> Iterator[int]:
    found = _SPAN.fullmatch(span.strip())
    if found is None:
        if span.strip(". "):
            raise ValueError(f"{span!r} is not a part of a job array, like 3, 0-7 or 0-7:2")
        return
    first, last, step = (None if part is None else int(part) for part in found.groups())
    assert first is not None
    yield from range(first, (first if last is None else last) + 1, step or 1)


class State(Enum):
    """What a job's state means for a run. What differs only for Slurm is one value here."""

    PENDING = "pending"
    STARTING = "starting"
    """It has nodes, and nothing runs on them yet."""
    RUNNING = "running"
    SUSPENDED = "suspended"
    ENDING = "ending"
    """Its processes may still be there, but not for long."""
    REQUEUED = "requeued"
    """Its next incarnation is queued, or about to be."""
    HELD = "held"
    """Queued, and starts only when somebody releases it."""
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    PREEMPTED = "preempted"
    NODE_FAIL = "node_fail"
    BOOT_FAIL = "boot_fail"
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out_of_memory"
    UNKNOWN = "unknown"
    """Slurm uses a word that is not known here; see JobState.unknown."""


ENDED = frozenset(
    {
        State.COMPLETED,
        State.FAILED,
        State.CANCELLED,
        State.PREEMPTED,
        State.NODE_FAIL,
        State.BOOT_FAIL,
        State.TIMEOUT,
        State.OUT_OF_MEMORY,
    }
)

_BASES = {
    "PENDING": State.PENDING, "PD": State.PENDING,
    "RUNNING": State.RUNNING, "R": State.RUNNING,
    "SUSPENDED": State.SUSPENDED, "S": State.SUSPENDED,
    "COMPLETED": State.COMPLETED, "CD": State.COMPLETED,
    "CANCELLED": State.CANCELLED, "CA": State.CANCELLED,
    "FAILED": State.FAILED, "F": State.FAILED,
    "TIMEOUT": State.TIMEOUT, "TO": State.TIMEOUT,
    "NODE_FAIL": State.NODE_FAIL, "NF": State.NODE_FAIL,
    "PREEMPTED": State.PREEMPTED, "PR": State.PREEMPTED,
    "BOOT_FAIL": State.BOOT_FAIL, "BF": State.BOOT_FAIL,
    "DEADLINE": State.TIMEOUT, "DL": State.TIMEOUT,
    "OUT_OF_MEMORY": State.OUT_OF_MEMORY, "OOM": State.OUT_OF_MEMORY,
    # A federation's sibling cluster has the job.
    "REVOKED": State.CANCELLED, "RV": State.CANCELLED,
}  # fmt: skip
_FLAGS = {
    "COMPLETING": State.ENDING, "CG": State.ENDING,
    "STAGE_OUT": State.ENDING, "SO": State.ENDING,
    "REQUEUED": State.REQUEUED, "REQUEUE": State.REQUEUED, "RQ": State.REQUEUED,
    "REQUEUE_FED": State.REQUEUED, "RF": State.REQUEUED,
    "EXPEDITING": State.REQUEUED, "EX": State.REQUEUED,
    "REQUEUE_HOLD": State.HELD, "RH": State.HELD,
    "SPECIAL_EXIT": State.HELD, "SE": State.HELD,
    "RESV_DEL_HOLD": State.HELD, "RD": State.HELD,
    "STOPPED": State.SUSPENDED, "ST": State.SUSPENDED,
    "CONFIGURING": State.STARTING, "CF": State.STARTING,
    "POWER_UP_NODE": State.STARTING, "PU": State.STARTING,
    "RESIZING": State.RUNNING, "RS": State.RUNNING,
    "SIGNALING": State.RUNNING, "SI": State.RUNNING,
}  # fmt: skip
_NO_STATE = frozenset({"LAUNCH_FAILED", "LF", "RECONFIG_FAIL", "UPDATE_DB", "UD"})
"""Flags that say how a job came to its state, not which it is; alone they mean that it failed."""
_STRONGEST_FIRST = (State.HELD, State.REQUEUED, State.ENDING, State.SUSPENDED, State.STARTING, State.RUNNING)


@dataclass(frozen=True)
class JobState:
    """A state and how Slurm wrote it. `unknown` are words that nobody here knows: log them, and go on."""

    state: State
    word: str
    unknown: tuple[str, ...] = ()

    @property
    def is_alive(self) -> bool:
        """Whether the job has, or will have, processes. An unknown state counts: nobody may take its place."""
        return self.state not in ENDED


def parse_state(text: str) -> JobState:
    """Long (`CANCELLED by 1000`) and compact (`CG`) words, cut ones (`OUT_OF_ME+`), and flags: `RUNNING,COMPLETING`."""
    word = text.strip()
    words = [part for part in re.split(r"[,\s]+", re.sub(r"\s+BY\s+[^\s,]+", "", word.upper())) if part]
    known = [(_BASES | _FLAGS).get(full) for full in map(_whole, words)]
    unknown = tuple(
        part for part, state in zip(words, known, strict=True) if state is None and _whole(part) not in _NO_STATE
    )
    return JobState(_together([state for state in known if state], bool(unknown) or not words), word, unknown)


def _together(states: list[State], uncertain: bool) -> State:
    if State.PENDING in states and State.ENDING in states:
        # The old incarnation is being cleaned up; the job itself is queued.
        return State.REQUEUED
    for flag in _STRONGEST_FIRST:
        if flag in states:
            return flag
    if states:
        return states[0]
    return State.UNKNOWN if uncertain else State.FAILED


def _whole(word: str) -> str:
    """A word that a narrow column has cut short ends in +."""
    if not word.endswith("+"):
        return word
    fits = [full for full in (*_BASES, *_FLAGS, *_NO_STATE) if full.startswith(word[:-1])]
    return fits[0] if len(fits) == 1 else word


@dataclass(frozen=True)
class Queued:
    """A line of squeue: what slurmctld knows of a job now. `number` is its own id even in an array."""

    id: JobId
    number: int
    state: JobState
    reason: str
    partition: str
    nodes: str
    comment: str


def parse_squeue(text: str) -> tuple[Queued, ...]:
    """The output of `squeue -h -o SQUEUE_FORMAT`, a value per job, element or component.

    Lines that are no job's (headers of clusters, rests of a comment with a line break) are left out.
    """
    return tuple(queued for fields in _lines(text, SQUEUE_FORMAT.count(SEPARATOR) + 1) for queued in _queued(fields))


def _queued(fields: list[str]) -> Iterator[Queued]:
    ids, number, state, *rest = fields
    for each in _ids_or_none(ids):
        yield Queued(each, _number(number, each), parse_state(state), *map(_present, rest))


def parse_end_times(text: str) -> dict[JobId, float]:
    """The output of `squeue -h -o "%i SEPARATOR %e"`: seconds since 1970; those without an end are left out."""
    found: dict[JobId, float] = {}
    for ids, end in _lines(text, 2):
        try:
            when = datetime.fromisoformat(end.strip()).timestamp()
        except ValueError:
            continue
        found |= dict.fromkeys(_ids_or_none(ids), when)
    return found


@dataclass(frozen=True)
class Incarnation:
    """A record of sacct: one time that a job was queued. Times are Slurm's texts, "" where there is none."""

    id: JobId
    number: int
    state: JobState
    exit_code: int
    signal: int
    submitted: str
    started: str
    ended: str
    nodes: str
    name: str
    folder: str
    comment: str


def parse_sacct(text: str) -> dict[JobId, tuple[Incarnation, ...]]:
    """The output of `sacct -X -P -n -D -o SACCT_FIELDS`: the incarnations of each job, the newest last.

    That an id is missing means nothing: accounting trails, or is off.
    """
    found: dict[JobId, list[Incarnation]] = {}
    for fields in _lines(text, len(SACCT_FIELDS)):
        for incarnation in _incarnations(fields):
            found.setdefault(incarnation.id, []).append(incarnation)
    return {each: tuple(sorted(found[each], key=_age)) for each in sorted(found, key=_order)}


def parse_account(text: str) -> list[JobAccount]:
    """The output of `sacct -P -n -D -o ACCOUNT_FIELDS`."""
    return [JobAccount(*map(_present, fields)) for fields in _lines(text, len(ACCOUNT_FIELDS))]


def _incarnations(fields: list[str]) -> Iterator[Incarnation]:
    number, ids, state, status, *rest = fields
    code, _, signal = status.partition(":")
    for each in _ids_or_none(ids):
        yield Incarnation(
            each, _number(number, each), parse_state(state), _integer(code), _integer(signal), *map(_present, rest)
        )


def _age(incarnation: Incarnation) -> tuple[str, bool, str]:
    """A requeue is a new submission; a record that has started replaces the one that waited for it."""
    return incarnation.submitted, bool(incarnation.started), incarnation.started


def _order(job: JobId) -> tuple[int, int, int]:
    return job.job, -1 if job.element is None else job.element, -1 if job.component is None else job.component


def _lines(text: str, count: int) -> Iterator[list[str]]:
    for line in text.split("\n"):
        fields = line.split(SEPARATOR, count - 1)
        if len(fields) == count:
            yield fields


def _ids_or_none(text: str) -> tuple[JobId, ...]:
    try:
        return parse_ids(text)
    except ValueError:
        return ()


def _number(text: str, job: JobId) -> int:
    return _integer(text) or job.job


def _integer(text: str) -> int:
    return int(text) if text.strip().isdecimal() else 0


def _present(text: str) -> str:
    return "" if text.strip() in _ABSENT else text.strip()
