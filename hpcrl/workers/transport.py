"""The talking thread of a model worker: gets the inputs of requests, serves rows to peers, carries replies and beats.

Owns all sockets of the worker and the requests that wait for inputs. Knows neither models nor how a call is executed:
what is acked goes into `work`, in the order of the acks.
"""

import os
import queue
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import zmq

from hpcrl.data.samples import KeyMeta, SampleMeta, SequenceSample
from hpcrl.errors import ExitCode, HpcrlError, InternalError, PeerLostError
from hpcrl.wire.channel import Gatekeeper, Hub, Link, RunKey
from hpcrl.wire.messages import (
    Ack,
    Beat,
    Begin,
    Failed,
    Fetch,
    Finish,
    Forget,
    Message,
    Request,
    Rows,
    RowSource,
    Save,
    Syn,
    WireKey,
    WireMeta,
)
from hpcrl.workers.sample_store import SampleStore

Job = Begin | Save | Finish | tuple[Request, SequenceSample]
READERS = 2


@dataclass
class Pending:
    """A request whose inputs are on their way."""

    request: Request
    pieces: list[SequenceSample] = field(default_factory=list)
    waiting: int = 0


class Transport:
    """Runs in its own thread from `start` to `stop`; every public method may be called from any thread."""

    def __init__(
        self,
        rank: int,
        name: str,
        master: str,
        key: RunKey,
        store: SampleStore,
        read_dataset: Callable[[str, Sequence[str]], SequenceSample],
        read_spill: Callable[[RowSource], SequenceSample],
        heartbeat_s: float,
        orphan_timeout_s: float,
        host: str = "127.0.0.1",
    ) -> None:
        self.work: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self.doing = "starting"
        self._rank = rank
        self._key = key
        self._name = name
        self._store = store
        self._read_dataset = read_dataset
        self._read_spill = read_spill
        self._heartbeat_s = heartbeat_s
        self._orphan_timeout_s = orphan_timeout_s
        self._context = zmq.Context(io_threads=1)
        self._gatekeeper = Gatekeeper(self._context, key)
        self._hub = Hub(self._context, key, f"{name}.rows", host)
        self._master = Link(self._context, key, name, master)
        self._peers: dict[int, Link] = {}
        self._addresses: tuple[str, ...] = ()
        self._pending: dict[int, Pending] = {}
        self._ready: dict[int, tuple[Request, SequenceSample]] = {}
        self._fetching: dict[int, int] = {}
        self._tokens = 0
        self._outbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._heard = 0.0
        self._poller = zmq.Poller()
        self._drains: dict[zmq.Socket | int, Callable[[], None]] = {}
        self._watch(self._master.socket, self._drain_master)
        self._watch(self._hub.socket, self._drain_hub)
        self._watch(self._wake, self._drain_outbox)
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="reader")
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="courier", daemon=True)

    @property
    def address(self) -> str:
        """Where peers ask for rows."""
        return self._hub.address

    def start(self) -> None:
        self._thread.start()

    def post(self, message: Message) -> None:
        """Send to the master."""
        self._later(lambda: self._master.send(message))

    def stop(self) -> None:
        """Send what was posted, then end the thread."""

        def last() -> None:
            self._stopping = True

        self._later(last)
        self._thread.join(timeout=5)

    def fail(self, what: str, error: BaseException) -> None:
        """Tell the master that code on this worker raised."""
        code = error.exit_code if isinstance(error, HpcrlError) else ExitCode.INTERNAL
        text = "".join(traceback.format_exception(error))
        self.post(Failed(self._rank, what, f"{type(error).__name__}: {error}", text, int(code), time.time()))

    # ── the thread ────────────────────────────────────────────────────────────────────────────────────────────────────
    def _run(self) -> None:
        next_beat = 0.0
        self._heard = time.monotonic()
        while not self._stopping:
            now = time.monotonic()
            if now >= next_beat:
                self._master.send(Beat(self.doing))
                next_beat = now + self._heartbeat_s
            if now - self._heard > self._orphan_timeout_s:
                os._exit(ExitCode.REQUEUE)
            for source, _event in self._poller.poll(max(1, int((next_beat - now) * 1000))):
                self._drain(source)
        self._master.close()
        self._hub.socket.close(0)

    def _watch(self, source: zmq.Socket | int, drain: Callable[[], None]) -> None:
        """Call `drain` whenever something has come from a source."""
        self._drains[source] = drain
        self._poller.register(source, zmq.POLLIN)

    def _drain(self, source: zmq.Socket | int) -> None:
        """This thread must not die of what a drain raises: the worker would be silent, and nobody would know why."""
        try:
            self._drains[source]()
            ends: tuple[Link | Hub, ...] = (self._master, self._hub, *self._peers.values())
            for end in ends:
                if end.incoming.lost_from:
                    raise PeerLostError(f"a message of {end.incoming.lost_from.pop()} got lost while it reconnected")
        except Exception as error:
            self.fail("talking to the others", error)

    def _drain_master(self) -> None:
        for envelope, _raw in self._master.receive():
            self._heard = time.monotonic()
            self._from_master(envelope.body)

    def _drain_hub(self) -> None:
        for identity, envelope, _raw in self._hub.receive():
            if isinstance(envelope.body, Fetch):
                self._serve(identity, envelope.body)

    def _drain_peer(self, link: Link) -> None:
        for envelope, raw in link.receive():
            if isinstance(envelope.body, Rows):
                self._fetched(envelope.body, raw)

    def _drain_outbox(self) -> None:
        os.eventfd_read(self._wake)
        while not self._outbox.empty():
            self._outbox.get()()

    def _later(self, action: Callable[[], None]) -> None:
        self._outbox.put(action)
        os.eventfd_write(self._wake, 1)

    def _from_master(self, body: Message) -> None:
        if isinstance(body, Request):
            self._gather(body)
        elif isinstance(body, Ack):
            ready = self._ready.pop(body.request, None)
            if ready is not None:
                self.work.put(ready)
        elif isinstance(body, Forget):
            self._store.release(body.before_step)
        elif isinstance(body, Begin | Save | Finish):
            if isinstance(body, Begin):
                self._addresses = body.addresses
            self.work.put(body)

    # ── inputs ────────────────────────────────────────────────────────────────────────────────────────────────────────
    def _gather(self, request: Request) -> None:
        pending = self._pending[request.id] = Pending(request)
        try:
            for source in request.sources:
                self._ask(pending, source)
        except Exception as error:
            self.fail(f"inputs of step {request.step} {request.call}", error)
            return
        self._complete(pending)

    def _ask(self, pending: Pending, source: RowSource) -> None:
        if source.dataset is not None:
            pending.pieces.append(self._read_dataset(source.dataset, source.ids).select_keys(source.keys))
        elif source.spill is not None:
            pending.waiting += 1
            self._readers.submit(self._read, pending, source)
        elif source.rank == self._rank:
            pending.pieces.append(self._store.take(pending.request.step, source.ids, source.keys))
        elif source.rank is not None:
            pending.waiting += 1
            self._tokens += 1
            self._fetching[self._tokens] = pending.request.id
            self._peer(source.rank).send(Fetch(self._tokens, pending.request.step, source.keys, source.ids))

    def _read(self, pending: Pending, source: RowSource) -> None:
        """On a reader's thread."""
        try:
            sample = self._read_spill(source)
        except Exception as error:
            self.fail(f"inputs of step {pending.request.step} {pending.request.call}", error)
            return
        self._later(lambda: self._arrived(pending, sample))

    def _fetched(self, rows: Rows, raw: Sequence[bytes]) -> None:
        pending = self._pending[self._fetching.pop(rows.token)]
        if rows.meta is None:
            what = f"inputs of step {pending.request.step} {pending.request.call}"
            self.fail(what, InternalError(f"a peer does not hold what the master says that it holds: {rows.missing}"))
            return
        self._arrived(pending, from_wire(rows.meta, raw))

    def _arrived(self, pending: Pending, piece: SequenceSample) -> None:
        pending.pieces.append(piece)
        pending.waiting -= 1
        self._complete(pending)

    def _complete(self, pending: Pending) -> None:
        if pending.waiting:
            return
        request = pending.request
        del self._pending[request.id]
        self._ready[request.id] = (request, assemble(request.ids, pending.pieces))
        self._master.send(Syn(request.id, self._rank))

    def _peer(self, rank: int) -> Link:
        if rank not in self._peers:
            link = Link(self._context, self._key, f"{self._name}>{rank}", self._addresses[rank])
            self._watch(link.socket, lambda: self._drain_peer(link))
            self._peers[rank] = link
        return self._peers[rank]

    def _serve(self, identity: bytes, fetch: Fetch) -> None:
        try:
            sample = self._store.take(fetch.step, fetch.ids, fetch.keys)
        except KeyError as error:
            self._hub.send(identity, Rows(fetch.token, None, str(error)))
            return
        frames = [np.ascontiguousarray(sample.data[key]).data.cast("B") for key in sample.keys]
        self._hub.send(identity, Rows(fetch.token, to_wire(sample)), [bytes(frame) for frame in frames])


