"""A process that holds claims on devices."""

import os
from multiprocessing.connection import Connection
from pathlib import Path

from hpcrl.agent.claims import Claims, Holder

GPUS = ("GPU-1", "MIG-GPU-2/1/0")


def hold(folder: Path, run: str, node: int, line: Connection) -> None:
    """In a process of its own: claim, say so, and stay."""
    held = Claims(Holder(run, "s", node, os.getpid()), 0.0, (folder,))
    held.take(GPUS)
    line.send("held")
    line.recv()
