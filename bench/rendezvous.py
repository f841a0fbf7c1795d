"""Time and metadata operations of the rendezvous of many simulated nodes, in a few processes on one machine.

Each node announces itself, waits for the master's address and connects, from a thread of its own, as real agents do.
Prints one JSON line per figure. The workers of a node are told by their agent and never touch the directory.
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

import zmq

from hpcrl.nameresolve.filesystem import DirectoryCalls, FilesystemStore
from hpcrl.nameresolve.rendezvous import MasterAddress, NodeRecord, announce, publish_master, wait_master
from hpcrl.wire.channel import Gatekeeper, Hub, Link, RunKey
from hpcrl.wire.messages import AgentHello

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


def be_agents(root: Path, key: RunKey, mine: range, nodes: int, slots: int, pipe: Connection) -> None:
    """Simulate some of the nodes; send the operations that each of them has cost."""
    context = zmq.Context()
    operations: dict[int, int] = {}
    links = []

    def be_agent(node: int) -> None:
        calls = CountingCalls(root)
        store = FilesystemStore(root, calls)
        announce(store, NodeRecord(node, f"n{node:03d}", node, (node, 0)))
        master = wait_master(store, TIMEOUT_S, nodes)
        link = Link(context, key, f"agent-{node}", master.address)
        link.send(AgentHello(node, f"n{node:03d}", slots, node))
        links.append(link)
        store.close()
        operations[node] = calls.count

    pipe.recv()
    threads = [threading.Thread(target=be_agent, args=(node,)) for node in mine]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pipe.send(list(operations.values()))
    pipe.recv()


def measure(root: Path, nodes: int, slots: int, processes: int) -> tuple[float, list[int], int]:
    """Seconds until the master hears the last agent, operations of each node, operations of the master."""
    processing = multiprocessing.get_context("spawn")
    key = RunKey.generate()
    pipes = []
    for number in range(processes):
        ours, theirs = processing.Pipe()
        mine = range(number, nodes, processes)
        processing.Process(target=be_agents, args=(root, key, mine, nodes, slots, theirs), daemon=True).start()
        pipes.append(ours)
    for pipe in pipes:
        pipe.send("go")
    started = time.perf_counter()
    calls = CountingCalls(root)
    context = zmq.Context()
    gatekeeper = Gatekeeper(context, key)
    hub = Hub(context, key, "master")
    publish_master(FilesystemStore(root, calls), MasterAddress(0, hub.address))
    there: set[int] = set()
    while len(there) < nodes and time.perf_counter() - started < TIMEOUT_S:
        hub.socket.poll(100)
        there |= {envelope.body.node for _, envelope, _ in hub.receive() if isinstance(envelope.body, AgentHello)}
    seconds = time.perf_counter() - started
    assert len(there) == nodes and gatekeeper.refused == 0, f"{len(there)} of {nodes} nodes came"
    operations = [count for pipe in pipes for count in pipe.recv()]
    for pipe in pipes:
        pipe.send("end")
    hub.socket.close(0)
    context.term()
    return seconds, operations, calls.count


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
