"""What becomes of a job whose process has ended: `… on_exit RUN SUBMISSION master|agent|run CODE [SIGNAL …]`.

Executed by the batch script, once per incarnation of a job; by the job's own process where the script was killed. Reads
the run and the environment, decides (`requeue`), and does it: queue this job again, send a successor where the site
forbids that, or let it end. Exit status 0 says that it was dealt with; anything else, and the script does the simplest
right thing itself.
"""

import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hpcrl.durable.accounting import account_path, keep_account, state_of
from hpcrl.durable.attempts import progress_of
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ExitCode, HpcrlError
from hpcrl.launch.slurm.commands import Requeued, Slurm, SlurmError, SlurmUnavailableError
from hpcrl.launch.slurm.exits import incarnation_of, place_of, record_exit
from hpcrl.launch.slurm.jobs import ENDED, parse_state
from hpcrl.launch.slurm.render import comment_of
from hpcrl.launch.slurm.requeue import (
    FINAL,
    Cause,
    Ended,
    Never,
    Requeue,
    RequeueRules,
    Successor,
    cause_of,
    cause_of_state,
    decide,
)
from hpcrl.launch.slurm.site import duration_s
from hpcrl.launch.slurm.submission import read_intent, send_successor
from hpcrl.processes import oom_kills
from hpcrl.stamps import stamped

NAMES = {"master": "master", "agent": "workers", "run": "run"}
"""Role of a script → the name of the jobs that it makes."""
ALONE = "ALONE"
"""Among the signals: the batch script or its slurmstepd was killed, so that nobody tells Slurm of the job's end."""
KILLED = 128 + signal.SIGKILL
PATIENCE_S = 600.0
PATIENCE_AFTER_TERM_S = 20.0
AGAIN_S = 5.0
"""How long, and how often, a silent controller is asked."""
ACCOUNTING_S = 10.0
"""How long accounting may take to answer: whether it does changes nothing."""
ACCOUNTED_S, ACCOUNT_AGAIN_S = 4.0, 0.5
"""How long, and how often, it is asked about a job that Slurm itself ends, of which it says so a moment later."""
NEAR_S = 5.0
"""A job that has run for its time limit but for this has reached it."""


@dataclass(frozen=True)
class Job:
    """This job as Slurm's environment tells of it; `number` is its own id even in an array."""

    id: str
    number: int
    role: str
    element: str | None
    restarts: int
    partition: str = ""

    @property
    def name(self) -> str:
        """Of the script that made it."""
        return NAMES[self.role]


def job_of(environ: Mapping[str, str], role: str) -> Job:
    """From the variables that Slurm sets in a batch script."""
    number, restarts = incarnation_of(environ)
    array, element = environ.get("SLURM_ARRAY_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID")
    id_ = f"{array}_{element}" if array else str(number)
    return Job(id_, number, role, element, restarts, environ.get("SLURM_JOB_PARTITION", ""))


def settle(run: RunDirectory, nonce: str, job: Job, code: int, told: Sequence[str], slurm: Slurm) -> str:
    """Do what is to be done; what it was, in a sentence."""
    said, is_over = _settle(run, nonce, job, code, told, slurm)
    if is_over and ALONE in told:
        # Slurm would keep the nodes, with nothing on them, until it asks them what they do: after half an hour.
        slurm.scancel([job.id])
    return said


