"""One contract over both stores. The clock is the test's wherever only time passes."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpcrl.nameresolve.base import (
    NameEntryExistsError,
    NameEntryNotFoundError,
    NameLostError,
    NameStore,
    NameTimeoutError,
)
from hpcrl.nameresolve.filesystem import FilesystemStore
from hpcrl.nameresolve.memory import MemorySpace, MemoryStore

ODD_KEYS = [
    "a",
    "ab",
    "a/b",
    "a/b/c",
    "a+b",
    "a%2Fb",
    "a@0",
    "a@0@1",
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


class FakeClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


Opener = Callable[..., NameStore]


@pytest.fixture(params=["memory", "filesystem"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    """Opens any number of participants of one name space."""
    space = MemorySpace()
    opened: list[NameStore] = []

    def opener(clock: Callable[[], float] = time.monotonic) -> NameStore:
        store = MemoryStore(space, clock) if request.param == "memory" else FilesystemStore(tmp_path / "names", clock)
        opened.append(store)
        return store

    yield opener
    for store in opened:
        store.close()


def test_what_one_adds_all_others_read(open_store: Opener) -> None:
    open_store().add("run/master", "tcp://10.0.0.1:4000")
    assert open_store().get("run/master") == "tcp://10.0.0.1:4000"


def test_a_value_may_be_empty_long_or_unicode(open_store: Opener) -> None:
    store = open_store()
    for number, value in enumerate(["", "x" * 100_000, "ключ\n🦆"]):
        store.add(f"k{number}", value)
        assert store.get(f"k{number}") == value


def test_a_value_that_is_not_text_is_refused_by_name(open_store: Opener) -> None:
    with pytest.raises(TypeError, match="'k' is 3, a int"):
        open_store().add("k", 3)  # type: ignore[arg-type]


def test_a_second_add_is_refused_and_changes_nothing(open_store: Opener) -> None:
    open_store().add("k", "first")
    other = open_store()
    with pytest.raises(NameEntryExistsError, match=r"'k'.*'first'.*replace=True"):
        other.add("k", "second")
    other.close()
    assert open_store().get("k") == "first"


def test_replace_replaces_and_adds_where_nothing_is(open_store: Opener) -> None:
    first, second = open_store(), open_store()
    for number in range(5):
        first.add("k", f"first {number}", replace=True)
        assert second.get("k") == f"first {number}"
        second.add("k", f"second {number}", replace=True)
        assert first.get("k") == f"second {number}"


def test_get_and_delete_of_a_missing_key_say_which(open_store: Opener) -> None:
    store = open_store()
    with pytest.raises(NameEntryNotFoundError, match="no 'k'"):
        store.get("k")
    with pytest.raises(NameEntryNotFoundError, match="no 'k' to delete"):
        store.delete("k")
    store.add("k/below", "v")
    with pytest.raises(NameEntryNotFoundError):
        store.get("k")


def test_a_deleted_key_can_be_added_again_and_deleted_again(open_store: Opener) -> None:
    store, other = open_store(), open_store()
    for number in range(4):
        store.add("k", str(number))
        assert other.get("k") == str(number)
        other.delete("k")
        with pytest.raises(NameEntryNotFoundError):
            store.get("k")
        with pytest.raises(NameEntryNotFoundError):
            store.delete("k")


def test_equal_keys_are_equal_however_they_are_slashed(open_store: Opener) -> None:
    store = open_store()
    store.add("/a//b/", "v")
    assert store.get("a/b") == "v"
    assert store.find_subtree("/a/") == ["a/b"]


@pytest.mark.parametrize("key", ["", "/", "///"])
def test_a_key_without_a_component_is_refused(open_store: Opener, key: str) -> None:
    with pytest.raises(ValueError, match="no key"):
        open_store().add(key, "v")


def test_odd_keys_are_all_distinct(open_store: Opener) -> None:
    store = open_store()
    for number, key in enumerate(ODD_KEYS):
        store.add(key, str(number))
    other = open_store()
    assert [other.get(key) for key in ODD_KEYS] == [str(number) for number in range(len(ODD_KEYS))]
    assert other.find_subtree("") == sorted(ODD_KEYS)


def test_a_subtree_is_the_key_itself_and_all_below_sorted_and_no_sibling(open_store: Opener) -> None:
    store = open_store()
    for key in ["ab", "a/c/d", "a", "a/b", "ab/c", "a+b"]:
        store.add(key, f"value of {key}")
    assert store.find_subtree("a") == ["a", "a/b", "a/c/d"]
    assert store.get_subtree("a") == ["value of a", "value of a/b", "value of a/c/d"]
    assert store.find_subtree("a/c") == ["a/c/d"]
    assert store.find_subtree("nothing") == []
    assert store.get_subtree("nothing") == []
    assert store.find_subtree("/") == ["a", "a+b", "a/b", "a/c/d", "ab", "ab/c"]


def test_long_keys_are_found_in_their_subtree(open_store: Opener) -> None:
    store = open_store()
    store.add("🦆" * 100 + "/a", "v")
    assert open_store().get_subtree("🦆" * 100) == ["v"]


def test_clear_subtree_leaves_siblings(open_store: Opener) -> None:
    store = open_store()
    for key in ["a", "a/b", "ab", "c"]:
        store.add(key, "v")
    open_store().clear_subtree("a")
    assert store.find_subtree("") == ["ab", "c"]
    store.clear_subtree("a")
    store.clear_subtree("/")
    assert store.find_subtree("") == []


def test_subentries_never_collide(open_store: Opener) -> None:
    store, other = open_store(), open_store()
    names = [owner.add_subentry("members", str(number)) for number in range(50) for owner in (store, other)]
    assert len(set(names)) == 100
    assert sorted(names) == store.find_subtree("members")
    assert other.get(names[7]) == "3"


def test_close_deletes_only_its_own_keys_and_not_those_that_shall_stay(open_store: Opener) -> None:
    leaving, staying = open_store(), open_store()
    leaving.add("mine", "v")
    leaving.add("mine for good", "v", delete_on_exit=False)
    leaving.add("mine, then replaced", "old")
    leaving.add("mine, then deleted and added by another", "old")
    staying.add("mine, then replaced", "new", replace=True)
    staying.delete("mine, then deleted and added by another")
    staying.add("mine, then deleted and added by another", "new")
    staying.add("theirs", "v")
    leaving.close()
    leaving.close()
    assert staying.find_subtree("") == [
        "mine for good",
        "mine, then deleted and added by another",
        "mine, then replaced",
        "theirs",
    ]


def test_wait_returns_what_comes_while_it_waits(open_store: Opener) -> None:
    store = open_store()
    adder = threading.Timer(0.1, lambda: store.add("late", "v"))
    adder.start()
    assert open_store().wait("late", timeout_s=10) == "v"
    adder.join()


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, 0.05])
def test_wait_ends_at_its_deadline_and_says_what_it_waited_for(open_store: Opener, timeout_s: float) -> None:
    store = open_store()
    started = time.monotonic()
    with pytest.raises(NameTimeoutError, match=f"waited {timeout_s:g} s for 'roster' in "):
        store.wait("roster", timeout_s)
    assert time.monotonic() - started < 0.5


def test_wait_of_no_time_still_finds_what_is_there(open_store: Opener) -> None:
    store = open_store()
    store.add("k", "v")
    assert store.wait("k", 0.0) == "v"


def test_watch_fires_once_after_the_last_key_is_gone(open_store: Opener) -> None:
    store, watcher = open_store(), open_store()
    fired: list[float] = []
    done = threading.Event()

    def callback() -> None:
        fired.append(time.monotonic())
        done.set()

    store.add("a", "v")
    store.add("b", "v")
    watcher.watch(["a", "b"], callback)
    store.delete("a")
    assert not done.wait(0.15)
    store.delete("b")
    assert done.wait(5)
    store.add("a", "v")
    store.delete("a")
    time.sleep(0.05)
    assert len(fired) == 1


def test_watch_of_a_key_that_is_not_there_is_refused(open_store: Opener) -> None:
    with pytest.raises(NameEntryNotFoundError, match="'a' to watch"):
        open_store().watch(["a"], lambda: None)


def test_a_closed_watch_never_fires(open_store: Opener) -> None:
    store, watcher = open_store(), open_store()
    fired: list[bool] = []
    store.add("a", "v")
    watcher.watch(["a"], lambda: fired.append(True))
    watcher.close()
    store.delete("a")
    time.sleep(0.1)
    assert not fired


def test_a_silent_owners_key_expires_by_the_observers_clock(open_store: Opener) -> None:
    clock, owner = FakeClock(), open_store()
    observer = open_store(clock)
    owner.add("k", "v", ttl_s=10)
    owner.add("for good", "v")
    assert observer.get("k") == "v"
    clock.now += 9.9
    assert observer.get("k") == "v"
    clock.now += 0.2
    assert observer.find_subtree("") == ["for good"]
    with pytest.raises(NameEntryNotFoundError):
        observer.get("k")


def test_an_observer_that_comes_late_first_watches_for_a_whole_time_to_live(open_store: Opener) -> None:
    open_store().add("k", "v", ttl_s=10)
    clock = FakeClock()
    clock.now = 1e9
    late = open_store(clock)
    assert late.get("k") == "v"
    clock.now += 10.1
    assert late.find_subtree("k") == []


def test_a_touched_key_lives_on(open_store: Opener) -> None:
    clock, owner = FakeClock(), open_store()
    observer = open_store(clock)
    owner.add("k", "v", ttl_s=10)
    for _ in range(8):
        assert observer.get_subtree("") == ["v"]
        clock.now += 9
        owner.touch("k")
    assert observer.get("k") == "v"


def test_an_expired_key_is_taken_over_and_its_late_owner_learns_it(open_store: Opener) -> None:
    clock, late = FakeClock(), open_store()
    taker = open_store(clock)
    late.add("k", "old", ttl_s=10)
    with pytest.raises(NameEntryExistsError):
        taker.add("k", "new")
    clock.now += 11
    taker.add("k", "new", ttl_s=10)
    with pytest.raises(NameLostError, match="taken over"):
        late.touch("k")
    late.close()
    assert taker.get("k") == "new"


def test_an_owner_that_slept_through_many_generations_changes_nothing(open_store: Opener) -> None:
    late, other = open_store(), open_store()
    late.add("k", "old", ttl_s=10)
    for number in range(6):
        other.add("k", f"new {number}", replace=True)
    with pytest.raises(NameLostError):
        late.touch("k")
    late.close()
    assert open_store().get("k") == "new 5"


def test_a_key_that_was_not_added_here_cannot_be_touched(open_store: Opener) -> None:
    open_store().add("k", "v", ttl_s=10)
    with pytest.raises(NameLostError, match="does not own"):
        open_store().touch("k")


def test_keep_alive_touches_until_the_store_is_closed(open_store: Opener) -> None:
    owner, observer = open_store(), open_store()
    owner.keep_alive()
    owner.add("k", "v", ttl_s=0.2, delete_on_exit=False)
    until = time.monotonic() + 0.8
    while time.monotonic() < until:
        assert observer.get("k") == "v"
        time.sleep(0.02)
    owner.close()
    observer.get("k")
    gone = threading.Event()
    observer.watch(["k"], gone.set)
    assert gone.wait(5)


def test_threads_that_add_the_same_key_have_one_winner(open_store: Opener) -> None:
    stores = [open_store() for _ in range(4)]
    for number in range(25):
        winners = []
        barrier = threading.Barrier(len(stores))

        def contend(
            store: NameStore, number: int = number, barrier: threading.Barrier = barrier, winners: list = winners
        ) -> None:
            barrier.wait()
            try:
                store.add(f"claim/{number}", "mine")
            except NameEntryExistsError:
                return
            winners.append(store)

        threads = [threading.Thread(target=contend, args=(store,)) for store in stores]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(winners) == 1


def test_leaving_the_context_closes_the_store(open_store: Opener) -> None:
    with open_store() as store:
        store.add("k", "v")
    assert open_store().find_subtree("") == []
