"""Which module a process imports, for another one to read in memory that both share, so that nobody has to listen.

The reader may see a half-written line: it is for people, and changes again.
"""

import mmap
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

LONGEST = 512


class ImportWatch:
    """Made before the fork. One side enters `watching`, the other reads `doing`."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, LONGEST)

    @property
    def doing(self) -> str:
        """What is being imported, in words; "" when nothing is."""
        return self._memory[:].rstrip(b"\0").decode(errors="replace")

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Write down every module whose import begins in this process."""
        sys.meta_path.insert(0, self)
        try:
            yield
        finally:
            sys.meta_path.remove(self)
            self._write("")

    def find_spec(self, name: str, _path: Sequence[str] | None, _target: object = None) -> None:
        """Asked before all other finders; leaves it to them."""
        self._write(f"importing {name}, {len(sys.modules)} modules so far")

    def _write(self, text: str) -> None:
        self._memory[:] = text.encode(errors="replace")[:LONGEST].ljust(LONGEST, b"\0")
