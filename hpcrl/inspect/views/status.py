"""What is known of a run's state now. Nothing is guessed: what cannot be seen from here is called unknown, and why.

A run with a verdict has ended. One without is alive exactly if the process that claimed its newest attempt is, which
can be seen only on that process's own host; elsewhere a fresh event says that somebody is. On Slurm an attempt may have
ended and the run go on: what the queue says of its jobs comes in as a value (`inspect.queue`).
"""

import socket
import time
from pathlib import Path
from typing import Literal

import msgspec

from hpcrl.costs import Seen
from hpcrl.durable.origin import forked_from
from hpcrl.durable.records import Claim, Verdict
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ExitCode
from hpcrl.inspect.activity import Activity
from hpcrl.inspect.alive import is_running
from hpcrl.inspect.hints import RESUMABLE, what_next
from hpcrl.inspect.nodes import lines_of, nodes_now
from hpcrl.inspect.queue import Queue
from hpcrl.inspect.reader import RunReader
from hpcrl.inspect.shown_settings import shown_settings
from hpcrl.inspect.views.stalls import Stall, stalls_of
from hpcrl.inspect.views.why import Cause, newest_cause
from hpcrl.inspect.words import duration

State = Literal[
    "submitted",
    "waiting for Slurm",
    "starting",
    "running",
    "paused",
    "finishing",
    "draining",
    "done",
    "stopped",
    "preempted",
    "incomplete",
    "failed",
    "killed",
    "unknown",
]
ALIVE: tuple[State, ...] = ("submitted", "starting", "running", "paused", "finishing", "draining", "unknown")
"""Those in which the workers may be doing what the newest events say."""
GOES_ON: tuple[State, ...] = (*ALIVE, "waiting for Slurm")
"""Those in which more will happen."""
ENDED: tuple[State, ...] = ("done", "stopped", "failed")
"""Those that no scheduler ends."""
FRESH_S = 120.0
"""An event that is younger, or than three steps take, shows that the master is alive."""
JUST_SENT_S = 30.0
"""How long Slurm may not show a job that it has taken."""


class WorkerStatus(msgspec.Struct, frozen=True):
    """A model worker as the master's events tell of it."""

    rank: int
    doing: str
    stall: Stall | None = None
    """The call that waits for it, where that takes far longer than those before it."""


class SkippedRows(msgspec.Struct, frozen=True):
    """So many `rows` of a data set, `of` all, are longer than a bound."""

    rows: int
    of: int


class Skipped(msgspec.Struct, frozen=True):
    """What was left out."""

    events: int = 0
    """Lines of the master's events that this hpcrl cannot read."""
    updates: dict[str, int] = {}
    """train_step → its updates that were not made, because their gradients were not finite."""
    steps: int = 0
    """Steps that trained on nothing, because no group that they drew had samples of different scores."""
    rows: dict[str, SkippedRows] = {}
    """Of the data sets, "train" and "eval"."""
    live: str = ""
    """Why it is not known what was under way; empty where it is."""


class RunStatus(msgspec.Struct, frozen=True):
    """A run's state, and how to resume it. The JSON of `hpcrl status --json`."""

    run_dir: str
    state: State
    why: str
    attempt: int | None
    step: int
    steps: int | None
    metrics: dict[str, float]
    workers: list[WorkerStatus]
    exit_code: int | None
    cause: Cause | None
    """Of an end that nobody wanted."""
    last_event_s_ago: float | None
    hint: str
    slurm: Queue | None = None
    skipped: Skipped = Skipped()
    origins: tuple[str, ...] = ()
    """What it was made with: the run and the step that it was forked from, where other settings began to count, and how
    many nodes it has, where that may change."""

    @property
    def stalled(self) -> list[Stall]:
        """The calls that workers have stalled, each once."""
        found = {str(worker.stall): worker.stall for worker in self.workers if worker.stall is not None}
        return [*found.values()]


