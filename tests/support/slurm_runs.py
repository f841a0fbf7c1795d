"""Runs submitted to the test cluster as a user submits them, and disturbed as a cluster disturbs them."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.chaos import Remains, begin, create_run, outputs, remains, rows_of, wait_until
from support.experiments import load_config
from support.slurm_cluster import SlurmCluster

from hpcrl.durable.history import read_history
from hpcrl.durable.journal import Closed
from hpcrl.durable.rundir import RunDirectory

STEPS = 30
UNDELAYED = ("--toy.delay_s", "0")
"""For `hpcrl resume`, where nothing happens any more but the rest of the run."""


def toy_values(partition: str, **cluster: Any) -> dict[str, Any]:
    """A toy run of four nodes with a worker each that takes half a minute if nobody disturbs it."""
    return {
        "algorithm": "toy",
        "name": "toy",
        "control": {"steps": STEPS, "checkpoint": {"steps": 4}, "evaluate": {"steps": 7}},
        "toy": {"delay_s": 0.15, "rows": 20, "batch_size": 8},
        "critic": {"mesh": "1", "layout": "d1"},
        "reward": {"mesh": "0", "layout": "d1"},
        "cluster": {
            "type": "slurm",
            "nodes": 4,
            "workers_per_node": 1,
            "device": "cpu",
            "heartbeat_s": 0.2,
            "lost_after_s": 3.0,
            "start_timeout_s": 60.0,
            "orphan_timeout_s": 10.0,
            "replace_timeout_s": 90.0,
            "grace_s": 3.0,
            "slurm": {
                "partition": partition,
                "master_partition": "cpu",
                "cpus_per_worker": 2,
                "memory": "1500M",
                "master_memory": "1500M",
                "time": "30",
            },
            **cluster,
        },
    }


def undisturbed(folder: Path, steps: int = STEPS) -> Remains:
    """What a run of `toy_values` leaves that nobody disturbs."""
    return remains(undisturbed_run(folder, steps))


def undisturbed_run(folder: Path, steps: int = STEPS) -> RunDirectory:
    """A run of `toy_values` that nobody disturbs, on local processes."""
    values = toy_values("none")
    values["control"] |= {"steps": steps}
    return run_here(values, folder)


def run_here(values: dict[str, Any], folder: Path) -> RunDirectory:
    """The same on processes of this machine, where nothing happens to it and it loses no time."""
    here = {"type": "local", "slurm": {}, "nodes": 1, "workers_per_node": 4}
    values = values | {"cluster": values["cluster"] | here, "toy": values["toy"] | {"delay_s": 0.0}}
    path = folder / "reference.json"
    path.write_text(json.dumps(values))
    run = create_run(folder / "reference", load_config(path))
    codes = begin(run, "reference").wait(120)
    assert set(codes.values()) == {0}, outputs(run)
    return run


@dataclass
class SlurmRun:
    """A run on the cluster, seen from outside."""

    cluster: SlurmCluster
    run: RunDirectory

    @classmethod
    def submit(cls, cluster: SlurmCluster, values: dict[str, Any], *words: str) -> "SlurmRun":
        """`hpcrl submit`, in the test's directory."""
        config = cluster.directory / "run.json"
        config.write_text(json.dumps(values))
        root = cluster.directory / "run"
        hpcrl(cluster, "submit", str(config), "--run-dir", str(root), *words)
        return cls(cluster, RunDirectory.open(root))

    def jobs(self, name: str) -> list[str]:
        """Ids of the jobs of a name (master, workers, run), the newest last."""
        return [str(sub.jobs[name]) for sub in self.run.submissions() if name in sub.jobs]

    def element_away_from_master(self, nodes: int = 4) -> str:
        """An element of the workers whose node can be taken without the master's."""
        master = self.cluster.job_nodes(self.jobs("master")[-1])
        elements = [f"{self.jobs('workers')[-1]}_{number}" for number in range(nodes)]
        found = [element for element in elements if (places := self.cluster.job_nodes(element)) and places != master]
        assert found, f"no element is away from {master}"
        return found[0]

    @property
    def steps(self) -> int:
        """Steps that are closed."""
        lines = read_history(self.run).lines
        return len({line.event.step for line in lines if isinstance(line.event, Closed)})

    def wait_steps(self, more: int, timeout_s: float = 90.0) -> None:
        """Until so many further steps are closed."""
        aim = self.steps + more
        self.wait(lambda: self.steps >= aim, timeout_s, f"step {aim}")

    def wait_done(self, timeout_s: float = 120.0) -> None:
        """Until the run is done and none of its jobs is left, nor any process of one."""
        self.wait(lambda: self.verdict == "done", timeout_s, "done")
        jobs = [job for name in ("master", "workers", "run") for job in self.jobs(name)]
        self.cluster.wait_ended(*jobs)
        self.cluster.wait_no_processes()

    @property
    def verdict(self) -> str | None:
        """The state of the newest verdict."""
        found = [verdict for number in self.run.numbers() if (verdict := self.run.read_verdict(number))]
        return found[-1].state if found else None

    def pid(self, name: str) -> int:
        """Of the process that is master, agent-N or worker-N in the newest attempt that has one."""
        for number in reversed(self.run.numbers()):
            if name == "master" and (claim := self.run.read_claim(number)):
                return claim.pid
            kind, _, which = name.partition("-")
            event, field = {"agent": ("node", "node"), "worker": ("worker", "rank")}.get(kind, ("", ""))
            rows = [row for row in rows_of(self.run.events(number)) if row["event"] == event]
            pids = [row["pid"] for row in rows if str(row[field]) == which]
            if pids:
                return int(pids[-1])
        raise AssertionError(f"no process is {name}")

    def kill(self, *names: str, with_signal: signal.Signals = signal.SIGKILL) -> None:
        for pid in [self._living(name) for name in names]:
            os.kill(pid, with_signal)

    def _living(self, name: str) -> int:
        """The process itself, and none of an older attempt where a newer one has not told of its own yet."""
        self.wait(lambda: Path(f"/proc/{self.pid(name)}").exists(), 60, f"{name} alive")
        return self.pid(name)

    def wait(self, look: Any, timeout_s: float, what: str) -> None:
        try:
            wait_until(look, timeout_s, what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.picture()}") from None

    def picture(self) -> str:
        """All that may explain why a test waits in vain."""
        texts = [self.cluster.picture(), outputs(self.run)]
        texts += [f"── {path.name}\n{path.read_text()}" for path in self.run.submission.glob("*/*.out")]
        for number in self.run.numbers():
            rows = rows_of(self.run.events(number))
            texts.append(f"── events of attempt {number}\n" + "\n".join(map(str, rows[-12:])))
        return "\n".join(texts)


def hpcrl(cluster: SlurmCluster, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """An `hpcrl` command on the cluster's login node."""
    command: Sequence[str] = [sys.executable, "-m", "hpcrl.cli.main", *words]
    return cluster.run(command, check=check, env={"HPCRL_SITE": ""}, timeout_s=180)
