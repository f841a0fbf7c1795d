"""Indexes that nobody keeps: of a run that is not there yet, or of settings that are only tried."""

from collections.abc import Callable, Sequence
from pathlib import Path

from hpcrl.data.contents import Contents
from hpcrl.data.inputs import fingerprints
from hpcrl.scratch import ScratchFolder

PREFIX = "hpcrl-index-"
"""What the names of their folders begin with."""


class ScratchIndexes:
    """Fulfils `Indexes` in a folder that goes with this object; `below` finds those that were made before."""

    def __init__(
        self, contents: Contents | None = None, below: Callable[[str], Path | None] = lambda name: None
    ) -> None:
        self._contents = contents or Contents()
        self._below = below
        self._folder: ScratchFolder | None = None
        self.made: dict[str, Path] = {}
        """By name."""

    def fingerprint(self, setting: str, files: Sequence[Path]) -> str:
        return fingerprints({setting: list(files)}, self._contents)[setting]

    def confirm(self, setting: str, files: Sequence[Path]) -> None:
        """Nothing else is expected of them."""

    def find(self, name: str) -> Path | None:
        return self.made.get(name) or self._below(name)

    def keep(self, name: str, chunks: Sequence[bytes | memoryview]) -> Path:
        if self._folder is None:
            self._folder = ScratchFolder(PREFIX)
        path = self._folder.path / name
        with path.open("wb") as file:
            file.writelines(chunks)
        self.made[name] = path
        return path

    def discard(self, name: str) -> None:
        """A new one hides it."""
