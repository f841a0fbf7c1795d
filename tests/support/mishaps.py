"""What happens to a run beside signals and full disks: damaged files, a node that lacks something.

Processes get these by pickle, so that they are found where tests are not on the path.
"""

import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from support.faults import Strike
from support.forged import flip


@dataclass
class At:
    """Does something to the run's directory when one process passes a point for the first time."""

    role: str
    point: str
    act: Callable[[Path], None]
    root: Path
    me: str = ""
    done: bool = False

    def __call__(self, point: str) -> None:
        self.me = point.removeprefix("as ") if point.startswith("as ") else self.me
        if self.me == self.role and point == self.point and not self.done:
            self.done = True
            self.act(self.root)


@dataclass(frozen=True)
class ToFiles:
    """Does the same to each file that fits a pattern; there is one at least."""

    pattern: str
    act: Callable[[Path], None]

    def __call__(self, root: Path) -> None:
        found = sorted(root.glob(self.pattern))
        assert found, f"{self.pattern} is none of {sorted(str(path.relative_to(root)) for path in root.rglob('*'))}"
        for path in found:
            self.act(path)


class Rot(Strike):
    """A bit of the newest checkpoint flips: of what the first worker has written."""

    def _strike(self) -> None:
        newest = max(self.folder.glob("run/checkpoints/*/MANIFEST.json"))
        flip(newest.parent / "actor.r000.safetensors")


@dataclass
class OnceJournalled(Strike):
    """Strikes at no passage before a line that fits a pattern stands in this attempt's journal."""

    line: bytes = b""
    attempt: str = "000"

    def __call__(self, point: str) -> None:
        if point.startswith("as ") or self._stands():
            super().__call__(point)

    def _stands(self) -> bool:
        journal = self.folder / "run" / "attempts" / self.attempt / "journal.jsonl"
        return journal.exists() and re.search(self.line, journal.read_bytes()) is not None


def half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def garbage(path: Path) -> None:
    path.write_bytes(b"\xff\x00{garbage")


def remove(path: Path) -> None:
    path.unlink()


def unreadable(path: Path) -> None:
    """Reading it gives EIO, as from a disk with bad blocks."""
    path.unlink()
    path.symlink_to("/proc/self/mem")


def lose_module(_: Path) -> None:
    """As on a node whose environment lacks it."""
    sys.modules["hpcrl.workers.toy"] = None  # type: ignore[assignment]


def raise_disk(root: Path) -> None:
    raise OSError(30, "Read-only file system", str(root))