def read_status(run_dir: Path, queue: Queue | None = None) -> RunStatus:
    """Everything `hpcrl status` says, from the run directory, and from the queue for a run on Slurm."""
    run = RunDirectory.look(run_dir)
    reader, settings = RunReader(run), shown_settings(run)
    control = settings["control"]
    seen = reader.seen
    attempt = run.newest_attempt()
    activity = reader.newest
    state, why, exit_code = judge(run, attempt, activity, queue)
    works = state in ALIVE and state != "submitted" and attempt is not None and run.newest_verdict() is None
    ago = None if activity is None or activity.last is None else max(0.0, time.time() - activity.last)
    cause = newest_cause(run) if state in ("failed", "killed") else None
    return RunStatus(
        run_dir=str(run.root),
        state=state,
        why=why,
        attempt=attempt,
        step=reader.step,
        steps=reader.length(control["steps"], control["epochs"]),
        metrics=reader.newest_metrics(),
        workers=_workers(run, activity) if works else [],
        exit_code=exit_code,
        cause=cause,
        last_event_s_ago=None if ago is None else round(ago, 3),
        hint=_hint(run, state, cause, queue),
        slurm=queue,
        skipped=_skipped(reader, seen),
        origins=(*_origins(run, seen), *_nodes(reader, settings["cluster"]["nodes"])),
    )


def judge(
    run: RunDirectory, attempt: int | None, activity: Activity | None, queue: Queue | None = None
) -> tuple[State, str, int | None]:
    """The state, why it is believed, and the exit code of a run that has ended. `queue` is given for runs on Slurm."""
    claim = None if attempt is None else run.read_claim(attempt)
    verdict = _verdict(run, claim)
    if _is_older(run, claim):
        claim = activity = None
    if queue is not None:
        if run.newest_nonce() is None and attempt is None:
            return "incomplete", "none of its jobs is known to have been sent", None
        return _state_on_slurm(verdict, claim, activity, queue)
    if verdict is not None and verdict.state == "done" and run.has_newer_settings(verdict):
        return "stopped", f"{verdict.reason}; settings {run.versions()[-1]} have not begun to count", None
    if verdict is not None:
        return _ended(verdict.state), verdict.reason, verdict.exit_code
    if attempt is None or activity is None:
        return "submitted", "no process has begun yet", None
    if claim is None:
        return "starting", f"attempt {attempt} is being claimed", None
    if claim.host == socket.gethostname() and not is_running(claim):
        return "killed", f"its master (process {claim.pid}) is gone and left no verdict ({_seen(activity)})", None
    return _seen_from(claim, activity)


def _is_older(run: RunDirectory, claim: Claim | None) -> bool:
    """Whether the newest attempt is an older submission's: it says nothing of the newest one, which has begun none."""
    return claim is not None and claim.submission != (run.newest_nonce() or claim.submission)


def _verdict(run: RunDirectory, claim: Claim | None) -> Verdict | None:
    """How the newest submission ended; `claim` is the newest attempt's."""
    verdict = run.newest_verdict()
    return None if verdict is not None and verdict.attempt is not None and _is_older(run, claim) else verdict


def _state_on_slurm(
    verdict: Verdict | None, claim: Claim | None, activity: Activity | None, queue: Queue
) -> tuple[State, str, int | None]:
    """The same of the newest submission to Slurm; `verdict`, `claim` and `activity` are its newest attempt's."""
    if verdict is not None and not _may_go_on(verdict):
        return _ended(verdict.state), verdict.reason, verdict.exit_code
    last_words = "" if verdict is None else f"; the last attempt was {verdict.state}: {verdict.reason}"
    if queue.missing:
        return _without_queue(verdict, claim, activity, queue.missing)
    master = queue.master()
    if master is not None and master.waits:
        return "waiting for Slurm", f"its master's job {master.describe()}{last_words}", None
    if master is not None and master.is_alive:
        if verdict is not None or claim is None or activity is None:
            return "starting", f"its master's job {master.describe()} and has not begun an attempt{last_words}", None
        if claim.host == socket.gethostname() and not is_running(claim):
            gone = f"its master (process {claim.pid}) is gone; its job {master.describe()}"
            return "starting", f"{gone} and has not begun another attempt ({_seen(activity)})", None
        return _phase(activity), _seen(activity), None
    if verdict is not None:
        return _ended(verdict.state), verdict.reason, verdict.exit_code
    if claim is None and master is None and queue.sent_s_ago < JUST_SENT_S:
        return "submitted", "Slurm does not show its jobs yet", None
    gone = "Slurm knows its master's job no more" if master is None else f"its master's job {master.describe()}"
    return "killed", f"{gone}, and it left no verdict ({_seen(activity)})", None


def _without_queue(
    verdict: Verdict | None, claim: Claim | None, activity: Activity | None, missing: str
) -> tuple[State, str, int | None]:
    """Of a run on Slurm, where Slurm cannot be asked."""
    if verdict is not None:
        unseen = f"whether Slurm has queued it again cannot be seen here: {missing}"
        return _ended(verdict.state), f"{verdict.reason}; {unseen}", verdict.exit_code
    if claim is None:
        return "submitted", f"no process has begun yet; the queue cannot be seen here: {missing}", None
    if claim.host == socket.gethostname() and not is_running(claim):
        gone = f"its master (process {claim.pid}) is gone and left no verdict ({_seen(activity)})"
        return "killed", f"{gone}; whether Slurm has queued it again cannot be seen here: {missing}", None
    return _seen_from(claim, activity or Activity())


