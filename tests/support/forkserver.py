"""The servers that ranks and jobs are forked from: they have imported what is needed, so one starts in a moment."""

import multiprocessing
import os
from functools import cache
from multiprocessing import forkserver as python
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Literal

import pytest

TESTS = Path(__file__).parents[1]

JOBS = [
    "hpcrl.master.master",
    "hpcrl.agent.agent",
    "hpcrl.workers.toy",
    "hpcrl.launch.mirroring",
    "hpcrl.launch.launchers.auto",
]
TORCH = ["hpcrl.algos.host", "hpcrl.algos.ppo", "hpcrl.engines.fsdp", "huggingface_hub.serialization", "torch._dynamo"]
"""Nothing that asks for a GPU: none of the processes could use it then."""
Kind = Literal["toy", "torch", "guests"]
IMPORTS: dict[Kind, list[str]] = {
    "toy": [],
    "torch": TORCH,
    "guests": [*TORCH, "support.guest_imports"],
}
OURS = ["numpy.random", "pytest", "support.cluster", "support.faults", "support.frozen"]
"""What freezes comes last."""


@cache
def _server(kind: Kind) -> python.ForkServer:
    """Python has one such server for each process. Another one, without torch, is for those that need none: what a
    server has in memory is what each fork copies the page tables of, and so does each fork of that."""
    server = python.ForkServer()
    server.set_forkserver_preload([*JOBS, *IMPORTS[kind], *OURS])
    with pytest.MonkeyPatch.context() as patch:
        # The server has no path of ours by itself, and passes over what it does not find.
        patch.setenv("PYTHONPATH", str(TESTS), prepend=os.pathsep)
        server.ensure_running()
    return server


def start(target: Any, *args: Any, kind: Kind = "torch", daemon: bool = False) -> ForkServerProcess:
    """A process of the server that has imported torch, of the one that has not, or of the one with what
    DeepSpeed and Megatron import, too."""
    process = multiprocessing.get_context("forkserver").Process(target=target, args=args, daemon=daemon)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(python, "connect_to_new_process", _server(kind).connect_to_new_process)
        process.start()
    return process
