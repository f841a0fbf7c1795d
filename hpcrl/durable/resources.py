"""What a node and its workers use, line by line, as its agent has seen it. A file per node and attempt."""

import msgspec


class GpuUse(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of the device of a slot: bytes in use, by whomever, and how much of the time it computed, in per cent."""

    uuid: str
    used: int
    total: int
    busy: int


class WorkerUse(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of a worker and what runs below it: resident bytes (what it shares with its parent, too), and seconds that its
    processes have computed since they began."""

    rank: int
    pid: int
    rss: int
    cpu_s: float


class NodeUse(msgspec.Struct, frozen=True, omit_defaults=True):
    """A look at a node; or several as one, each figure as it was worst."""

    time: float
    """Seconds since 1970, of the last look."""
    host: str
    workers: tuple[WorkerUse, ...] = ()
    gpus: tuple[GpuUse, ...] = ()
    used: int = 0
    """Bytes that the job, or else the agent's control group, has in use, less what the kernel can drop at once; 0 where
    it does not say."""
    limit: int = 0
    """Bytes that it may have; 0: as many as there are."""
    free: int = -1
    """Bytes that are left on the run's file system; -1 where nobody says it."""
    fsync_s: float = 0.0
    """How long the last line took to reach the disk."""

    def worse(self, other: "NodeUse") -> "NodeUse":
        """This look and a later one as one."""
        workers = {worker.pid: worker for worker in self.workers}
        for worker in other.workers:
            before = workers.get(worker.pid, worker)
            workers[worker.pid] = msgspec.structs.replace(worker, rss=max(worker.rss, before.rss))
        gpus = {gpu.uuid: gpu for gpu in self.gpus}
        for gpu in other.gpus:
            known = gpus.get(gpu.uuid, gpu)
            gpus[gpu.uuid] = GpuUse(gpu.uuid, max(gpu.used, known.used), gpu.total, max(gpu.busy, known.busy))
        room = [free for free in (self.free, other.free) if free >= 0]
        return NodeUse(
            other.time,
            other.host,
            tuple(workers.values()),
            tuple(gpus.values()),
            max(self.used, other.used),
            other.limit,
            min(room, default=-1),
            max(self.fsync_s, other.fsync_s),
        )


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(NodeUse)


def encode(use: NodeUse) -> bytes:
    """A line."""
    return _ENCODER.encode(use) + b"\n"


def decode(line: bytes | str) -> NodeUse:
    """Raises `msgspec.DecodeError` on what is damaged."""
    return _DECODER.decode(line)
