"""What the parts of an attempt act through: messages out, events, points where tests strike, and the clock."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from hpcrl.events import Event
from hpcrl.progress import Progress
from hpcrl.wire.messages import Message


@dataclass(frozen=True)
class Surroundings:
    """`send` reaches the worker of a rank, once `flush` lets it leave, or the next wait does; `note` writes an event,
    which may get lost; `follow` takes what is added up and not written."""

    send: Callable[[int, Message], None]
    note: Callable[[Event], None]
    follow: Callable[[Progress], None] = lambda _progress: None
    fault: Callable[[str], None] = lambda _point: None
    clock: Callable[[], float] = time.monotonic
    flush: Callable[[], None] = lambda: None
