"""Asking Slurm what becomes of runs, one squeue for all of them, and saying it as `inspect` understands it."""

from collections.abc import Sequence

from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import HpcrlError
from hpcrl.inspect.queue import JobSeen, Queue, seconds_since_sent
from hpcrl.launch.slurm.commands import Slurm, SlurmUnavailableError
from hpcrl.launch.slurm.jobs import Queued, State

PATIENCE_S = 20.0
"""A person waits for the answer."""
_STANDINGS = frozenset({"running", "starting", "ending", "suspended", "requeued", "pending", "held", "unknown"})


def look(runs: Sequence[RunDirectory], slurm: Slurm | None = None) -> list[Queue]:
    """What Slurm says of the newest submission of each of these runs, which are on Slurm. At most one RPC."""
    jobs = [_jobs(run) for run in runs]
    sent = [seconds_since_sent(run) for run in runs]
    wanted = [job for each in jobs for job in each]
    if not wanted:
        return [Queue(sent_s_ago=seconds) for seconds in sent]
    try:
        found = (slurm or Slurm(timeout_s=PATIENCE_S)).squeue(map(str, wanted))
    except HpcrlError as error:
        return [Queue(missing=_what_is_missing(error), sent_s_ago=seconds) for seconds in sent]
    return [Queue(_seen(each, found), "", seconds) for each, seconds in zip(jobs, sent, strict=True)]


def _what_is_missing(error: HpcrlError) -> str:
    if not isinstance(error, SlurmUnavailableError):
        return str(error).splitlines()[0]
    return "there is no squeue in PATH" if error.missing == "squeue" else f"{error.missing} does not answer"


def _jobs(run: RunDirectory) -> dict[int, str]:
    """Job → name, of the newest submission, the oldest first."""
    nonce = run.newest_nonce()
    return {} if nonce is None else {int(job): name for job, name in run.jobs_of(nonce).items()}


def _seen(jobs: dict[int, str], found: Sequence[Queued]) -> tuple[JobSeen, ...]:
    return tuple(_job_seen(jobs[job], queued) for job in jobs for queued in found if queued.id.job == job)


def _job_seen(name: str, queued: Queued) -> JobSeen:
    state: State = queued.state.state
    standing = state.value if state.value in _STANDINGS else "ended"
    return JobSeen(
        name,
        queued.id.job,
        str(queued.id),
        standing,  # type: ignore[arg-type]
        queued.state.word.lower(),
        queued.nodes,
        queued.reason,
    )
