"""Signals as a flag: a handler remembers which came first and wakes a poller; nothing is done inside a handler."""

import os
import signal
from contextlib import suppress
from types import FrameType

DRAINING = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


class Signals:
    """Catches the signals that ask a process to go, from construction to `close`. Made in the main thread."""

    def __init__(self) -> None:
        self.caught = ""
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._before = {number: signal.signal(number, self._remember) for number in DRAINING}
        self._before_wakeup = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)

    def fileno(self) -> int:
        """Readable once a signal came, until `quiet`."""
        return self._reader

    def quiet(self) -> None:
        """The waiting poller has seen it."""
        with suppress(BlockingIOError):
            os.read(self._reader, 4096)

    def _remember(self, number: int, _frame: FrameType | None) -> None:
        self.caught = self.caught or signal.Signals(number).name

    def close(self) -> None:
        signal.set_wakeup_fd(self._before_wakeup)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self._reader)
        os.close(self._writer)
