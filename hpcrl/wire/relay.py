"""Carries what a node's workers and their master tell each other: one connection for the node, one message for many.

Knows nothing of what it carries. Frames are the envelopes of those who talk, numbered by them and read by nobody on the
way: one that gets lost here is missed where it was to go, as one that gets lost on a connection is.
"""

import math
import os
import threading
import time

import zmq

from hpcrl.wire.bundle import Bundle
from hpcrl.wire.channel import Gatekeeper, Link, RunKey, router, waiting

GAP_S = 0.001
"""Between two bundles to the master, at most: what is said alone goes at once, what many say at the same time goes
together."""
GAP_OF_WORKER_S = 1e-5
"""So much of it for each worker of the run: a master of few has time to hear each."""
LEAVE_S = 5.0


def gap_of(workers: int) -> float:
    """The seconds between two bundles in a run of so many workers."""
    return min(GAP_S, GAP_OF_WORKER_S * workers)


class Outbox:
    """Frames, with who says them, that are to go in the next bundle."""

    def __init__(self, gap_s: float) -> None:
        self._gap_s = gap_s
        self._frames: list[tuple[bytes, bytes]] = []
        self._taken = -gap_s

    def add(self, identity: bytes, frame: bytes) -> None:
        self._frames.append((identity, frame))

    def wait_s(self, now: float) -> float | None:
        """How long the next bundle is to wait; None where there is nothing to send."""
        return max(0.0, self._taken + self._gap_s - now) if self._frames else None

    def take(self, now: float) -> Bundle:
        """All that is there."""
        bundle, self._frames, self._taken = Bundle(self._frames), [], now
        return bundle


class Relay:
    """Of one node, and one connection of it, in a run of so many `workers`: a thread from `start` to `close`.

    Workers connect to `address`, a name of the kernel's (an abstract Unix socket): no port, no file, and gone with the
    process.
    """

    def __init__(self, context: zmq.Context, key: RunKey, name: str, master: str, workers: int) -> None:
        Gatekeeper(context, key)
        self._workers = router(context, key)
        self.address = f"ipc://@hpcrl.{name}"
        self._workers.bind(self.address)
        self._master = Link(context, key, name, master)
        self._outbox = Outbox(gap_of(workers))
        self._stop = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Carry nothing more."""
        os.eventfd_write(self._stop, 1)
        self._thread.join(LEAVE_S)
        os.close(self._stop)

    def _run(self) -> None:
        poller = zmq.Poller()
        for source in (self._workers, self._master.socket, self._stop):
            poller.register(source, zmq.POLLIN)
        came: dict[object, int] = {}
        while self._stop not in came:
            came = dict(poller.poll(self._patience_ms()))
            if self._master.socket in came:
                self._to_workers()
            if self._workers in came:
                for identity, frame in waiting(self._workers, addressed=True):
                    self._outbox.add(identity, frame)
            wait_s = self._outbox.wait_s(now := time.monotonic())
            if wait_s == 0.0 or (wait_s is not None and self._stop in came):
                self._master.send(self._outbox.take(now))
        self._workers.close(0)
        self._master.close()

    def _patience_ms(self) -> int | None:
        """How long to wait for more before the next bundle is due. What a poll is too coarse for is slept here."""
        wait_s = self._outbox.wait_s(time.monotonic())
        if wait_s is None or wait_s > GAP_S / 2:
            return None if wait_s is None else math.ceil(wait_s * 1000)
        time.sleep(wait_s)
        return 0

    def _to_workers(self) -> None:
        for envelope, _raw in self._master.receive():
            if isinstance(envelope.body, Bundle):
                for parts in envelope.body.frames:
                    self._workers.send_multipart(parts)
