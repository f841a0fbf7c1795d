import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from hpcrl.nameresolve.base import NameEntryExistsError, NameTimeoutError
from hpcrl.nameresolve.filesystem import DirectoryCalls, FilesystemStore
from hpcrl.nameresolve.memory import MemorySpace, MemoryStore
from hpcrl.nameresolve.rendezvous import (
    NodeRecord,
    Roster,
    announce,
    announced,
    collect_nodes,
    publish_roster,
    wait_roster,
)


def record(node: int, agent: str = "nonce") -> NodeRecord:
    return NodeRecord(node=node, host=f"n{node:03d}", slots=8, agent=agent, pid=1000 + node)


def test_nodes_are_collected_in_their_order_whoever_comes_first(tmp_path: Path) -> None:
    for node in (11, 2, 0):
        announce(FilesystemStore(tmp_path), record(node))
    assert collect_nodes(FilesystemStore(tmp_path), 3, timeout_s=5) == [record(0), record(2), record(11)]


def test_nodes_are_seen_as_they_come(tmp_path: Path) -> None:
    master = FilesystemStore(tmp_path)
    assert announced(master) == []
    for node in (1, 0):
        announce(FilesystemStore(tmp_path), record(node))
    assert announced(master) == [record(0), record(1)]


def test_agents_get_the_roster_that_the_master_publishes(tmp_path: Path) -> None:
    got: list[Roster] = []

    def agent(node: int) -> None:
        store = FilesystemStore(tmp_path)
        announce(store, record(node))
        got.append(wait_roster(store, timeout_s=10, nodes=4))
        store.close()

    agents = [threading.Thread(target=agent, args=(node,)) for node in range(4)]
    for thread in agents:
        thread.start()
    master = FilesystemStore(tmp_path)
    roster = Roster(3, "tcp://10.0.0.1:4000", collect_nodes(master, 4, timeout_s=10))
    publish_roster(master, roster)
    for thread in agents:
        thread.join()
    assert got == [roster] * 4
    assert [node.node for node in roster.nodes] == [0, 1, 2, 3]


def test_missing_nodes_are_named_with_the_knob(tmp_path: Path) -> None:
    store = MemoryStore(MemorySpace())
    announce(store, record(1))
    with pytest.raises(NameTimeoutError, match=r"1 of 4 nodes .* missing: 0, 2, 3\. .*cluster\.start_timeout_s"):
        collect_nodes(store, 4, timeout_s=0.05)


def test_a_missing_roster_is_named_with_the_knob() -> None:
    with pytest.raises(NameTimeoutError, match=r"no roster within 0.05 s .*cluster\.start_timeout_s"):
        wait_roster(MemoryStore(MemorySpace()), timeout_s=0.05)


def test_two_agents_of_one_node_are_refused() -> None:
    space = MemorySpace()
    announce(MemoryStore(space), record(0, "first"))
    with pytest.raises(NameEntryExistsError, match="node 0 has two agents in one attempt"):
        announce(MemoryStore(space), record(0, "second"))


def test_a_node_costs_five_metadata_operations(tmp_path: Path) -> None:
    class Counted(DirectoryCalls):
        calls = 0

        def __getattribute__(self, name: str) -> object:
            if name in ("list", "read", "create", "link", "link_count", "unlink"):
                type(self).calls += 1
            return super().__getattribute__(name)

    publish_roster(FilesystemStore(tmp_path), Roster(0, "tcp://10.0.0.1:4000", [record(0)]))
    store = FilesystemStore(tmp_path, calls=Counted(tmp_path))
    announce(store, record(0))
    wait_roster(store, timeout_s=5)
    store.close()
    assert Counted.calls == 5


def test_the_benchmark_runs_and_counts() -> None:
    command = [sys.executable, "-m", "bench.rendezvous", "--nodes", "8", "--processes", "2"]
    ended = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    figures = [json.loads(line) for line in ended.stdout.splitlines()]
    assert figures[1]["value"] >= 5
    assert all(set(figure) == {"name", "value", "target"} for figure in figures)