def _settle(run: RunDirectory, nonce: str, job: Job, code: int, told: Sequence[str], slurm: Slurm) -> tuple[str, bool]:
    """What was done, and whether this job is over without Slurm having ended it or queued it again."""
    verdict = run.verdict_of(nonce)
    # The verdict is of the master's own end; an agent that is to come back was sent by it, or has seen no master.
    state = None if verdict is None or (job.role == "agent" and code != ExitCode.REQUEUE) else verdict.state
    if code == ExitCode.DONE and run.done(nonce) is None:
        # srun says so of a step whose node has failed.
        code = KILLED
    rules = read_intent(run, nonce).rules_of(job.name, job.partition)
    cause = cause_of(code, state, frozenset(told), oom_kills(job_only=True))
    if cause is Cause.PREEMPTED:
        cause = _why_slurm_ends_it(job, rules, slurm)
    if cause not in FINAL and not _slurm_does_it(cause, rules) and run.is_told_to_stop(nonce):
        cause = Cause.STOPPED
    place = place_of(job.name, job.element)
    written = Ended(cause, code, time.time(), progress_of(run))
    ended, before = record_exit(run, nonce, place, job.number, job.restarts, written)
    if _slurm_does_it(ended.cause, rules):
        return f"Slurm queues it again by itself ({ended.cause.value}).", False
    if ended.cause is Cause.LEFT_TO_SLURM:
        return decide(ended, before).reason, False
    if job.role == "agent" and code in (ExitCode.REQUEUE, ExitCode.PREEMPTED) and not _master_lives(run, nonce, slurm):
        return "There is no master, and none will come: this node is let go.", True
    decision = decide(ended, before, rules=rules)
    if not isinstance(decision, Never) and (why := _why_not(job, slurm, ended.cause in _BY_SLURM)):
        return why, False
    is_over = True
    match decision:
        case Requeue():
            is_over = not _queue_again(run, nonce, job, slurm, decision.delay_s)
        case Successor():
            _succeed(run, nonce, job, slurm, decision.delay_s)
        case Never() if job.role == "master" and not _is_superseded(code, state):
            # Elements that have not begun would find nobody.
            slurm.scancel(run.jobs_named(nonce, "workers"), "PENDING")
    return decision.reason, is_over


_BY_SLURM = frozenset({Cause.PREEMPTED, Cause.NODE_FAILURE, Cause.TIME_LIMIT})
"""Causes of which Slurm itself ends a job."""


def _slurm_does_it(cause: Cause, rules: RequeueRules) -> bool:
    """Whether Slurm queues the job again without being asked."""
    if cause is Cause.PREEMPTED:
        return rules.requeue_allowed and not rules.preemption_cancels
    return cause is Cause.NODE_FAILURE and rules.requeue_allowed


def _is_superseded(code: int, state: str | None) -> bool:
    """Whether another master has taken over, of this submission perhaps, whose attempt then has no verdict yet."""
    return state == "superseded" or (state is None and code == ExitCode.NEVER_REQUEUE)


def _why_not(job: Job, slurm: Slurm, ended_by_slurm: bool) -> str:
    """Why this job must not be started again, although its process says so: it has been, or is being cancelled.

    Of a job that it ends, with processes that still live, Slurm says COMPLETING and not why.
    """
    try:
        fields = slurm.show_job(job.id)
    except SlurmError as error:
        if isinstance(error, SlurmUnavailableError) and error.missing != "scontrol":
            raise
        return ""
    if _has_restarted(fields, job):
        return "The job has been started again already."
    cancelled = fields.get("JobState") in ("CANCELLED", "COMPLETING") and not ended_by_slurm and not _preempted(fields)
    return "The job was cancelled." if cancelled else ""


def _why_slurm_ends_it(job: Job, rules: RequeueRules, slurm: Slurm) -> Cause:
    """What a job's own record says after SIGTERM. Raises SlurmUnavailableError where somebody has to know it."""
    try:
        fields = slurm.show_job(job.id)
    except SlurmUnavailableError as error:
        # Without scontrol nobody ever knows, and a job that somebody has cancelled must not come back.
        if error.missing == "scontrol" or _slurm_does_it(Cause.PREEMPTED, rules):
            return Cause.LEFT_TO_SLURM
        raise
    if _has_restarted(fields, job):
        return Cause.LEFT_TO_SLURM
    if _preempted(fields):
        return Cause.PREEMPTED
    if fields.get("JobState") == "NODE_FAIL" or fields.get("Reason") == "NodeDown":
        return Cause.NODE_FAILURE
    ran_s, limit_s = duration_s(fields.get("RunTime", "")), duration_s(fields.get("TimeLimit", ""))
    over = ran_s is not None and limit_s is not None and ran_s > limit_s - NEAR_S
    return Cause.TIME_LIMIT if over else Cause.LEFT_TO_SLURM


def _has_restarted(fields: Mapping[str, str], job: Job) -> bool:
    return fields.get("Restarts", str(job.restarts)) != str(job.restarts)


