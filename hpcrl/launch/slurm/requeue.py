"""What becomes of a job whose process has ended: queued again, replaced by a successor, or left. Pure.

The cause of an end decides, not its exit code alone: a preemption costs nothing and may happen for ever, a user's error
is never repeated, and everything between has a budget and waits longer each time that the run gets no further.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from hpcrl.errors import ExitCode
from hpcrl.launch.slurm.jobs import State
from hpcrl.launch.slurm.site import SlurmSite, preempt_mode_of


class Cause(StrEnum):
    """Why a job's process ended."""

    PREEMPTED = "preempted"
    DRAINED = "drained"
    """Its process was told to go, by Slurm's signal to the step or because the time is up, and went in good order."""
    TIME_LIMIT = "time_limit"
    NODE_FAILURE = "node_failure"
    OUT_OF_MEMORY = "out_of_memory"
    KILLED = "killed"
    """By a signal that Slurm has not sent."""
    LOST_PEERS = "lost_peers"
    """The other jobs of the run went away, and the run can be resumed."""
    USER_ERROR = "user_error"
    INTERNAL_ERROR = "internal_error"
    CANCELLED = "cancelled"
    LEFT_TO_SLURM = "left_to_slurm"
    """Slurm has ended the job: it queues it again by itself, or somebody wants it gone."""
    QUEUED = "queued"
    """Other jobs of the run wait for their turn, and this one has waited long enough."""
    STOPPED = "stopped"
    """The run itself wants no further attempt: `hpcrl stop`, no progress, or a newer submission."""
    DONE = "done"


FINAL = frozenset({Cause.DONE, Cause.STOPPED, Cause.CANCELLED, Cause.LEFT_TO_SLURM})
"""Never queued again, whatever the budget says."""

BENIGN = frozenset({Cause.PREEMPTED, Cause.DRAINED, Cause.QUEUED, Cause.TIME_LIMIT})
"""Nothing is wrong, so nothing is waited for."""

_PHRASES = {
    Cause.PREEMPTED: "the job was preempted",
    Cause.DRAINED: "the process was told to go, and went",
    Cause.TIME_LIMIT: "the job reached its time limit",
    Cause.NODE_FAILURE: "a node failed",
    Cause.OUT_OF_MEMORY: "the job ran out of memory",
    Cause.KILLED: "the process was killed",
    Cause.LOST_PEERS: "the other jobs of the run went away",
    Cause.USER_ERROR: "the configuration, the data or the user's code is at fault",
    Cause.INTERNAL_ERROR: "hpcrl failed",
    Cause.CANCELLED: "the job was cancelled",
    Cause.LEFT_TO_SLURM: "slurm ended the job, and queues it again unless it was cancelled",
    Cause.QUEUED: "other nodes wait for their turn",
    Cause.STOPPED: "the run wants no further attempt",
    Cause.DONE: "the run is done",
}


@dataclass(frozen=True)
class Ended:
    """One end of a job's process. `progress` says how far the run was then: any text that changes when it gets on."""

    cause: Cause
    exit_code: int | None
    when: float
    progress: str = ""


@dataclass(frozen=True)
class Budget:
    """How often each cause may happen (None: for ever) and how long to wait, while the run makes no progress."""

    times: Mapping[Cause, int | None] = field(
        default_factory=lambda: MappingProxyType(
            {
                Cause.PREEMPTED: None,
                Cause.DRAINED: None,
                Cause.QUEUED: None,
                # A call that is longer than the limit is begun each time, and never finished.
                Cause.TIME_LIMIT: 10,
                # The master counts for all of them, and tells them when it gives up.
                Cause.LOST_PEERS: None,
                Cause.NODE_FAILURE: 10,
                Cause.KILLED: 5,
                Cause.OUT_OF_MEMORY: 1,
                Cause.USER_ERROR: 0,
                Cause.INTERNAL_ERROR: 0,
            }
        )
    )
    first_delay_s: float = 15.0
    longest_delay_s: float = 1800.0


@dataclass(frozen=True)
class RequeueRules:
    """What becomes of a job that is to run again."""

    requeue_allowed: bool = True
    """Whether Slurm may queue it again: each script asks for that (`--requeue`), whatever the site's JobRequeue is."""
    preemption_cancels: bool = False


@dataclass(frozen=True)
class Requeue:
    """Queue the same job again, to start no sooner than this."""

    delay_s: float
    reason: str


@dataclass(frozen=True)
class Successor:
    """Submit a new job in its place, to start no sooner than this."""

    delay_s: float
    reason: str


@dataclass(frozen=True)
class Never:
    """Leave it."""

    reason: str


Decision = Requeue | Successor | Never


def rules_of(site: SlurmSite, partition: str | None = None, flags: Sequence[str] = ()) -> RequeueRules:
    """What is known of jobs in a partition (with preemption by QOS, in the cluster) that have these flags of sbatch."""
    return RequeueRules("--no-requeue" not in flags, preempt_mode_of(site, site.partition(partition)) == "cancel")


