"""A node as an agent may find it: its environment, its GPUs, its shared memory."""

import json
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

from support.gpus import FakeNode, FakeNvml

from hpcrl.agent import claims

VARIABLES = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS")


@dataclass
class OnNode:
    """Gives agents an environment and a /dev/shm of the test's own, and writes down what their workers find."""

    folder: Path
    environ: dict[str, str]
    gpus: FakeNode
    private: tuple[str, ...] = ()
    """Agents that do not see the others' claims."""
    by_agent: dict[str, dict[str, str]] = field(default_factory=dict)

    def __call__(self, point: str) -> None:
        me = point.removeprefix("as ")
        if point.startswith("as agent"):
            for name in VARIABLES:
                os.environ.pop(name, None)
            os.environ.update(self.environ | self.by_agent.get(me, {}))
            sys.modules["pynvml"] = FakeNvml(self.gpus)  # type: ignore[assignment]
            shared = self.folder / (f"shm-{me}" if me in self.private else "shm")
            shared.mkdir(exist_ok=True)
            claims.Claims.__init__.__defaults__ = ((shared,),)
            claims.LEAVE_S = 0.5
        elif point.startswith("as worker"):
            found = {name: os.environ.get(name) for name in VARIABLES} | {"cpus": sorted(os.sched_getaffinity(0))}
            (self.folder / f"{me}.json").write_text(json.dumps(found))
