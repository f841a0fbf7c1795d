"""How an attempt ended, as the master decides it and the verdict tells it."""

from dataclasses import dataclass
from typing import Literal

from hpcrl.durable.journal import Broken
from hpcrl.errors import ExitCode, Nature
from hpcrl.wire.messages import Failed


@dataclass(frozen=True)
class Ending:
    """How an attempt ended. `lost` begins another attempt here, as do `grown`, on more nodes, and `changed`, with the
    script that is in force then; all others end this process.

    `preempted`: told to go by the system; `queued`: nodes were missing that wait for their turn; `incomplete`: nodes
    were missing, or of no use, for any other reason. `asked`: a user or the system wanted it; then the nodes that are
    `leaving` go, and the others stay. `broken`: what broke while everybody was alive; if it does so again, it is no
    loss.
    """

    state: Literal[
        "done", "lost", "grown", "changed", "stopped", "preempted", "queued", "incomplete", "failed", "superseded"
    ]
    exit_code: ExitCode
    reason: str
    failure: Failed | None = None
    traceback: str | None = None
    asked: bool = False
    who: str = ""
    """The process that began it, where one did."""
    nature: Nature = ""
    leaving: tuple[int, ...] = ()
    broken: tuple[Broken, ...] = ()
