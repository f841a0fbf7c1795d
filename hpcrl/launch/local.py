"""Start the jobs of a run on this machine, through submitit's local executor, in a session of their own.

Run as `python -m hpcrl.launch.local RUN SUBMISSION`: the jobs must outlive the terminal that submitted them and must
not see its Ctrl-C, and submitit starts them as children of whoever calls it. Records the process ids in the run.
"""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

from hpcrl.agent.devices import hides_all
from hpcrl.agent.gpus import choose
from hpcrl.agent.nvml import read_inventory
from hpcrl.config.experiment import ExperimentConfig, what_every_run_has
from hpcrl.durable.records import Submission
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import InternalError
from hpcrl.launch.entry import seeing
from hpcrl.processes import kill_group

A_YEAR_MIN = 60 * 24 * 365


class LocalLauncher:
    """Starts the jobs of runs on this machine, and sees them by their command lines."""

    def prepare(self, experiment: ExperimentConfig) -> ExperimentConfig:
        """Raises ConfigurationError where this machine, shared by all simulated nodes, has fewer GPUs than workers."""
        cluster = experiment.cluster
        if cluster.device == "cuda" or (cluster.device == "auto" and not hides_all(os.environ)):
            others = (cluster.most_nodes - 1) * cluster.workers_per_node
            choose(cluster, others, os.environ, read_inventory())
        return dataclasses.replace(experiment, cluster=dataclasses.replace(experiment.cluster, type="local"))

    def describe(self, experiment: ExperimentConfig, run_dir: Path) -> str:
        cluster = experiment.cluster
        agents = "an agent" if cluster.most_nodes == 1 else f"{cluster.most_nodes} agents"
        return (
            f"{run_dir}: a master and {agents} with workers_per_node = {cluster.workers_per_node}, as "
            "processes of this machine. `hpcrl plan` shows what they would do."
        )

    def start(self, run: RunDirectory, nonce: str) -> Submission:
        command = [sys.executable, "-m", "hpcrl.launch.local", str(run.root), nonce]
        none = subprocess.DEVNULL
        # The jobs inherit these streams: a pipe would keep this process waiting for their end. A disk may be full.
        with open(os.memfd_create("said"), "w+b") as said:
            starts = subprocess.Popen(command, start_new_session=True, stdin=none, stdout=none, stderr=said)
            os.waitid(os.P_PID, starts.pid, os.WEXITED | os.WNOWAIT)
            started = [submission for submission in run.submissions() if submission.nonce == nonce]
            if not started:
                # What it has started is in no record. Its group keeps its number until somebody waits for it.
                kill_group(starts.pid)
                said.seek(0)
                code = starts.wait()
                why = said.read().decode(errors="replace").strip() or f"{' '.join(command)} ended with {code}"
                raise InternalError(f"the jobs of {run.root} could not be started:\n{why}")
            starts.wait()
        return started[0]

    def recover(self, run: RunDirectory) -> None:
        """`start` records what it starts before it returns; what was cut off within has no process left to find."""

    def living(self, run: RunDirectory, submission: Submission) -> list[str]:
        """Seen by the nonce alone: the run may have been moved since, or be asked about by another path."""
        folder = run.submitit_folder(submission.nonce).name
        return [
            name
            for name, pid in submission.jobs.items()
            if name != "group" and folder in (Path(word).name for word in _command_line(int(pid)))
        ]

    def is_alive(self, run: RunDirectory, submission: Submission) -> bool:
        return "master" in self.living(run, submission)

    def accepts_commands(self, run: RunDirectory, submission: Submission) -> bool:
        return self.is_alive(run, submission)

    def end(self, run: RunDirectory, submission: Submission) -> None:
        """Workers die with their agents."""
        if self.living(run, submission):
            kill_group(int(submission.jobs["group"]))


def submit_jobs(run: RunDirectory, nonce: str) -> dict[str, int]:
    """Name → process id of its submitit controller, and `group`: the process group that all of them share."""
    # Who only asks what this machine has needs no job.
    import submitit

    experiment = what_every_run_has(run.configuration(nonce))
    cluster = experiment.cluster
    executor = submitit.AutoExecutor(folder=run.submitit_folder(nonce), cluster="local")
    jobs = {"group": os.getpgrp()}
    for name in ("master", *(f"agent-{node}" for node in range(cluster.most_nodes))):
        process, _, node = name.partition("-")
        executor.update_parameters(timeout_min=A_YEAR_MIN, name=f"hpcrl-{name}")
        seen = os.environ.get("CUDA_VISIBLE_DEVICES")
        job = executor.submit(seeing, seen, process, str(run.root), nonce, int(node or 0), cluster.threads_per_worker)
        jobs[name] = int(job.job_id)
    return jobs


def _command_line(pid: int) -> list[str]:
    try:
        return os.fsdecode(Path(f"/proc/{pid}/cmdline").read_bytes()).split("\0")
    except OSError:
        return []


if __name__ == "__main__":
    os.umask(0o077)
    ours = RunDirectory(Path(sys.argv[1]))
    ours.record_submission(sys.argv[2], submit_jobs(ours, sys.argv[2]))
