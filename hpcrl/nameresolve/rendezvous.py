"""How the agents and the master of one attempt find each other, through a name store of that attempt.

The master publishes where it listens; everybody waits for that one key and connects. Each agent also leaves a record of
itself, which is read only when nodes are missing: it tells those that never started from those that cannot connect.
A node costs the file server four operations (create, link and unlink of its record, a read of the key) and a listing
per poll; all polls of a run together stay below 200 a second, however many nodes it has.
"""

import msgspec

from hpcrl.nameresolve.base import NameStore

NODES = "nodes"
MASTER = "master"
LISTINGS_PER_S = 200


class NodeRecord(msgspec.Struct, frozen=True):
    """An agent of a node is there; `incarnation` as in AgentHello."""

    node: int
    host: str
    pid: int
    incarnation: tuple[int, int]


class MasterAddress(msgspec.Struct, frozen=True):
    """master → agents: where the master of this attempt listens."""

    attempt: int
    address: str


def announce(store: NameStore, record: NodeRecord) -> None:
    """Say that a node is there."""
    job, restart = record.incarnation
    name = f"{NODES}/{record.node:06d}-{job}.{restart}.{record.pid}"
    store.add(name, msgspec.json.encode(record).decode())


def announced(store: NameStore) -> list[NodeRecord]:
    """The nodes that have been there, in their order; one may have come more than once."""
    return [msgspec.json.decode(text, type=NodeRecord) for text in store.list(NODES).values()]


def publish_master(store: NameStore, master: MasterAddress) -> None:
    """Tell everybody where to connect; once per attempt."""
    store.add(MASTER, msgspec.json.encode(master).decode())


def wait_master(store: NameStore, timeout_s: float, nodes: int = 1) -> MasterAddress:
    """Where the master listens, as soon as it is published; `nodes` is how many wait for it at the same time.

    Raises:
        NameTimeoutError: the master has not published it within `timeout_s`.
    """
    text = store.wait(MASTER, timeout_s, first_poll_s=nodes / LISTINGS_PER_S)
    return msgspec.json.decode(text, type=MasterAddress)
