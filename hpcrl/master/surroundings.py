"""What the parts of an attempt act through: messages out, events, points where tests strike, and the clock."""

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from hpcrl.costs import Figures
from hpcrl.events import Event
from hpcrl.wire.messages import Message


@dataclass(frozen=True)
class Surroundings:
    """`send` reaches the worker of a rank; `note` writes an event, which may get lost; `measured` takes what workers
    have measured of a part of a step's call."""

    send: Callable[[int, Message], None]
    note: Callable[[Event], None]
    fault: Callable[[str], None] = lambda _point: None
    clock: Callable[[], float] = time.monotonic
    measured: Callable[[int, str, Collection[Figures]], None] = lambda _step, _call, _figures: None
