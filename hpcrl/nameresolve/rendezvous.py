"""How the agents and the master of one attempt find each other, through a name store of that attempt.

Each agent announces its node once; the master alone lists, and publishes one roster; everybody waits for that one key.
A node costs the file server five operations (create, link and unlink of its record, a listing, a read of the roster)
and one more listing per poll; all polls of a run together stay below 200 a second, however many nodes it has.
"""

from collections.abc import Sequence

import msgspec

from hpcrl.nameresolve.base import NameEntryExistsError, NameStore, NameTimeoutError

NODES = "nodes"
ROSTER = "roster"
LISTINGS_PER_S = 200


class NodeRecord(msgspec.Struct, frozen=True):
    """agent → master: a node is there, and who speaks for it."""

    node: int
    host: str
    slots: int
    agent: str
    pid: int


class Roster(msgspec.Struct, frozen=True):
    """master → agents: who takes part in this attempt, in order of nodes, and where the master listens."""

    attempt: int
    master_address: str
    nodes: list[NodeRecord]


def announce(store: NameStore, record: NodeRecord) -> None:
    """Say that a node is there. It stays announced for as long as the attempt's directory exists.

    Raises:
        NameEntryExistsError: another agent has announced the same node.
    """
    try:
        store.add(f"{NODES}/{record.node:06d}", msgspec.json.encode(record).decode(), delete_on_exit=False)
    except NameEntryExistsError as error:
        raise NameEntryExistsError(f"node {record.node} has two agents in one attempt: {error}") from error


def announced(store: NameStore) -> list[NodeRecord]:
    """The nodes that are there now, in their order."""
    return [msgspec.json.decode(text, type=NodeRecord) for text in store.get_subtree(NODES)]


def collect_nodes(store: NameStore, expected: int, timeout_s: float) -> list[NodeRecord]:
    """The records of all nodes, in their order, once `expected` of them have announced themselves.

    Raises:
        NameTimeoutError: names the nodes that are missing.
    """
    records: Sequence[NodeRecord] = ()
    try:
        for _ in store.polls(f"{expected} nodes in {store}", timeout_s):
            records = announced(store)
            if len(records) >= expected:
                return records
    except NameTimeoutError as error:
        missing = sorted(set(range(expected)) - {record.node for record in records})
        raise NameTimeoutError(
            f"{len(records)} of {expected} nodes announced themselves within {timeout_s:g} s; missing: "
            f"{', '.join(map(str, missing))}. See the agents' logs, or raise cluster.start_timeout_s."
        ) from error
    raise AssertionError("polls() ends by raising")


def publish_roster(store: NameStore, roster: Roster) -> None:
    """Tell everybody who takes part; once per attempt."""
    store.add(ROSTER, msgspec.json.encode(roster).decode(), delete_on_exit=False)


def wait_roster(store: NameStore, timeout_s: float, nodes: int = 1) -> Roster:
    """The roster as soon as it is published; `nodes` is how many wait for it at the same time.

    Raises:
        NameTimeoutError: the master has not published it within `timeout_s`.
    """
    try:
        text = store.wait(ROSTER, timeout_s, first_poll_s=nodes / LISTINGS_PER_S)
    except NameTimeoutError as error:
        raise NameTimeoutError(
            f"the master published no roster within {timeout_s:g} s ({error}). See the master's log for the nodes that "
            "it still waits for, or raise cluster.start_timeout_s."
        ) from error
    return msgspec.json.decode(text, type=Roster)
