"""Calls of a worker that do not begin until they are let."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HELD = ("actor_train", 2)
"""Call and step."""


@dataclass
class Hold:
    """worker-1 executes what is held only once there is a file `released` in this folder."""

    folder: Path

    def __call__(self, point: str) -> None:
        if point != "as worker-1":
            return
        from hpcrl.algos.host import TorchHost  # the worker has it; a process that starts them needs none

        execute, released = TorchHost.execute, self.folder / "released"

        def held(host: Any, work: Any) -> Any:
            while (work.call, work.step) == HELD and not released.exists():
                time.sleep(0.05)
            return execute(host, work)

        setattr(TorchHost, "execute", held)  # noqa: B010
