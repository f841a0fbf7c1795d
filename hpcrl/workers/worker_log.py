"""A worker's file of events."""

from collections.abc import Mapping
from pathlib import Path

from hpcrl.event_log import EventLog
from hpcrl.member_events import MemoryHeld

Bytes = Mapping[str, tuple[int, int, int]]


class WorkerLog(EventLog):
    """What a call holds in memory is written where it is not what this call held the last time."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._held: dict[str, Bytes] = {}

    def held(self, step: int, call: str, part: int, held: Bytes, seconds: float) -> None:
        """As of `MemoryHeld`."""
        if held and held != self._held.get(call):
            self._held[call] = held
            self.write(MemoryHeld(step, call, part, dict(held), seconds))
