import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support.names import LaggingListing

from hpcrl.nameresolve import base
from hpcrl.nameresolve.base import NameTimeoutError
from hpcrl.nameresolve.filesystem import DirectoryCalls, FilesystemStore
from hpcrl.nameresolve.memory import MemoryStore
from hpcrl.nameresolve.rendezvous import (
    LISTINGS_PER_S,
    MasterAddress,
    NodeRecord,
    announce,
    announced,
    publish_master,
    wait_master,
)

MASTER = MasterAddress(3, "tcp://10.0.0.1:4000")


def record(node: int, restarts: int = 0) -> NodeRecord:
    return NodeRecord(node, f"n{node:03d}", 1000 + node, (77, restarts))


def test_nodes_are_seen_as_they_come_and_in_their_order(tmp_path: Path) -> None:
    master = FilesystemStore(tmp_path)
    assert announced(master) == []
    for node in (11, 2, 0):
        announce(FilesystemStore(tmp_path), record(node))
    assert announced(master) == [record(0), record(2), record(11)]


def test_a_node_that_was_started_again_announces_itself_beside_its_old_record() -> None:
    store = MemoryStore()
    announce(store, record(0))
    announce(store, record(0, restarts=1))
    assert announced(store) == [record(0), record(0, restarts=1)]


def test_agents_get_the_address_that_the_master_publishes_whenever_they_come(tmp_path: Path) -> None:
    got: list[MasterAddress] = []

    def agent(node: int) -> None:
        store = FilesystemStore(tmp_path)
        announce(store, record(node))
        got.append(wait_master(store, timeout_s=30, nodes=4))
        store.close()

    agents = [threading.Thread(target=agent, args=(node,)) for node in range(4)]
    for thread in agents[:2]:
        thread.start()
    publish_master(FilesystemStore(tmp_path), MASTER)
    for thread in agents[2:]:
        thread.start()
    for thread in agents:
        thread.join()
    assert got == [MASTER] * 4


def test_a_missing_master_is_told() -> None:
    with pytest.raises(NameTimeoutError, match=r"waited 0.05 s for .master."):
        wait_master(MemoryStore(), timeout_s=0.05)


def test_a_node_costs_five_metadata_operations(tmp_path: Path) -> None:
    class Counted(DirectoryCalls):
        calls = 0

        def __getattribute__(self, name: str) -> object:
            if name in ("list", "read", "create", "link", "link_count", "unlink"):
                type(self).calls += 1
            return super().__getattribute__(name)

    publish_master(FilesystemStore(tmp_path), MASTER)
    store = FilesystemStore(tmp_path, Counted(tmp_path))
    announce(store, record(0))
    wait_master(store, timeout_s=30)
    store.close()
    assert Counted.calls == 5


class FakeTime:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, pause_s: float) -> None:
        self.now += pause_s


@pytest.mark.parametrize("nodes", [1, 128, 1000])
def test_all_nodes_that_wait_for_a_master_list_at_most_200_times_a_second(
    nodes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, fake = LaggingListing(tmp_path), FakeTime()
    monkeypatch.setattr(base, "time", fake)
    with pytest.raises(NameTimeoutError):
        wait_master(FilesystemStore(tmp_path, calls), timeout_s=600, nodes=nodes)
    assert fake.now == pytest.approx(1600)
    # The pauses of one node vary by a quarter, so its mean does a little.
    assert calls.listings * nodes / 600 < 1.05 * LISTINGS_PER_S


def test_the_benchmark_runs_and_counts() -> None:
    command = [sys.executable, "-m", "bench.rendezvous", "--nodes", "8", "--processes", "2"]
    ended = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    figures = [json.loads(line) for line in ended.stdout.splitlines()]
    assert figures[1]["value"] >= 5
    assert all(set(figure) == {"name", "value", "target"} for figure in figures)
