"""Faults that tests put into a run: a signal, a full disk or a frozen process at the n-th passage of a named point."""

import errno
import os
import signal
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path


@dataclass
class Strike:
    """Strikes once in the life of a run, whichever process passes the point in the given role first.

    A process says who it is by passing the point `as NAME`. `number` 0 raises ENOSPC instead of sending a signal.
    """

    role: str
    point: str
    number: int
    marker: Path
    nth: int = 1
    victims: Path | None = None
    me: str = ""
    passed: int = field(default=0)

    def __call__(self, point: str) -> None:
        if point.startswith("as "):
            self.me, self.passed = point.removeprefix("as "), 0
            return
        if not fnmatch(self.me, self.role) or not fnmatch(point, self.point):
            return
        self.passed += 1
        if self.passed == self.nth and self._first():
            self._strike()

    def _first(self) -> bool:
        try:
            os.close(os.open(self.marker, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            return False
        return True

    def _strike(self) -> None:
        if self.number == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        for pid in self._pids():
            os.kill(pid, self.number)

    def _pids(self) -> list[int]:
        """This process, or, where everybody is to go, the others first."""
        others = [] if self.victims is None else [int(pid) for pid in self.victims.read_text().split()]
        return [*(pid for pid in others if pid != os.getpid()), os.getpid()]


SIGNALS = {"KILL": signal.SIGKILL, "TERM": signal.SIGTERM, "STOP": signal.SIGSTOP}
