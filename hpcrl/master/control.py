"""Orders to a running master from other processes: files `control/<time>-<nonce>.json`, obeyed once, by time."""

import secrets
import time
from collections.abc import Callable
from typing import Literal

import msgspec

from hpcrl.durable.rundir import RunDirectory
from hpcrl.events import CommandHeard, CommandRefused, Event

POLL_S = 0.2


class Command(msgspec.Struct, frozen=True):
    """`hpcrl stop`, Ctrl-C or a script → master. A drain lets calls in flight finish; `now` does not."""

    command: Literal["pause", "continue", "drain", "stop"]
    submission: str


def give_command(run: RunDirectory, order: Command) -> str:
    """From any process that can write the run directory. Returns the `nonce` of the event that says it was heard."""
    path = run.control / f"{time.time_ns():020d}-{secrets.token_hex(4)}.json"
    run.files.publish(path, msgspec.json.encode(order), "control")
    return path.name


class Control:
    """What this submission has been ordered; older submissions' orders are not for it."""

    def __init__(self, run: RunDirectory, submission: str) -> None:
        self._run = run
        self._submission = submission
        self._seen: set[str] = set()
        self._next = 0.0
        self.paused = False
        self.stop: Literal["", "drain", "now"] = ""

    def poll(self, note: Callable[[Event], None]) -> None:
        """Read new orders; at most every `POLL_S`."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + POLL_S
        for name in self._run.files.listing(self._run.control):
            if name.startswith(".") or not name.endswith(".json") or name in self._seen:
                continue
            self._seen.add(name)
            try:
                order = msgspec.json.decode(self._run.files.read(self._run.control / name), type=Command)
            except msgspec.DecodeError as error:
                note(CommandRefused(name, str(error)))
                continue
            if order.submission == self._submission:
                note(CommandHeard(order.command, name))
                self._obey(order)

    def _obey(self, order: Command) -> None:
        if order.command in ("pause", "continue"):
            self.paused = order.command == "pause"
        else:
            self.stop = "now" if order.command == "stop" else (self.stop or "drain")