def _preempted(fields: Mapping[str, str]) -> bool:
    return fields.get("PreemptTime", "None") not in ("None", "Unknown", "N/A")


def _queue_again(run: RunDirectory, nonce: str, job: Job, slurm: Slurm, delay_s: float) -> bool:
    """By scontrol, or by a successor where that is refused or not there; whether it is this job that comes back."""
    try:
        refused = slurm.requeue(job.id) is Requeued.REFUSED
    except SlurmUnavailableError as error:
        if error.missing != "scontrol":
            raise
        refused = True
    except SlurmError:
        refused = True
    if refused:
        _succeed(run, nonce, job, slurm, delay_s)
    elif delay_s:
        try:
            slurm.set_begin(job.id, delay_s)
        except SlurmError as error:
            print(f"it may start at once: {error}", file=sys.stderr, flush=True)
    return not refused


def _succeed(run: RunDirectory, nonce: str, job: Job, slurm: Slurm, delay_s: float) -> None:
    send_successor(run, slurm, nonce, job.name, f"{job.number}.{job.restarts}", job.element, delay_s)


def _master_lives(run: RunDirectory, nonce: str, slurm: Slurm) -> bool:
    """Whether a master runs or will run. If Slurm cannot say, yes: a needless turn in the queue costs little."""
    try:
        masters = run.jobs_named(nonce, "master") or slurm.find_by_comment(comment_of(nonce, "master"))
        return any(queued.state.is_alive for queued in slurm.squeue(masters)) if masters else False
    except HpcrlError:
        return True


def write_end_before(run: RunDirectory, nonce: str, job: Job, slurm: Slurm) -> None:
    """Of a job that is started again, write down how the start before it ended and what accounting says of that, where
    its hook was cut short: its node had failed. Without accounting, nothing."""
    place, before = place_of(job.name, job.element), job.restarts - 1
    name = f"{place}.{job.number}.{before}"
    if before < 0 or account_path(run, nonce, name).exists():
        return
    lines = slurm.account(job.id)
    starts = sorted({line.start for line in lines if "." not in line.job and line.start})
    if len(starts) <= job.restarts:
        return
    its = [line for line in lines if starts[before] <= line.start < starts[job.restarts]]
    state = parse_state(state_of(its)).state
    if state in ENDED:
        keep_account(run, nonce, name, its)
        ended = Ended(cause_of_state(state), None, time.time(), progress_of(run))
        record_exit(run, nonce, place, job.number, before, ended)


def keep_accounting(run: RunDirectory, nonce: str, job: Job, slurm: Slurm, patience_s: float = 0.0) -> None:
    """Keep what sacct says of this job and its steps, its older starts included; of a Slurm without, nothing.

    While it does not say how the job ended, it is asked again, if there is patience for that.
    """
    until = time.monotonic() + patience_s
    with suppress(HpcrlError, OSError):
        while not state_of(lines := slurm.account(job.id)) and time.monotonic() < until:
            time.sleep(ACCOUNT_AGAIN_S)
        if lines:
            keep_account(run, nonce, f"{place_of(job.name, job.element)}.{job.number}.{job.restarts}", lines)


def main(arguments: Sequence[str]) -> int:
    run_dir, nonce, role, code, *told = arguments
    os.umask(0o077)
    # To queue this job again is to have it signalled; that must not stop what comes after.
    for name in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(name, signal.SIG_IGN)
    run, job = RunDirectory(Path(run_dir)), job_of(os.environ, role)
    patience = time.monotonic() + (PATIENCE_AFTER_TERM_S if "TERM" in told else PATIENCE_S)
    while True:
        try:
            print(stamped(settle(run, nonce, job, int(code), told, Slurm()), time.time()), flush=True)
            keep_accounting(run, nonce, job, Slurm(timeout_s=ACCOUNTING_S), ACCOUNTED_S if "TERM" in told else 0.0)
            return 0
        except (HpcrlError, OSError) as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            if not isinstance(error, SlurmUnavailableError) or time.monotonic() > patience:
                return 1
        time.sleep(AGAIN_S)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
