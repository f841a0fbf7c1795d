"""What a run's nodes and workers used at most, and how much more there was."""

from collections.abc import Iterator

import msgspec

from hpcrl.durable.resources import NodeUse, WorkerUse
from hpcrl.inspect.looks import read_looks, slots
from hpcrl.inspect.reader import RunReader


class NodePeak(msgspec.Struct, frozen=True):
    """Of a node in an attempt."""

    attempt: int
    node: int
    host: str
    looks: int
    """Lines that its agent has written."""
    used: int | None
    """Bytes of memory that its job had in use at most; None where the kernel did not say."""
    limit: int | None
    """Bytes that it could have; None where there is no limit."""
    headroom: float | None
    """The share of the limit that was left at that time."""
    free: int | None
    """Bytes that were left at least on the run's file system."""
    fsync_s: float
    """The longest that a line of this file took to reach the disk."""


class WorkerPeak(msgspec.Struct, frozen=True):
    """Of a worker in an attempt. Its processes are counted together."""

    attempt: int
    worker: int
    node: int
    host: str
    rss: int
    """Resident bytes at most."""
    cpus: float | None
    """CPUs that it kept busy in the mean, between the first look at it and the last; None where there was one."""
    gpu_used: int | None
    """Bytes that were in use at most on its GPU, by whomever; None where it has none."""
    gpu_total: int | None
    gpu_busy: float | None
    """How much of the time its GPU computed: the mean over looks, as a share."""


class Resources(msgspec.Struct, frozen=True):
    """The JSON of `hpcrl inspect RUN resources --json`."""

    nodes: list[NodePeak]
    workers: list[WorkerPeak]


def resources(reader: RunReader) -> Resources:
    nodes: list[NodePeak] = []
    workers: list[WorkerPeak] = []
    for attempt in sorted(reader.attempts):
        for node, uses in read_looks(reader.run, attempt):
            nodes.append(_node(attempt, node, uses))
            workers += _workers(attempt, node, uses)
    return Resources(nodes, sorted(workers, key=lambda it: (it.attempt, it.worker)))


def _node(attempt: int, node: int, uses: list[NodeUse]) -> NodePeak:
    used, limit = max(use.used for use in uses), uses[-1].limit
    room = [use.free for use in uses if use.free >= 0]
    return NodePeak(
        attempt=attempt,
        node=node,
        host=uses[-1].host,
        looks=len(uses),
        used=used or None,
        limit=limit or None,
        headroom=1 - used / limit if used and limit else None,
        free=min(room, default=None),
        fsync_s=max(use.fsync_s for use in uses),
    )


def _workers(attempt: int, node: int, uses: list[NodeUse]) -> Iterator[WorkerPeak]:
    seen: dict[int, list[tuple[float, WorkerUse]]] = {}
    for use in uses:
        for worker in use.workers:
            seen.setdefault(worker.rank, []).append((use.time, worker))
    slot_of = slots(uses)
    for rank, looks in seen.items():
        (began, first), (ended, last) = looks[0], looks[-1]
        computed = ended > began and first.pid == last.pid
        gpus = [use.gpus[slot_of[rank]] for use in uses if slot_of[rank] < len(use.gpus)]
        yield WorkerPeak(
            attempt=attempt,
            worker=rank,
            node=node,
            host=uses[-1].host,
            rss=max(worker.rss for _, worker in looks),
            cpus=round((last.cpu_s - first.cpu_s) / (ended - began), 3) if computed else None,
            gpu_used=max((gpu.used for gpu in gpus), default=None),
            gpu_total=gpus[-1].total if gpus else None,
            gpu_busy=sum(gpu.busy for gpu in gpus) / len(gpus) / 100 if gpus else None,
        )
