"""Time and metadata operations of the rendezvous of many simulated nodes, in a few processes on one machine.

Each node announces itself and waits for the roster from a thread of its own; a master collects and publishes. Prints
one JSON line per figure. The workers of a node are told by their agent and never touch the directory.
"""

import argparse
import json
import multiprocessing
import sys
import tempfile
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path

from hpcrl.nameresolve.filesystem import DirectoryCalls, FilesystemStore
from hpcrl.nameresolve.rendezvous import (
    NodeRecord,
    Roster,
    announce,
    collect_nodes,
    publish_roster,
    wait_roster,
)

TIMEOUT_S = 60.0


class CountingCalls(DirectoryCalls):
    """Counts every operation, for the store of one node or of the master."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.count = 0

    def list(self) -> list[str]:
        self.count += 1
        return super().list()

    def read(self, name: str) -> bytes:
        self.count += 1
        return super().read(name)

    def create(self, name: str, content: bytes) -> None:
        self.count += 1
        super().create(name, content)

    def link(self, source: str, target: str) -> None:
        self.count += 1
        super().link(source, target)

    def link_count(self, name: str) -> int:
        self.count += 1
        return super().link_count(name)

    def unlink(self, name: str) -> None:
        self.count += 1
        super().unlink(name)


def be_agents(root: Path, mine: range, nodes: int, slots: int, pipe: Connection) -> None:
    """Simulate some of the nodes; send the operations that each of them has cost."""
    operations: dict[int, int] = {}

    def be_agent(node: int) -> None:
        calls = CountingCalls(root)
        store = FilesystemStore(root, calls=calls)
        announce(store, NodeRecord(node, f"n{node:03d}", slots, agent=f"{node:032x}", pid=node))
        roster = wait_roster(store, TIMEOUT_S, nodes)
        assert len(roster.nodes) == nodes
        store.close()
        operations[node] = calls.count

    pipe.recv()
    threads = [threading.Thread(target=be_agent, args=(node,)) for node in mine]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pipe.send(list(operations.values()))


def measure(root: Path, nodes: int, slots: int, processes: int) -> tuple[float, list[int], int]:
    """Seconds until the last agent has the roster, operations of each node, operations of the master."""
    context = multiprocessing.get_context("spawn")
    pipes = []
    for number in range(processes):
        ours, theirs = context.Pipe()
        mine = range(number, nodes, processes)
        context.Process(target=be_agents, args=(root, mine, nodes, slots, theirs), daemon=True).start()
        pipes.append(ours)
    for pipe in pipes:
        pipe.send("go")
    started = time.perf_counter()
    calls = CountingCalls(root)
    master = FilesystemStore(root, calls=calls)
    records = collect_nodes(master, nodes, TIMEOUT_S)
    publish_roster(master, Roster(attempt=0, master_address="tcp://127.0.0.1:1", nodes=records))
    operations = [count for pipe in pipes for count in pipe.recv()]
    return time.perf_counter() - started, operations, calls.count


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=128)
    parser.add_argument("--slots", type=int, default=8, help="workers of a node")
    parser.add_argument("--processes", type=int, default=3, help="besides the master's own")
    parser.add_argument("--root", type=Path, default=None, help="the directory to work under")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.root) as directory:
        seconds, node_operations, master_operations = measure(
            Path(directory) / "rendezvous", arguments.nodes, arguments.slots, arguments.processes
        )
    size = f"{arguments.nodes} nodes x {arguments.slots} workers"
    per_node = sum(node_operations) / len(node_operations)
    for name, value, target in [
        (f"rendezvous of {size}, seconds", seconds, "<= 5"),
        (f"rendezvous of {size}, metadata operations a node (mean)", per_node, "<= 5"),
        (f"rendezvous of {size}, metadata operations a node (most)", max(node_operations), None),
        (f"rendezvous of {size}, metadata operations of the master", master_operations, None),
    ]:
        print(json.dumps({"name": name, "value": round(value, 3), "target": target}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
