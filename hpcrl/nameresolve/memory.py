"""A name store in the memory of one process, for processes that are threads."""

import threading

from hpcrl.nameresolve.base import NameStore


class MemoryStore(NameStore):
    """Shared by all who use it."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._lock = threading.Lock()

    def __str__(self) -> str:
        return "this process's memory"

    def _create(self, key: str, value: str) -> bool:
        with self._lock:
            if key in self._values:
                return False
            self._values[key] = value
            return True

    def _read(self, key: str) -> str | None:
        return self._values.get(key)

    def _entries(self) -> dict[str, str]:
        return self._values.copy()