def assemble(ids: Sequence[str], pieces: Sequence[SequenceSample]) -> SequenceSample:
    """One sample with rows `ids`, in their order, from pieces that each hold some rows of some keys."""
    if not pieces:
        return SequenceSample(meta=SampleMeta(ids=tuple(ids), keys={}), data={})
    merged: SequenceSample | None = None
    for key in dict.fromkeys(key for piece in pieces for key in piece.keys):
        # Rows of one key may come from several holders, each of which may bring other keys along.
        parts = [piece.select_keys([key]) for piece in pieces if key in piece.keys]
        column = (parts[0] if len(parts) == 1 else SequenceSample.gather(parts)).select(ids)
        merged = column if merged is None else merged.merge(column)
    if merged is None:
        raise ValueError("no pieces to assemble")
    return merged


def to_wire(sample: SequenceSample) -> WireMeta:
    keys = {key: WireKey(meta.dtype, meta.lengths, meta.trailing) for key, meta in sample.meta.keys.items()}
    return WireMeta(sample.ids, keys)


def from_wire(meta: WireMeta, raw: Sequence[bytes]) -> SequenceSample:
    """The sample whose arrays are the raw frames, without a copy."""
    keys = {key: KeyMeta(dtype=k.dtype, lengths=k.lengths, trailing=k.trailing) for key, k in meta.keys.items()}
    data = {
        key: np.frombuffer(frame, k.dtype).reshape(-1, *k.trailing)
        for (key, k), frame in zip(keys.items(), raw, strict=True)
    }
    return SequenceSample(meta=SampleMeta(ids=meta.ids, keys=keys), data=data)