def _seen_from(claim: Claim, activity: Activity) -> tuple[State, str, int | None]:
    """Of an attempt without a verdict whose master is alive, or on another host."""
    if claim.host == socket.gethostname():
        return _phase(activity), _seen(activity), None
    if is_fresh(activity):
        return _phase(activity), f"its master is on {claim.host}, {_seen(activity)}", None
    unseen = f"no verdict; its master is on {claim.host}, which cannot be asked from here ({_seen(activity)})"
    return "unknown", unseen, None


def _may_go_on(verdict: Verdict) -> bool:
    """Whether Slurm may start the run again by itself."""
    return verdict.exit_code in (ExitCode.REQUEUE, ExitCode.PREEMPTED)


def _seen(activity: Activity | None) -> str:
    if activity is None or activity.last is None:
        return "no event yet"
    return f"last event {duration(max(0.0, time.time() - activity.last))} ago"


def is_fresh(activity: Activity) -> bool:
    """Whether its events show that somebody was alive just now, if all clocks agree."""
    pace = activity.pace()
    patience_s = FRESH_S if pace is None else max(FRESH_S, 3 * pace.seconds_per_step)
    return activity.last is not None and time.time() - activity.last < patience_s


def is_over(run: RunDirectory) -> bool:
    """Whether nothing more will happen, as far as can be seen from here. Cheap, for those who wait."""
    attempt = run.newest_attempt()
    claim = None if attempt is None else run.read_claim(attempt)
    if _verdict(run, claim) is not None:
        return True
    if claim is None or _is_older(run, claim):
        return False
    return claim.host == socket.gethostname() and not is_running(claim)


def _ended(state: str) -> State:
    """A verdict's word for it; a superseded master is one that a newer attempt took over from."""
    known: dict[str, State] = {
        "done": "done",
        "stopped": "stopped",
        "preempted": "preempted",
        "queued": "incomplete",
        "incomplete": "incomplete",
        "failed": "failed",
    }
    return known.get(state, "unknown")


def _skipped(reader: RunReader, seen: Seen) -> Skipped:
    rows = {source: SkippedRows(left.rows, left.of) for source, left in reader.left_out.items()}
    return Skipped(reader.skipped, seen.skipped, seen.empty, rows, reader.lacking)


def _origins(run: RunDirectory, seen: Seen) -> tuple[str, ...]:
    fork = forked_from(run)
    changes = [f"{version} since step {step}" for step, version in seen.settings]
    return (*([f"fork of  {fork}"] if fork else ()), *([f"settings {', '.join(changes)}"] if changes else ()))


def _nodes(reader: RunReader, asked: int | str) -> tuple[str, ...]:
    now = nodes_now(reader, asked)
    return () if now is None else tuple(lines_of(now))


def _phase(activity: Activity) -> State:
    if activity.phase == "running":
        return "paused" if activity.paused else "running"
    if activity.phase == "finishing":
        return "finishing"
    return "draining" if activity.phase in ("draining", "ended") else "starting"


def _workers(run: RunDirectory, activity: Activity | None) -> list[WorkerStatus]:
    if activity is None:
        return []
    found = sorted(stalls_of(run, activity), key=lambda stall: stall.seconds)
    # Of several, the one that the worker executes, or else the longest.
    stalls = {rank: stall for stall in found for rank in stall.waits_for or stall.workers}
    stalls |= {rank: stall for stall in found for rank in stall.executing}
    return [WorkerStatus(rank, activity.doing(rank), stalls.get(rank)) for rank in activity.ranks]


def _hint(run: RunDirectory, state: State, cause: Cause | None, queue: Queue | None) -> str:
    if state == "waiting for Slurm":
        return f"It continues by itself when Slurm starts its master. Watch it with: hpcrl logs {run.root} --follow"
    if queue is not None and queue.missing and state in RESUMABLE and state != "stopped":
        return (
            "Slurm may have queued it again: ask on a login node. If nothing is queued, nothing that was finished is "
            f"lost. Resume it: hpcrl resume {run.root}"
        )
    if state == "unknown":
        return f"Watch whether anything happens: hpcrl logs {run.root} --follow"
    return what_next(run.root, state, "" if cause is None else cause.next)
