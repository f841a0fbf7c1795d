"""What submitting, watching and stopping a run ask of whoever starts its processes. One file implements it for each."""

from pathlib import Path
from typing import Protocol

from hpcrl.config.experiment import Experiment
from hpcrl.durable.rundir import RunDirectory, Submission


class Launcher(Protocol):
    """Starts, looks for and ends the jobs of one run's submissions."""

    waits: bool
    """Whether `hpcrl submit` stays and shows progress unless it is told not to."""

    def prepare(self, experiment: Experiment) -> Experiment:
        """The experiment with all that is left to `auto` settled, before anything is made.

        Raises ConfigurationError for what this machine or cluster cannot do.
        """
        ...

    def describe(self, experiment: Experiment, run_dir: Path) -> str:
        """What `start` would do, for `--dry-run`."""
        ...

    def start(self, run: RunDirectory, nonce: str) -> Submission:
        """Start all jobs of a submission, exactly once, and write down what was started."""
        ...

    def recover(self, run: RunDirectory) -> None:
        """Write down what a submission that was cut off has started."""
        ...

    def living(self, run: RunDirectory, submission: Submission) -> list[str]:
        """Names of the jobs of a submission that have not ended: that run, or will."""
        ...

    def is_alive(self, run: RunDirectory, submission: Submission) -> bool:
        """Whether a master runs or will run; one that Slurm is ending does not count."""
        ...

    def accepts_commands(self, run: RunDirectory, submission: Submission) -> bool:
        """Whether a master runs that can obey; a job that waits in a queue cannot."""
        ...

    def end(self, run: RunDirectory, submission: Submission) -> None:
        """End what is left of a submission's jobs, at once."""
        ...
