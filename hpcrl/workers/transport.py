"""The talking thread of a model worker: all of its sockets, its beats, and what other threads post.

Knows neither rows nor models: a `Listener` is told what came, on this thread.
"""

import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import zmq

from hpcrl.errors import ExitCode, StoppedError
from hpcrl.wire.address import LOOPBACK_ONLY, Network
from hpcrl.wire.channel import Gatekeeper, Hub, Link, RunKey
from hpcrl.wire.messages import Beat, Message
from hpcrl.wire.peer_messages import Fetch, Raw, Rows

STOOD_STILL_S = 1.0
"""If a turn takes so much longer than a beat's interval, this process was stopped: that is why it has heard nobody."""


@dataclass(frozen=True)
class TransportArgs:
    """Who talks, with which master, and how long it lives without one."""

    name: str
    master: str
    key: RunKey
    heartbeat_s: float
    orphan_timeout_s: float
    network: Network = LOOPBACK_ONLY


class Listener(Protocol):
    """Hears on the talking thread; what it raises is told as `failed` and ends nothing."""

    def from_master(self, body: Message) -> None: ...

    def serve(self, fetch: Fetch) -> tuple[Rows, list[memoryview]]:
        """A peer's question → the answer and its raw frames."""
        ...

    def fetched(self, rows: Rows, frames: Sequence[Raw]) -> None: ...

    def failed(self, what: str, error: Exception) -> None: ...


class Transport:
    """Runs in its own thread from `start` to `stop`. `post`, `later`, `beat` and `stop` are for any thread."""

    def __init__(self, args: TransportArgs, clock: Callable[[], float] = time.monotonic) -> None:
        self.beat: Callable[[], Beat] = Beat
        """Makes a beat, which says what this worker does."""
        self._args = args
        self._clock = clock
        self._listener: Listener
        self._context = zmq.Context(io_threads=1)
        Gatekeeper(self._context, args.key)  # its thread keeps it, for as long as the context
        self._hub = Hub(self._context, args.key, f"{args.name}.rows", args.network)
        self._master = Link(self._context, args.key, args.name, args.master)
        self._peers: dict[str, Link] = {}
        self._outbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._heard = clock()
        self._stopping = False
        self._poller = zmq.Poller()
        self._drains: dict[zmq.Socket | int, Callable[[], None]] = {}
        self._watch(self._master.socket, self._drain_master)
        self._watch(self._hub.socket, self._drain_hub)
        self._watch(self._wake, self._drain_outbox)

    @property
    def address(self) -> str:
        """Where peers ask for rows."""
        return self._hub.address

    def start(self, listener: Listener) -> None:
        self._listener = listener
        self._thread = threading.Thread(target=self._run, name="transport", daemon=True)
        self._thread.start()

    def post(self, message: Message) -> None:
        """Send to the master."""
        self.later(lambda: self.send(message))

    def send(self, message: Message) -> None:
        """Send to the master; on the talking thread only."""
        self._master.send(message)

    def later(self, action: Callable[[], None]) -> None:
        """Do it on the talking thread."""
        self._outbox.put(action)
        os.eventfd_write(self._wake, 1)

    def fetch(self, address: str, fetch: Fetch) -> None:
        """Ask the peer at an address; on the talking thread only."""
        if address not in self._peers:
            link = Link(self._context, self._args.key, f"{self._args.name}>{address}", address)
            self._watch(link.socket, lambda: self._drain_peer(link))
            self._peers[address] = link
        self._peers[address].send(fetch)

    def stop(self, timeout_s: float = 5.0) -> None:
        """Send what was posted, then end the thread."""

        def last() -> None:
            self._stopping = True

        self.later(last)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        next_beat = 0.0
        self._heard = before = self._clock()
        while not self._stopping:
            now = self._clock()
            if now - before > self._args.heartbeat_s + STOOD_STILL_S:
                self._heard = now
            before = now
            if now >= next_beat:
                self._master.send(self.beat())
                next_beat = now + self._args.heartbeat_s
            if now - self._heard > self._args.orphan_timeout_s:
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
        self._guarded(self._drains[source])
        ends: tuple[Link | Hub, ...] = (self._master, self._hub, *self._peers.values())
        for end in ends:
            while end.incoming.lost_from:
                sender = end.incoming.lost_from.pop()
                self._failed(StoppedError(f"a message of {sender} got lost while it reconnected"))

    def _guarded(self, action: Callable[[], None]) -> None:
        """This thread must not die of what a listener raises: the worker would be silent, and nobody would know why."""
        try:
            action()
        except Exception as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        self._listener.failed("talking to the others", error)

    def _drain_master(self) -> None:
        for envelope, _raw in self._master.receive():
            self._heard = self._clock()
            self._listener.from_master(envelope.body)

    def _drain_hub(self) -> None:
        for identity, envelope, _raw in self._hub.receive():
            if isinstance(envelope.body, Fetch):
                rows, frames = self._listener.serve(envelope.body)
                self._hub.send(identity, rows, frames)

    def _drain_peer(self, link: Link) -> None:
        for envelope, frames in link.receive():
            if isinstance(envelope.body, Rows):
                self._listener.fetched(envelope.body, frames)

    def _drain_outbox(self) -> None:
        os.eventfd_read(self._wake)
        while not self._outbox.empty():
            self._guarded(self._outbox.get())
