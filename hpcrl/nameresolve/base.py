"""The contract of name resolve: what the processes of one attempt know of each other by name.

A store belongs to one attempt and a key is written once, so nobody races and nothing goes stale: a process left over
from an older attempt writes into a store that nobody reads any more.
"""

import random
import time
from abc import ABC, abstractmethod

from hpcrl.errors import HpcrlError, InternalError

FIRST_POLL_S = 0.02
SLOWEST_POLL_S = 1.0
JITTER = 0.25


class NameEntryExistsError(HpcrlError):
    """The key has been added before."""


class NameEntryNotFoundError(HpcrlError):
    """The key has not been added, or not been seen yet."""


class NameTimeoutError(HpcrlError, TimeoutError):
    """What was waited for did not come before the deadline."""


class DamagedEntryError(InternalError):
    """A key is there, and what it holds is not what anybody has added."""


class NameStore(ABC):
    """A map from slash-separated keys to strings, shared by processes. Knows nothing of what the values mean."""

    def add(self, key: str, value: str) -> None:
        """Add a key; of several processes that add it, exactly one succeeds.

        Raises:
            NameEntryExistsError: somebody has added it before.
        """
        if not isinstance(value, str):
            raise TypeError(f"the value of {key!r} is {value!r}, a {type(value).__name__}: a name store keeps str only")
        if not self._create(normalise(key), value):
            raise NameEntryExistsError(f"{key!r} is in {self} already, and a key is written once")

    def get(self, key: str) -> str:
        """The value of a key.

        Raises:
            NameEntryNotFoundError: there is no such key.
        """
        value = self._read(normalise(key))
        if value is None:
            raise NameEntryNotFoundError(f"there is no {key!r} in {self}")
        return value

    def list(self, prefix: str = "") -> dict[str, str]:
        """The keys below `prefix` with their values, in the order of the keys; all of them below ""."""
        inside = normalise(prefix) + "/" if prefix else ""
        return {key: value for key, value in sorted(self._entries().items()) if key.startswith(inside)}

    def wait(self, key: str, timeout_s: float, first_poll_s: float = 0.0) -> str:
        """The value of a key as soon as it is there; it is looked for every `first_poll_s`, or ever more rarely.

        Raises:
            NameTimeoutError: it was not there within `timeout_s`; the last look comes then.
        """
        name, deadline = normalise(key), time.monotonic() + timeout_s
        late, pause_s = False, first_poll_s
        while not late:
            jittered = pause_s * random.uniform(1 - JITTER, 1 + JITTER)
            time.sleep(max(0.0, min(jittered, deadline - time.monotonic())))
            late = time.monotonic() >= deadline
            if (value := self._read(name)) is not None:
                return value
            pause_s = max(first_poll_s, min(2 * pause_s or FIRST_POLL_S, SLOWEST_POLL_S))
        raise NameTimeoutError(f"waited {timeout_s:g} s for {key!r} in {self}, and it did not come")

    def close(self) -> None:  # noqa: B027 (a directory or memory holds nothing open)
        """Let go of what the store holds open; the keys stay."""

    @abstractmethod
    def _create(self, key: str, value: str) -> bool:
        """Make an entry with its value in one instant; False where the key has one."""

    @abstractmethod
    def _read(self, key: str) -> str | None:
        """The value of a key; None where it is not there."""

    @abstractmethod
    def _entries(self) -> dict[str, str]:
        """All keys and values."""


def normalise(key: str) -> str:
    """A key without empty components: `/a//b/` is `a/b`.

    Raises:
        ValueError: nothing is left of it.
    """
    parts = [part for part in key.split("/") if part]
    if not parts:
        raise ValueError(f"{key!r} is no key: it has no component that is not empty")
    return "/".join(parts)
