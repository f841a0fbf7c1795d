"""One contract over every store."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.names import LaggingListing

from hpcrl.nameresolve.base import NameEntryExistsError, NameEntryNotFoundError, NameStore, NameTimeoutError
from hpcrl.nameresolve.filesystem import FilesystemStore
from hpcrl.nameresolve.memory import MemoryStore

ODD_KEYS = [
    "a",
    "ab",
    "a/b",
    "a/b/c",
    "a+b",
    "a%2Fb",
    "a@0",
    "a.name",
    "~a",
    "..",
    "...",
    ".hidden",
    "a b\tc",
    "A",
    "ключ/演员/🦆",
    "e\u0301",
    "\u00e9",
    "x" * 1000,
    "x" * 1001,
    "🦆" * 100 + "/a",
    "🦆" * 100 + "/b",
    "quote'\"\n",
]

Opener = Callable[..., NameStore]
WITHIN_S = 10.0


@pytest.fixture(params=["memory", "filesystem", "lagging filesystem"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    """Opens any number of participants of the store of one attempt."""
    memory: dict[int, MemoryStore] = {}

    def opener(attempt: int = 0) -> NameStore:
        root = tmp_path / str(attempt)
        if request.param == "memory":
            return memory.setdefault(attempt, MemoryStore())
        return FilesystemStore(root, LaggingListing(root) if request.param == "lagging filesystem" else None)

    return opener


def come(store: NameStore, *keys: str) -> dict[str, str]:
    """Everything in the store, once all of `keys` are to be seen in it."""
    for key in keys:
        store.wait(key, WITHIN_S)
    return store.list()


def test_what_one_adds_all_others_read(open_store: Opener) -> None:
    open_store().add("run/master", "tcp://10.0.0.1:4000")
    reader = open_store()
    assert reader.wait("run/master", WITHIN_S) == "tcp://10.0.0.1:4000"
    assert reader.get("run/master") == "tcp://10.0.0.1:4000"
    assert reader.list() == {"run/master": "tcp://10.0.0.1:4000"}


def test_a_value_may_be_empty_long_or_unicode(open_store: Opener) -> None:
    store = open_store()
    for number, value in enumerate(["", "x" * 100_000, "ключ\n🦆"]):
        store.add(f"k{number}", value)
        assert store.wait(f"k{number}", WITHIN_S) == value


def test_a_value_that_is_not_text_is_refused_by_name(open_store: Opener) -> None:
    with pytest.raises(TypeError, match="'k' is 3, a int"):
        open_store().add("k", 3)  # type: ignore[arg-type]


def test_a_second_add_is_refused_and_changes_nothing(open_store: Opener) -> None:
    open_store().add("k", "first")
    with pytest.raises(NameEntryExistsError, match=r"'k' is in .* already, and a key is written once"):
        open_store().add("k", "second")
    assert open_store().wait("k", WITHIN_S) == "first"


def test_the_same_value_again_is_a_second_add_too(open_store: Opener) -> None:
    open_store().add("k", "v")
    with pytest.raises(NameEntryExistsError):
        open_store().add("k", "v")


def test_many_that_add_one_key_at_once_have_one_winner(open_store: Opener) -> None:
    stores = [open_store() for _ in range(8)]
    for number in range(25):
        winners: list[int] = []
        barrier = threading.Barrier(len(stores))

        def contend(
            me: int, number: int = number, barrier: threading.Barrier = barrier, winners: list[int] = winners
        ) -> None:
            barrier.wait()
            try:
                stores[me].add(f"claim/{number}", f"of {me}")
            except NameEntryExistsError:
                return
            winners.append(me)

        threads = [threading.Thread(target=contend, args=(me,)) for me in range(len(stores))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [open_store().wait(f"claim/{number}", WITHIN_S)] == [f"of {me}" for me in winners]


def test_a_late_process_of_an_older_attempt_changes_nothing(open_store: Opener) -> None:
    late, master = open_store(0), open_store(1)
    late.add("before", "of attempt 0")
    master.add("master", "of attempt 1")
    late.add("master", "of attempt 0")
    late.add("nodes/0", "of attempt 0")
    assert come(open_store(1), "master") == {"master": "of attempt 1"}
    with pytest.raises(NameEntryExistsError):
        open_store(1).add("master", "again")
    assert come(open_store(0), "before", "master", "nodes/0")["master"] == "of attempt 0"


def test_a_missing_key_is_said_by_name_and_one_below_it_is_another(open_store: Opener) -> None:
    store = open_store()
    with pytest.raises(NameEntryNotFoundError, match="no 'k'"):
        store.get("k")
    store.add("k/below", "v")
    assert come(store, "k/below") == {"k/below": "v"}
    with pytest.raises(NameEntryNotFoundError):
        store.get("k")


def test_equal_keys_are_equal_however_they_are_slashed(open_store: Opener) -> None:
    store = open_store()
    store.add("/a//b/", "v")
    assert store.wait("a/b", WITHIN_S) == "v"
    assert store.list("/a/") == {"a/b": "v"}
    with pytest.raises(NameEntryExistsError):
        store.add("a/b", "w")


@pytest.mark.parametrize("key", ["", "/", "///"])
def test_a_key_without_a_component_is_refused(open_store: Opener, key: str) -> None:
    with pytest.raises(ValueError, match="no key"):
        open_store().add(key, "v")


def test_odd_keys_are_all_distinct(open_store: Opener) -> None:
    store = open_store()
    for number, key in enumerate(ODD_KEYS):
        store.add(key, str(number))
    other = open_store()
    assert [other.wait(key, WITHIN_S) for key in ODD_KEYS] == [str(number) for number in range(len(ODD_KEYS))]
    assert other.list() == {key: str(ODD_KEYS.index(key)) for key in sorted(ODD_KEYS)}


def test_a_list_has_what_is_below_a_key_in_the_order_of_the_keys_and_no_sibling(open_store: Opener) -> None:
    store = open_store()
    keys = ["ab", "a/c/d", "a", "a/b", "ab/c", "a+b"]
    for key in keys:
        store.add(key, f"value of {key}")
    assert list(come(store, *keys)) == ["a", "a+b", "a/b", "a/c/d", "ab", "ab/c"]
    assert store.list("a") == {"a/b": "value of a/b", "a/c/d": "value of a/c/d"}
    assert list(store.list("a")) == ["a/b", "a/c/d"]
    assert list(store.list("a/c")) == ["a/c/d"]
    assert store.list("nothing") == {}


def test_long_keys_are_found_below_theirs(open_store: Opener) -> None:
    key = "🦆" * 100
    open_store().add(f"{key}/a", "v")
    reader = open_store()
    come(reader, f"{key}/a")
    assert reader.list(key) == {f"{key}/a": "v"}


def test_wait_returns_what_comes_while_it_waits(open_store: Opener) -> None:
    adder = threading.Timer(0.1, lambda: open_store().add("late", "v"))
    adder.start()
    assert open_store().wait("late", WITHIN_S) == "v"
    adder.join()


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, 0.05])
def test_wait_ends_at_its_deadline_and_says_what_it_waited_for(open_store: Opener, timeout_s: float) -> None:
    store = open_store()
    started = time.monotonic()
    with pytest.raises(NameTimeoutError, match=f"waited {timeout_s:g} s for 'roster' in "):
        store.wait("roster", timeout_s)
    assert time.monotonic() - started < 30


def test_wait_of_no_time_still_finds_what_is_there(open_store: Opener) -> None:
    store = open_store()
    store.add("k", "v")
    store.wait("k", WITHIN_S)
    assert store.wait("k", 0.0) == "v"


def test_a_closed_store_leaves_its_keys(open_store: Opener) -> None:
    store = open_store()
    store.add("k", "v")
    store.close()
    store.close()
    assert come(open_store(), "k") == {"k": "v"}
