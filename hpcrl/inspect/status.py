"""What is known of a run's state now. Nothing is guessed: what cannot be seen from here is called unknown, and why.

A run with a verdict has ended. One without is alive exactly if the process that claimed its newest attempt is, which
can be seen only on that process's own host; elsewhere the last event says how long ago somebody was alive.
"""

import socket
import time
from pathlib import Path
from typing import Literal

import msgspec

from hpcrl.config.experiment import from_dict
from hpcrl.durable.rundir import Claim, RunDirectory
from hpcrl.inspect.activity import Activity
from hpcrl.inspect.failure import Failure, first_failure
from hpcrl.inspect.metrics import figures, last
from hpcrl.inspect.view import RunView, duration

State = Literal[
    "submitted",
    "starting",
    "running",
    "paused",
    "draining",
    "done",
    "stopped",
    "preempted",
    "failed",
    "killed",
    "unknown",
]
ALIVE: tuple[State, ...] = ("submitted", "starting", "running", "paused", "draining", "unknown")


class WorkerStatus(msgspec.Struct, frozen=True):
    """A model worker as the master's events tell of it."""

    rank: int
    doing: str


class RunStatus(msgspec.Struct, frozen=True):
    """A run's state, and how to go on with it. The JSON of `hpcrl status --json`."""

    run_dir: str
    state: State
    why: str
    attempt: int | None
    step: int
    steps: int | None
    metrics: dict[str, float]
    workers: list[WorkerStatus]
    exit_code: int | None
    failure: Failure | None
    last_event_s_ago: float | None
    hint: str

    def render(self) -> str:
        """The same for people."""
        progress = f"step {self.step}" if self.steps is None else f"step {self.step} of {self.steps}"
        attempt = "" if self.attempt is None else f", attempt {self.attempt}"
        code = "" if self.exit_code is None else f", exit code {self.exit_code}"
        lines = [f"{self.run_dir}", f"state    {self.state}{attempt}{code}"]
        if self.why:
            lines.append(f"why      {self.why}")
        lines.append(f"progress {progress}")
        rows = [dict(self.metrics)]
        shown = [f"{figure.label} {figure.show(last(rows, figure.key))}" for figure in figures(rows)]
        if shown:
            lines.append("metrics  " + ", ".join(shown))
        lines += [f"worker-{worker.rank} {worker.doing}" for worker in self.workers]
        if self.failure is not None:
            lines.append("first failure: " + self.failure.render())
        return "\n".join([*lines, self.hint] if self.hint else lines)


def read_status(run_dir: Path) -> RunStatus:
    """Everything `hpcrl status` says, from the run directory alone."""
    run = RunDirectory.open(run_dir)
    view = RunView(run)
    attempt = run.newest_attempt()
    activity = view.newest
    state, why, exit_code = _state(run, attempt, activity)
    alive = state in ALIVE
    ago = None if activity is None or activity.last is None else max(0.0, time.time() - activity.last)
    return RunStatus(
        run_dir=str(run.root),
        state=state,
        why=why,
        attempt=attempt,
        step=view.step,
        steps=view.steps or from_dict(run.read_run().experiment).control.steps,
        metrics=_newest_metrics(view),
        workers=_workers(activity) if alive else [],
        exit_code=exit_code,
        failure=first_failure(run, attempt) if state in ("failed", "killed") and attempt is not None else None,
        last_event_s_ago=None if ago is None else round(ago, 3),
        hint=_hint(run, state),
    )


def _state(run: RunDirectory, attempt: int | None, activity: Activity | None) -> tuple[State, str, int | None]:
    """The state, why it is believed, and the exit code of a run that has ended."""
    if attempt is None or activity is None:
        return "submitted", "no process has begun yet", None
    verdict = run.read_verdict(attempt)
    if verdict is not None:
        return _ended(verdict.state), verdict.reason, verdict.exit_code
    claim = run.read_claim(attempt)
    seen = "no event yet" if activity.last is None else f"last event {duration(time.time() - activity.last)} ago"
    if claim is None:
        return "starting", f"attempt {attempt} is being claimed", None
    if claim.host != socket.gethostname():
        return "unknown", f"no verdict; its master is on {claim.host}, which cannot be asked from here ({seen})", None
    if not is_running(claim):
        return "killed", f"its master (process {claim.pid}) is gone and left no verdict ({seen})", None
    return _phase(activity), seen, None


def is_over(run: RunDirectory) -> bool:
    """Whether nothing more will happen, as far as can be seen from here. Cheap, for those who wait."""
    attempt = run.newest_attempt()
    claim = None if attempt is None else run.read_claim(attempt)
    if attempt is None or claim is None:
        return False
    if run.read_verdict(attempt) is not None:
        return True
    return claim.host == socket.gethostname() and not is_running(claim)


def _ended(state: str) -> State:
    """A verdict's word for it; a superseded master is one that a newer attempt took over from."""
    known: dict[str, State] = {"done": "done", "stopped": "stopped", "preempted": "preempted", "failed": "failed"}
    return known.get(state, "unknown")


def _phase(activity: Activity) -> State:
    if activity.phase == "running":
        return "paused" if activity.paused else "running"
    return "draining" if activity.phase in ("draining", "ended") else "starting"


def is_running(claim: Claim) -> bool:
    """Whether the process of a claim of this host is alive: the same pid, start time and boot."""
    try:
        if Path("/proc/sys/kernel/random/boot_id").read_text().strip() != claim.boot_id:
            return False
        fields = Path(f"/proc/{claim.pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return int(fields[19]) == claim.pid_started and fields[0] not in ("Z", "X")


def _newest_metrics(view: RunView) -> dict[str, float]:
    """The newest value of every metric: evaluations are not in every row."""
    newest: dict[str, float] = {}
    for row in view.rows:
        newest |= {key: float(value) for key, value in row.items() if isinstance(value, int | float)}
    return newest


def _workers(activity: Activity | None) -> list[WorkerStatus]:
    return [] if activity is None else [WorkerStatus(rank, activity.doing(rank)) for rank in activity.ranks]


def _hint(run: RunDirectory, state: State) -> str:
    if state in ("stopped", "preempted", "killed"):
        return f"Nothing that was finished is lost. Go on with: hpcrl resume {run.root}"
    if state == "failed":
        return f"Read on with: hpcrl logs {run.root}. When the cause is gone: hpcrl resume {run.root}"
    if state == "unknown":
        return f"Watch whether anything happens: hpcrl logs {run.root} --follow"
    return ""
