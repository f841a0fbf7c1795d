"""The server that ranks and jobs are forked from: it has imported all that they need, so one starts in a moment."""

import multiprocessing
import os
from multiprocessing.context import ForkServerContext
from multiprocessing.forkserver import ensure_running
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

PRELOADED = [
    "hpcrl.master.master",
    "hpcrl.agent.agent",
    "hpcrl.workers.toy",
    "hpcrl.launch.mirroring",
    "hpcrl.launch.launchers.auto",
    "hpcrl.algos.host",
    "hpcrl.algos.ppo",
    "hpcrl.engines.fsdp",
    "huggingface_hub.serialization",
    "numpy.random",
    "pytest",
    "torch._dynamo",
    "support.cluster",
    "support.faults",
    "support.frozen",
]
"""Nothing that asks for a GPU: none of the processes could use it then. What freezes comes last."""


def forkserver() -> ForkServerContext:
    """Python has one such server for each process, with what is preloaded when it starts."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    with pytest.MonkeyPatch.context() as patch:
        # The server has no path of ours by itself, and passes over what it does not find.
        patch.setenv("PYTHONPATH", str(TESTS), prepend=os.pathsep)
        ensure_running()
    return context
