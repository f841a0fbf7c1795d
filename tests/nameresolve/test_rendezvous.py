import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from hpcrl.nameresolve.base import NameTimeoutError
from hpcrl.nameresolve.filesystem import DirectoryCalls, FilesystemStore
from hpcrl.nameresolve.memory import MemorySpace, MemoryStore
from hpcrl.nameresolve.rendezvous import (
    MasterAddress,
    NodeRecord,
    announce,
    announced,
    publish_master,
    wait_master,
)

MEETING = MasterAddress(3, "tcp://10.0.0.1:4000")


def record(node: int, restarts: int = 0) -> NodeRecord:
    return NodeRecord(node, f"n{node:03d}", 1000 + node, (77, restarts))


def test_nodes_are_seen_as_they_come_and_in_their_order(tmp_path: Path) -> None:
    master = FilesystemStore(tmp_path)
    assert announced(master) == []
    for node in (11, 2, 0):
        announce(FilesystemStore(tmp_path), record(node))
    assert announced(master) == [record(0), record(2), record(11)]


def test_a_node_that_was_started_again_announces_itself_beside_its_old_record() -> None:
    space = MemorySpace()
    announce(MemoryStore(space), record(0))
    announce(MemoryStore(space), record(0, restarts=1))
    assert announced(MemoryStore(space)) == [record(0), record(0, restarts=1)]


def test_agents_get_the_address_that_the_master_publishes_whenever_they_come(tmp_path: Path) -> None:
    got: list[MasterAddress] = []

    def agent(node: int) -> None:
        store = FilesystemStore(tmp_path)
        announce(store, record(node))
        got.append(wait_master(store, timeout_s=10, nodes=4))
        store.close()

    agents = [threading.Thread(target=agent, args=(node,)) for node in range(4)]
    for thread in agents[:2]:
        thread.start()
    publish_master(FilesystemStore(tmp_path), MEETING)
    for thread in agents[2:]:
        thread.start()
    for thread in agents:
        thread.join()
    assert got == [MEETING] * 4


def test_a_missing_master_is_told() -> None:
    with pytest.raises(NameTimeoutError, match=r"no master within 0.05 s .*master's log"):
        wait_master(MemoryStore(MemorySpace()), timeout_s=0.05)


def test_a_node_costs_five_metadata_operations(tmp_path: Path) -> None:
    class Counted(DirectoryCalls):
        calls = 0

        def __getattribute__(self, name: str) -> object:
            if name in ("list", "read", "create", "link", "link_count", "unlink"):
                type(self).calls += 1
            return super().__getattribute__(name)

    publish_master(FilesystemStore(tmp_path), MEETING)
    store = FilesystemStore(tmp_path, calls=Counted(tmp_path))
    announce(store, record(0))
    wait_master(store, timeout_s=5)
    store.close()
    assert Counted.calls == 5


def test_the_benchmark_runs_and_counts() -> None:
    command = [sys.executable, "-m", "bench.rendezvous", "--nodes", "8", "--processes", "2"]
    ended = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    figures = [json.loads(line) for line in ended.stdout.splitlines()]
    assert figures[1]["value"] >= 5
    assert all(set(figure) == {"name", "value", "target"} for figure in figures)
