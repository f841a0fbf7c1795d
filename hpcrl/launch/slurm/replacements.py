"""Another job in the place of a lost element that Slurm will not start again: a failed node where requeue is forbidden.

The master asks while a node is missing. Elements that Slurm has, running or queued, are left alone, and so are those
that somebody cancelled. A successor is sent once for each incarnation, whoever thinks of it first.
"""

from collections.abc import Mapping
from pathlib import Path

from hpcrl.durable.rundir import RunDirectory
from hpcrl.launch.slurm.commands import Slurm
from hpcrl.launch.slurm.jobs import State
from hpcrl.launch.slurm.submission import send_successor


class Replacements:
    """Of one submission. `ensure` may take as long as Slurm's commands do; one thread at a time calls it."""

    def __init__(self, run_dir: Path, nonce: str, slurm: Slurm | None = None) -> None:
        self._run = RunDirectory(run_dir)
        self._nonce = nonce
        self._slurm = slurm or Slurm()

    def ensure(self, lost: Mapping[int, tuple[int, int]]) -> list[str]:
        """Send successors for lost nodes → (job, restarts) of their last agents; says for which, and as which jobs."""
        jobs = [str(sub.jobs["workers"]) for sub in self._run.submissions() if self._ours(sub.nonce, sub.jobs)]
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

    def _ours(self, nonce: str, jobs: Mapping[str, int | str]) -> bool:
        return nonce == self._nonce and "workers" in jobs
