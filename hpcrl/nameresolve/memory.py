"""A name store in the memory of one process: for tests, and for runs whose processes are threads."""

import threading
import time
from collections.abc import Callable

from hpcrl.nameresolve.base import NameStore, Record


class MemorySpace:
    """The generations that several stores share, as a directory would be."""

    def __init__(self) -> None:
        self.generations: dict[tuple[str, int], Record] = {}
        self.lock = threading.Lock()


class MemoryStore(NameStore):
    """One participant's view of a `MemorySpace`."""

    def __init__(self, space: MemorySpace, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock)
        self._space = space

    def __str__(self) -> str:
        return "this process's memory"

    def _name(self, key: str) -> str:
        return key

    def _key(self, name: str) -> str | None:
        return name

    def _scan(self) -> dict[str, int]:
        latest: dict[str, int] = {}
        with self._space.lock:
            for name, generation in self._space.generations:
                latest[name] = max(generation, latest.get(name, 0))
        return latest

    def _load(self, name: str, generation: int) -> Record | None:
        return self._space.generations.get((name, generation))

    def _link(self, name: str, generation: int, record: Record) -> bool:
        with self._space.lock:
            return self._space.generations.setdefault((name, generation), record) is record

    def _unlink(self, name: str, generation: int) -> None:
        with self._space.lock:
            self._space.generations.pop((name, generation), None)