def decide(
    ended: Ended, history: Sequence[Ended], budget: Budget | None = None, rules: RequeueRules | None = None
) -> Decision:
    """What to do after this end; `history` are the ends before it, the oldest first."""
    budget, rules = budget or Budget(), rules or RequeueRules()
    phrase = _PHRASES[ended.cause]
    if ended.cause in FINAL:
        return Never(_sentence(phrase))
    allowed = budget.times.get(ended.cause, 0)
    times = 1 + _streak(ended, history)
    if allowed is not None and times > allowed:
        often = (
            "this is never tried again"
            if allowed == 0
            else f"for the {_ordinal(times)} time without progress, {allowed} are allowed"
        )
        return Never(_sentence(f"{phrase}{_with_code(ended)}: {often}"))
    delay_s = delay_of(ended, history, budget)
    waiting = f", after {delay_s:.0f} s" if delay_s else ""
    if ended.cause is Cause.PREEMPTED and rules.preemption_cancels:
        return Successor(delay_s, _sentence(f"{phrase}, which cancels jobs here: a successor is submitted{waiting}"))
    if not rules.requeue_allowed:
        return Successor(
            delay_s, _sentence(f"{phrase}; its flags forbid requeueing: a successor is submitted{waiting}")
        )
    return Requeue(delay_s, _sentence(f"{phrase}: the job is queued again{waiting}"))


def delay_of(ended: Ended, history: Sequence[Ended], budget: Budget) -> float:
    """Seconds to wait: none the first time, then doubled for each time that the same cause came again without progress.

    (Slurm itself holds a requeued job for two minutes, if the site has not changed that.)
    """
    streak = _streak(ended, history)
    if ended.cause in BENIGN or not streak:
        return 0.0
    # A float's exponent is bounded; no run waits for 2^60 times anything.
    return min(budget.longest_delay_s, budget.first_delay_s * 2.0 ** min(streak - 1, 60))


def _streak(ended: Ended, history: Sequence[Ended]) -> int:
    """How many ends before this one had its cause, with no progress of the run since."""
    return sum(before.cause is ended.cause and before.progress == ended.progress for before in history)


def cause_of(
    exit_code: int | None, verdict: str | None = None, signals: AbstractSet[str] = frozenset(), oom_kills: int = 0
) -> Cause:
    """Why the process of a job ended, as its batch script sees it.

    `exit_code` is a shell's (128 + n for signal n) or subprocess's (-n), None if nobody saw it; `verdict` is the state
    that the attempt's verdict.json names; `signals` are the names, without SIG, that the batch script received;
    `oom_kills` how often the kernel has killed in the job's cgroup. What the process says of itself counts first.

    SIGTERM alone looks the same for scancel and for preemption: ask Slurm before believing PREEMPTED.
    """
    own = _of_process(exit_code, verdict)
    if own is not None:
        return own
    if "TERM" in signals:
        return Cause.PREEMPTED
    if signals & {"USR1", "USR2"}:
        return Cause.TIME_LIMIT
    if exit_code == ExitCode.PREEMPTED:
        return Cause.DRAINED
    if exit_code == ExitCode.REQUEUE:
        return {"preempted": Cause.DRAINED, "queued": Cause.QUEUED}.get(verdict or "", Cause.LOST_PEERS)
    # 1 is what srun says when it could not start the process, and Python of an error that nobody foresaw.
    if exit_code is None or exit_code < 0 or exit_code > 128 or exit_code == 1:
        return Cause.OUT_OF_MEMORY if oom_kills else Cause.KILLED
    return Cause.INTERNAL_ERROR


def cause_of_state(state: State) -> Cause:
    """Why a job ended of which only Slurm's word for it is known; where that says nothing, it was killed."""
    return _OF_SLURM.get(state, Cause.KILLED)


_OF_SLURM = {
    State.CANCELLED: Cause.CANCELLED,
    State.PREEMPTED: Cause.PREEMPTED,
    State.NODE_FAIL: Cause.NODE_FAILURE,
    State.BOOT_FAIL: Cause.NODE_FAILURE,
    State.TIMEOUT: Cause.TIME_LIMIT,
    State.OUT_OF_MEMORY: Cause.OUT_OF_MEMORY,
}


def _of_process(exit_code: int | None, verdict: str | None) -> Cause | None:
    """What only the process itself can know."""
    match exit_code:
        case ExitCode.DONE:
            return Cause.DONE
        case ExitCode.NEVER_REQUEUE:
            return Cause.STOPPED
        case ExitCode.CONFIGURATION | ExitCode.DATA | ExitCode.USER_CODE:
            return Cause.USER_ERROR
        case ExitCode.INTERNAL:
            return Cause.INTERNAL_ERROR
    # The verdict of a process whose exit nobody saw, or that was killed while it left.
    return {"done": Cause.DONE, "stopped": Cause.STOPPED}.get(verdict or "")


def _with_code(ended: Ended) -> str:
    return "" if ended.exit_code is None else f" (exit code {ended.exit_code})"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
