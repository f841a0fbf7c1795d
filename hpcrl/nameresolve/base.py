"""The contract of name resolve: a small map from slash-separated keys to strings that processes share.

Every change of a key is a compare-and-swap: it creates the key's next *generation*, which only one process can. A
generation never changes once it exists, the highest one counts, and a deleted key leaves a tombstone, so a generation
number never means two things. A process that was frozen and wakes up late finds the generation that it would write
taken, and learns that it has lost the key.

A key with a time to live stays for as long as its generation goes on rising. The observer judges that on its own
monotonic clock, from the first time that it saw a generation; no two clocks are ever compared.
"""

import random
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from hpcrl.errors import HpcrlError

RACES = 100
"""How often a lost race is run again before it is an error."""
FIRST_POLL_S = 0.02
SLOWEST_POLL_S = 1.0
JITTER = 0.25


class NameEntryExistsError(HpcrlError):
    """The key is there already, and `replace` was not asked for."""


class NameEntryNotFoundError(HpcrlError):
    """The key is not there: never added, deleted or expired."""


class NameLostError(HpcrlError):
    """This process added the key, and another has since replaced, deleted or taken it over."""


class NameTimeoutError(HpcrlError, TimeoutError):
    """What was waited for did not come before the deadline."""


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one generation of a key holds. Written and read by the stores only."""

    key: str
    value: str
    owner: str
    ttl_s: float | None = None
    gone: bool = False


@dataclass(frozen=True)
class _Sighting:
    generation: int
    record: Record
    since: float


@dataclass(frozen=True)
class _Own:
    generation: int
    record: Record
    delete_on_exit: bool


class NameStore(ABC):
    """What processes know of each other by name. Owns the keys it added; knows nothing of what the values mean.

    A store may be used from several threads. It starts a thread only for `watch` and `keep_alive`.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._owner = uuid.uuid4().hex
        self._sightings: dict[str, _Sighting] = {}
        self._own: dict[str, _Own] = {}
        self._lock = threading.RLock()
        self._closed = threading.Event()
        self._own_changed = threading.Event()
        self._threads: list[threading.Thread] = []

    def add(
        self,
        key: str,
        value: str,
        *,
        replace: bool = False,
        ttl_s: float | None = None,
        delete_on_exit: bool = True,
    ) -> None:
        """Add a key; of several processes that add it without `replace`, exactly one succeeds.

        With `ttl_s` the key expires unless its owner calls `touch` (or has called `keep_alive`) more often than that.

        Raises:
            NameEntryExistsError: the key is there, and `replace` is not set.
        """
        if not isinstance(value, str):
            raise TypeError(f"the value of {key!r} is {value!r}, a {type(value).__name__}: a name store keeps str only")
        record = Record(normalise(key), value, self._owner, ttl_s)
        name = self._name(record.key)
        generation = self._claim(name, record, replace)
        with self._lock:
            self._own[name] = _Own(generation, record, delete_on_exit)
        self._own_changed.set()

    def add_subentry(self, key: str, value: str, *, ttl_s: float | None = None, delete_on_exit: bool = True) -> str:
        """Add a key of a new, random name under `key`, and return it."""
        entry = f"{normalise(key)}/{uuid.uuid4().hex}"
        self.add(entry, value, ttl_s=ttl_s, delete_on_exit=delete_on_exit)
        return entry

    def touch(self, key: str) -> None:
        """Say that this process still stands behind a key that it added.

        Raises:
            NameLostError: the key belongs to somebody else by now, or is gone.
        """
        name = self._name(normalise(key))
        with self._lock:
            own = self._own.get(name)
            if own is None:
                raise NameLostError(f"{key!r} cannot be touched in {self}: this process does not own it")
            if not self._succeed(name, own.generation + 1, own.record):
                del self._own[name]
                raise NameLostError(f"{key!r} was taken over in {self} while its owner was silent")
            self._own[name] = _Own(own.generation + 1, own.record, own.delete_on_exit)

    def keep_alive(self) -> None:
        """Touch this store's keys that have a time to live, from a thread, until the store is closed or they are lost.

        For owners whose being alive is what the key says. An owner that must show progress calls `touch` itself.
        """
        self._start(self._touch_until_closed, "hpcrl-keep-alive")

    def get(self, key: str) -> str:
        """The value of a key.

        Raises:
            NameEntryNotFoundError: there is no such key.
        """
        record = self._standing(self._name(normalise(key)))
        if record is None:
            raise NameEntryNotFoundError(f"there is no {key!r} in {self}")
        return record.value

    def get_subtree(self, prefix: str) -> list[str]:
        """The values of `prefix` and of all keys under it, in the order of the keys. The prefix "" is everything."""
        return [record.value for record in self._subtree(prefix)]

    def find_subtree(self, prefix: str) -> list[str]:
        """`prefix`, where it is a key itself, and all keys under it, sorted."""
        return [record.key for record in self._subtree(prefix)]

    def wait(self, key: str, timeout_s: float, first_poll_s: float = 0.0) -> str:
        """The value of a key as soon as it is there; the first look comes after `first_poll_s`.

        Raises:
            NameTimeoutError: it was not there within `timeout_s`.
        """
        name = self._name(normalise(key))
        for _ in self.polls(f"{key!r} in {self}", timeout_s, first_poll_s):
            record = self._standing(name)
            if record is not None:
                return record.value
        raise AssertionError("polls() ends by raising")

    def polls(self, what: str, timeout_s: float, first_poll_s: float = 0.0) -> Iterator[None]:
        """Yield at each moment to look for `what`, ever more rarely; after the deadline, look once more, then raise.

        Raises:
            NameTimeoutError: the caller has not left the loop within `timeout_s`.
        """
        deadline = self._clock() + timeout_s
        pause_s = max(first_poll_s, FIRST_POLL_S)
        if first_poll_s:
            self._pause(first_poll_s, deadline)
        yield
        while self._clock() < deadline:
            self._pause(pause_s, deadline)
            pause_s = max(first_poll_s, min(2 * pause_s, SLOWEST_POLL_S))
            yield
        raise NameTimeoutError(f"waited {timeout_s:g} s for {what}, and it did not come")

    def watch(self, keys: Iterable[str], callback: Callable[[], None]) -> None:
        """Call `callback` once, from a thread, when all of `keys` are gone. `close` ends the watch.

        Raises:
            NameEntryNotFoundError: one of the keys is not there now, so there is nothing to watch.
        """
        names = {self._name(normalise(key)): key for key in keys}
        for name, key in names.items():
            if self._standing(name) is None:
                raise NameEntryNotFoundError(f"there is no {key!r} to watch in {self}")
        self._start(lambda: self._watch_until_gone(list(names), callback), "hpcrl-watch")

    def delete(self, key: str) -> None:
        """Delete a key, whoever added it.

        Raises:
            NameEntryNotFoundError: there is no such key.
        """
        if not self._bury(self._name(normalise(key))):
            raise NameEntryNotFoundError(f"there is no {key!r} to delete in {self}")

    def clear_subtree(self, prefix: str) -> None:
        """Delete `prefix` and all keys under it; nothing there is nothing to do."""
        for record in self._subtree(prefix):
            self._bury(self._name(record.key))

    def close(self) -> None:
        """End this store's threads and delete those of its keys that were added with `delete_on_exit`."""
        self._closed.set()
        self._own_changed.set()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()
        with self._lock:
            for name, own in self._own.items():
                if own.delete_on_exit:
                    self._succeed(name, own.generation + 1, self._tombstone(own.record))
            self._own.clear()

    def __enter__(self) -> "NameStore":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def _name(self, key: str) -> str:
        """The name under which the store keeps a key: one to one."""

    @abstractmethod
    def _key(self, name: str) -> str | None:
        """The key of a name; None where the name alone does not say."""

    @abstractmethod
    def _scan(self) -> dict[str, int]:
        """All names, each with its highest generation."""

    @abstractmethod
    def _load(self, name: str, generation: int) -> Record | None:
        """What a generation holds; None where it is not there any more."""

    @abstractmethod
    def _link(self, name: str, generation: int, record: Record) -> bool:
        """Create a generation with its content in one instant; False where it exists already."""

    @abstractmethod
    def _unlink(self, name: str, generation: int) -> None:
        """Remove an outdated generation, which may be gone already."""

    def _claim(self, name: str, record: Record, replace: bool) -> int:
        if self._link(name, 0, record):
            return 0
        for _ in range(RACES):
            latest, standing = self._look(name)
            if standing is not None and not replace:
                raise NameEntryExistsError(
                    f"{record.key!r} is in {self} already, with the value {standing.value!r}. "
                    "Delete it first, or add with replace=True."
                )
            if self._succeed(name, latest + 1, record):
                return latest + 1
        raise HpcrlError(f"{record.key!r} in {self} was changed by others {RACES} times in a row while it was added")

    def _succeed(self, name: str, generation: int, record: Record) -> bool:
        """Make `record` the newest generation; False where another process was there first.

        Generation 0 and the one before the newest stay, so a name that was ever used is never free again. A process
        that slept through several generations can create one that was removed; nobody reads it, since a higher one
        stands, and the second scan tells.
        """
        if not self._link(name, generation, record):
            return False
        if self._scan().get(name, generation) > generation:
            self._unlink(name, generation)
            return False
        if generation > 2:
            self._unlink(name, generation - 2)
        return True

    def _bury(self, name: str) -> bool:
        for _ in range(RACES):
            latest, standing = self._look(name)
            if standing is None:
                return False
            if self._succeed(name, latest + 1, self._tombstone(standing)):
                with self._lock:
                    self._own.pop(name, None)
                return True
        raise HpcrlError(f"{name!r} in {self} was changed by others {RACES} times in a row while it was deleted")

    def _tombstone(self, record: Record) -> Record:
        return Record(record.key, "", self._owner, gone=True)

    def _standing(self, name: str) -> Record | None:
        return self._look(name)[1]

    def _look(self, name: str) -> tuple[int, Record | None]:
        """The newest generation of a name (-1: none), and its record unless it is gone or expired."""
        for _ in range(RACES):
            latest = self._scan().get(name, -1)
            if latest < 0:
                return latest, None
            sighting = self._sight(name, latest)
            if sighting is not None:
                return latest, sighting.record if self._lives(sighting) else None
        raise HpcrlError(f"{name!r} in {self} was changed by others {RACES} times in a row while it was read")

    def _subtree(self, prefix: str) -> list[Record]:
        inside = normalise(prefix) if prefix.strip("/") else ""
        found = {}
        for name, latest in self._scan().items():
            key = self._key(name)
            if key is not None and not _is_under(key, inside):
                continue
            sighting = self._sight(name, latest)
            record = self._standing(name) if sighting is None else sighting.record if self._lives(sighting) else None
            if record is not None and _is_under(record.key, inside):
                found[record.key] = record
        return [found[key] for key in sorted(found)]

    def _sight(self, name: str, generation: int) -> _Sighting | None:
        """What this observer knows of a generation, read at most once; None where it has vanished meanwhile."""
        with self._lock:
            known = self._sightings.get(name)
        if known is not None and known.generation == generation:
            return known
        record = self._load(name, generation)
        if record is None:
            return None
        sighting = _Sighting(generation, record, self._clock())
        with self._lock:
            self._sightings[name] = sighting
        return sighting

    def _lives(self, sighting: _Sighting) -> bool:
        ttl_s = sighting.record.ttl_s
        return not sighting.record.gone and (ttl_s is None or self._clock() - sighting.since <= ttl_s)

    def _pause(self, pause_s: float, deadline: float) -> None:
        jittered = pause_s * random.uniform(1 - JITTER, 1 + JITTER)
        time.sleep(max(0.0, min(jittered, deadline - self._clock())))

    def _start(self, body: Callable[[], None], name: str) -> None:
        thread = threading.Thread(target=body, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _touch_until_closed(self) -> None:
        while not self._closed.is_set():
            with self._lock:
                lifetimes = {own.record.key: own.record.ttl_s for own in self._own.values() if own.record.ttl_s}
            pause_s = min(lifetimes.values()) / 3 if lifetimes else None
            if self._own_changed.wait(pause_s):
                self._own_changed.clear()
                continue
            for key in lifetimes:
                with suppress(NameLostError):
                    self.touch(key)

    def _watch_until_gone(self, names: list[str], callback: Callable[[], None]) -> None:
        pause_s = FIRST_POLL_S
        while any(self._standing(name) is not None for name in names):
            if self._closed.wait(pause_s * random.uniform(1 - JITTER, 1 + JITTER)):
                return
            pause_s = min(2 * pause_s, SLOWEST_POLL_S)
        if not self._closed.is_set():
            callback()


def normalise(key: str) -> str:
    """A key without empty components: `/a//b/` is `a/b`.

    Raises:
        ValueError: nothing is left of it.
    """
    parts = [part for part in key.split("/") if part]
    if not parts:
        raise ValueError(f"{key!r} is no key: it has no component that is not empty")
    return "/".join(parts)


def _is_under(key: str, prefix: str) -> bool:
    return not prefix or key == prefix or key.startswith(prefix + "/")
