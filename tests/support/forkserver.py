"""The server that ranks and jobs are forked from: it has imported all that they need, so one starts in a moment."""

import multiprocessing
from multiprocessing.context import ForkServerContext

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
]
"""Nothing that asks for a GPU: none of the processes could use it then."""


def forkserver() -> ForkServerContext:
    """Python has one such server for each process, with what is preloaded when it starts."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context
