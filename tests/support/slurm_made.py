"""Run directories of runs on Slurm, and what a queue says of them, made without any Slurm."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from support.made_run import MadeRun

from hpcrl.config.cluster import ClusterConfig
from hpcrl.durable.records import Claim
from hpcrl.durable.rundir import RunDirectory
from hpcrl.inspect.queue import JobSeen, Queue, Standing

MASTER, WORKERS = 123, 124


def made_on_slurm(root: Path) -> MadeRun:
    """A run of the array topology whose master is job 123 and whose workers are 124."""
    made = MadeRun(root, cluster=ClusterConfig(type="slurm", topology="array", nodes=4, device="cpu"))
    made.run.record_submission("submission", {"master": str(MASTER), "workers": str(WORKERS)})
    return made


def reclaim(made: MadeRun, **changes: Any) -> None:
    """Replace who claimed the newest attempt."""
    path = made.run.claim(made.attempt)
    claim = msgspec.structs.replace(msgspec.json.decode(path.read_bytes(), type=Claim), **changes)
    path.unlink()
    path.write_bytes(msgspec.json.encode(claim))


def seen(name: str, state: Standing, *, element: int | None = None, **fields: str) -> JobSeen:
    job = MASTER if name == "master" else WORKERS
    words = {"word": state, "nodes": "n1" if state == "running" else "", "reason": ""} | fields
    return JobSeen(name, job, str(job) if element is None else f"{job}_{element}", state, **words)


@dataclass(frozen=True)
class QueueOf:
    """A queue for the runs on Slurm, which says the same of all, unless it is told what to answer."""

    answer: Callable[[Sequence[RunDirectory]], Sequence[Queue]] = lambda runs: [Queue(missing="nobody")] * len(runs)

    def has(self, launcher: str) -> bool:
        return launcher == "slurm"

    def ask(self, runs: Sequence[RunDirectory]) -> Sequence[Queue]:
        return self.answer(runs)
