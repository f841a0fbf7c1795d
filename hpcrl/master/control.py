"""Commands to a running master from other processes: files in `control/`, obeyed in the order of time, and answered.

The answer is what those who gave a command wait for. A command that a master left unanswered is answered by the next
one of the same submission, which obeys all of them anew.
"""

import time
from collections.abc import Callable
from typing import Literal, get_args

import msgspec

from hpcrl.durable.records import Answer, Command
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import HpcrlError
from hpcrl.events import CommandHeard, CommandRefused, Event

Stop = Literal["", "finish", "drain", "now"]
"""What a user has ordered, in the order of urgency: nobody can take an order back, only make it more urgent."""
POLL_S = 0.2
AGAIN_S = 5.0
"""How often an answer is tried again for which the disk had no room."""


class Control:
    """What this submission was told; commands to older submissions are not for it."""

    def __init__(
        self,
        run: RunDirectory,
        submission: str,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._run = run
        self._submission = submission
        self._clock = clock
        self._now = now
        self._seen: set[str] = set()
        self._unanswered: dict[str, Answer] = {}
        self._next = self._again = 0.0
        self.paused = False
        self.stop: Stop = ""

    def poll(self, attempt: int | None, note: Callable[[Event], None]) -> None:
        """Obey new commands and answer them, at most every `POLL_S`; `attempt` is the one that is under way."""
        if self._clock() < self._next:
            return
        self._next = self._clock() + POLL_S
        listing = self._run.files.listing(self._run.control)
        answered = {name.removesuffix(".answer") for name in listing}
        for file in listing:
            name = file.removesuffix(".json")
            if file.startswith(".") or name == file or name in self._seen:
                continue
            self._seen.add(name)
            answer = self._hear(name, attempt, note)
            if answer is not None and name not in answered:
                self._answer(name, answer)
        if self._unanswered and self._clock() >= self._again:
            self._again = self._clock() + AGAIN_S
            for name in list(self._unanswered):
                self._answer(name, self._unanswered.pop(name), told=True)

    def _hear(self, name: str, attempt: int | None, note: Callable[[Event], None]) -> Answer | None:
        """Obey a command; None if it is another submission's."""
        try:
            command = msgspec.json.decode(self._run.files.read(self._run.command(name)), type=Command)
        except (msgspec.DecodeError, OSError) as error:
            note(CommandRefused(name, str(error)))
            return Answer("refused", self._state, attempt, self._now(), str(error))
        if command.submission != self._submission:
            return None
        note(CommandHeard(command.command, name))
        before = self._state
        self._obey(command)
        return Answer("unchanged" if self._state == before else "obeyed", self._state, attempt, self._now())

    def _obey(self, command: Command) -> None:
        if command.command in ("pause", "continue"):
            self.paused = command.command == "pause"
            return
        order: dict[str, Stop] = {"finish": "drain" if self.paused else "finish", "drain": "drain", "stop": "now"}
        # A paused run begins no call, so it cannot finish a step.
        self.stop = max(self.stop, order[command.command], key=get_args(Stop).index)

    @property
    def _state(self) -> Literal["running", "paused", "finishing", "draining", "stopping"]:
        stopping: dict[Stop, Literal["finishing", "draining", "stopping"]] = {
            "finish": "finishing",
            "drain": "draining",
            "now": "stopping",
        }
        return stopping.get(self.stop) or ("paused" if self.paused else "running")

    def _answer(self, name: str, answer: Answer, told: bool = False) -> None:
        """Publish it. What the disk has no room for does not end the run: it is told once, and tried again."""
        try:
            self._run.publish_answer(name, answer)
        except (HpcrlError, OSError) as error:
            self._unanswered[name] = answer
            if not told:
                print(f"{self._run.answer(name)} was not written, and is tried again: {error}", flush=True)
