"""What a batch system's queue says of a run's jobs, as a value. Who asks it is elsewhere (`launch.queues`)."""

import time
from collections import Counter
from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from hpcrl.durable.rundir import RunDirectory

MASTERS = ("master", "run")
"""The jobs of which one has the master."""
_STRONGEST_FIRST = ("running", "starting", "ending", "suspended", "requeued", "pending", "held", "unknown")

Standing = Literal["running", "starting", "ending", "suspended", "requeued", "pending", "held", "unknown", "ended"]


class JobSeen(msgspec.Struct, frozen=True):
    """A job, an element of an array or a component of a heterogeneous job; `word` is the batch system's for its state.

    `id` is what the batch system calls it, `job` the number that it shares with its siblings.
    """

    name: str
    job: int
    id: str
    state: Standing
    word: str
    nodes: str
    reason: str

    @property
    def is_alive(self) -> bool:
        return self.state != "ended"

    @property
    def waits(self) -> bool:
        """Whether it has no processes that run, and will have some."""
        return self.state in ("suspended", "requeued", "pending", "held")

    def describe(self) -> str:
        return f"{self.job} {self.standing}{f' on {self.nodes}' if self.state == 'running' and self.nodes else ''}"

    @property
    def standing(self) -> str:
        if self.state == "ended":
            return f"ended ({self.word})"
        return f"{self.state} ({self.reason})" if self.waits and self.reason else self.state


class Queue(msgspec.Struct, frozen=True):
    """The jobs of a run's newest submission that the queue knows; `missing` says why it could not be asked."""

    jobs: tuple[JobSeen, ...] = ()
    missing: str = ""
    sent_s_ago: float = 0.0

    def master(self) -> JobSeen | None:
        """The job that has the master, or will have it; the newest if all have ended."""
        jobs = [job for job in self.jobs if job.name in MASTERS]
        alive = sorted((job for job in jobs if job.is_alive), key=lambda job: _STRONGEST_FIRST.index(job.state))
        return alive[0] if alive else max(jobs, key=lambda job: job.job, default=None)

    def describe(self) -> str:
        """`master 123 running on n1; workers 124: 3 running, 1 pending (Resources)`."""
        if self.missing:
            return f"cannot be asked here: {self.missing}"
        families: dict[tuple[str, int], list[JobSeen]] = {}
        for job in self.jobs:
            families.setdefault((job.name, job.job), []).append(job)
        shown = [f"{name} {_together(jobs)}" for (name, _), jobs in families.items()]
        return "; ".join(shown) or "knows none of its jobs any more"


class Queues(Protocol):
    """Whoever asks the queues in which runs have jobs."""

    def has(self, launcher: str) -> bool:
        """Whether runs of this `cluster.type` have jobs in a queue."""
        ...

    def ask(self, runs: Sequence[RunDirectory]) -> Sequence[Queue]:
        """What it says of the newest submissions of these runs, which have jobs there."""
        ...


def _together(jobs: list[JobSeen]) -> str:
    if len(jobs) == 1 and jobs[0].id == str(jobs[0].job):
        return jobs[0].describe()
    counts = Counter(job.standing for job in jobs)
    return f"{jobs[0].job}: " + ", ".join(f"{count} {standing}" for standing, count in counts.most_common())


def seconds_since_sent(run: RunDirectory) -> float:
    """Since anything was last sent for the run."""
    return time.time() - max((submission.time for submission in run.submissions()), default=0.0)
