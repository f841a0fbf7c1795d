"""submitit's Slurm executor, sending our own scripts.

submitit writes a script that unpickles a function by the job's id; ours starts `hpcrl.launch.slurm.job` with paths, so
that it can be sent again by hand and survives its own requeue. submitit's call of sbatch has no time-out, passes on the
environment of a surrounding job, and cannot tell a refusal from an answer that got lost; ours goes through `Slurm`.
What is left of submitit is what others use: an executor that returns jobs with ids, files and states.
"""

from collections.abc import Sequence
from pathlib import Path

import submitit
from submitit.slurm.slurm import SlurmJob

from hpcrl.launch.slurm.commands import Slurm


class ScriptExecutor(submitit.SlurmExecutor):
    """Sends a script that is on disk. `options` are sbatch's, and win over the script's."""

    def __init__(self, script: Path, slurm: Slurm, options: Sequence[str] = ()) -> None:
        super().__init__(folder=script.parent)
        self._script = script
        self._slurm = slurm
        self._options = tuple(options)

    @classmethod
    def affinity(cls) -> int:
        """Whether sbatch is there is for `Slurm` to say, with a message that helps."""
        return 2

    def send(self) -> SlurmJob:
        """One sbatch. Raises AmbiguousError where the job may be queued though nobody said so."""
        return self._submit_command("")

    def _make_submission_file_text(self, command: str, uid: str) -> str:
        return self._script.read_text()

    def _submit_command(self, command: str) -> SlurmJob:
        return SlurmJob(folder=self.folder, job_id=self._slurm.sbatch(self._script, self._options), tasks=[0])
