"""What a run's master asks of Slurm while it runs: when the allocations end, and others in the place of lost ones.

Elements that Slurm has, running or queued, are left alone, and so are those that somebody cancelled. A successor is
sent once for each incarnation, whoever thinks of it first: this, or the batch script of the one that ended.
"""

from collections.abc import Mapping
from pathlib import Path

from hpcrl.durable.rundir import RunDirectory
from hpcrl.launch.slurm.commands import Slurm
from hpcrl.launch.slurm.jobs import State
from hpcrl.launch.slurm.submission import send_successor
from hpcrl.workers.members import EVERYTHING


class SlurmAllocation:
    """The jobs of one submission. Its methods take as long as Slurm's commands do; one thread at a time calls them."""

    def __init__(self, run_dir: Path, nonce: str, slurm: Slurm | None = None) -> None:
        self._run = RunDirectory(run_dir)
        self._nonce = nonce
        self._slurm = slurm or Slurm()

    def ends(self) -> dict[int, float]:
        """Node → seconds since 1970 at which its job's time is over; EVERYTHING for the job that has the master."""
        jobs = [*self._jobs("master"), *self._jobs("run"), *self._jobs("workers")]
        workers = {int(job) for job in self._jobs("workers")}
        found: dict[int, float] = {}
        for job, end in self._slurm.end_times(jobs).items():
            node = job.element if job.job in workers and job.element is not None else EVERYTHING
            found[node] = min(end, found.get(node, end))
        return found

    def replace(self, lost: Mapping[int, tuple[int, int]]) -> list[str]:
        """Send successors for lost nodes → (job, restarts) of their last agents; says for which, and as which jobs."""
        jobs = self._jobs("workers")
        if not jobs or not lost:
            return []
        queued = self._slurm.squeue(jobs)
        kept = {each.id.element for each in queued if each.state.is_alive or each.state.state is State.CANCELLED}
        said = []
        for node, (number, restarts) in sorted(lost.items()):
            if node in kept:
                continue
            of, options = f"{number}.{restarts}", [f"--array={node}"]
            job = send_successor(self._run, self._slurm, self._nonce, "workers", of, options)
            if job is not None:
                said.append(f"node {node}: job {job} in the place of {number}")
        return said

    def _jobs(self, name: str) -> list[str]:
        return [job for job, its in self._run.jobs_of(self._nonce).items() if its == name]
