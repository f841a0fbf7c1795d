"""Whether a script is silent: it asks for nothing and waits for nothing, by its own clock. Where it is then.

Knows neither what it asks for nor who is told.
"""

import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from hpcrl.controller.user_code import is_shown

MOST_STACK = 10_000
"""Characters of a stack that are told: its innermost."""


@dataclass
class _Runs:
    """A thread that runs the script's own code. `due`: from when on it is silent, or is told of again."""

    step: int
    since: float
    due: float
    told: bool = False


class Silence:
    """Watches the threads of a script, each of which says when it asks and when it waits. For any thread.

    `silent` is told, on a thread of its own: step, seconds, stack; `ended` that one of which it was told has asked, or
    waits: step, seconds.
    """

    def __init__(
        self, limit_s: float, silent: Callable[[int, float, str], None], ended: Callable[[int, float], None]
    ) -> None:
        self._limit_s = limit_s
        self._silent = silent
        self._ended = ended
        self._changed = threading.Condition()
        self._runs: dict[int, _Runs] = {}
        self._over = False

    def watch(self) -> None:
        """Until `close`."""
        threading.Thread(target=self._watch, name="silence", daemon=True).start()

    def runs(self, step: int) -> None:
        """This thread runs the script's own code, in this step."""
        self.rests()
        with self._changed:
            now = time.monotonic()
            self._runs[threading.get_ident()] = _Runs(step, now, now + self._limit_s)

    def rests(self) -> None:
        """It asks or waits, or its script is over."""
        with self._changed:
            was = self._runs.pop(threading.get_ident(), None)
        if was is not None and was.told:
            self._ended(was.step, time.monotonic() - was.since)

    @contextmanager
    def resting(self, step: int) -> Iterator[None]:
        """Within, this thread waits; afterwards it runs."""
        self.rests()
        try:
            yield
        finally:
            self.runs(step)

    def close(self) -> None:
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def _watch(self) -> None:
        while True:
            with self._changed:
                if self._over:
                    return
                now = time.monotonic()
                found = {thread: it for thread, it in self._runs.items() if it.due <= now}
                for it in found.values():
                    it.told, it.due = True, now + (now - it.since)
                stacks = {thread: _stack(thread) for thread in found}
                if not found:
                    # What begins to run meanwhile is not due before this is over.
                    self._changed.wait(min((it.due - now for it in self._runs.values()), default=self._limit_s))
            for thread, it in found.items():
                self._silent(it.step, now - it.since, stacks[thread])


def _stack(thread: int) -> str:
    """Where a thread is: its frames in the user's code and in libraries, the innermost last."""
    frame = sys._current_frames().get(thread)
    shown = [it for it in traceback.extract_stack(frame) if is_shown(it.filename)] if frame is not None else []
    return "".join(traceback.format_list(shown)).rstrip()[-MOST_STACK:]
