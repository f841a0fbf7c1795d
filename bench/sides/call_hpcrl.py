"""A call through hpcrl's Hub and a worker's mailbox, in two processes: request → syn → ack → no-op → reply."""

import multiprocessing
import statistics
import time
from multiprocessing.connection import Connection
from pathlib import Path

import zmq
from serving import serve

from hpcrl.wire.channel import Gatekeeper, Hub, RunKey
from hpcrl.wire.envelope import Envelope, encode
from hpcrl.wire.messages import Ack, Beat, Finish, Reply, Request, Syn
from hpcrl.workers.mailbox import Mailbox
from hpcrl.workers.sample_store import SampleStore
from hpcrl.workers.transport import TransportArgs

CALLS = 500
IDS = tuple(f"{row}@0#{sample}" for row in range(4) for sample in range(4))


def work(address: str, key: RunKey, pipe: Connection) -> None:
    """The worker: executes nothing, as soon as it may."""
    mailbox = Mailbox(0, TransportArgs("worker-0", address, key, 1.0, 60.0), Path(), SampleStore(), {})
    mailbox.open()
    pipe.send("up")
    while not isinstance(job := mailbox.jobs.get(), Finish):
        assert isinstance(job, tuple)
        mailbox.post(Reply(job[0].id, 0, None, {}, None, 0.0))
    mailbox.close()


class Master:
    """One end of the calls. The worker is known when its first beat has come."""

    def __init__(self) -> None:
        key = RunKey.generate()
        self._context = zmq.Context()
        self._gatekeeper = Gatekeeper(self._context, key)
        self._hub = Hub(self._context, key, "master")
        self._poller = zmq.Poller()
        self._poller.register(self._hub.socket, zmq.POLLIN)
        ours, theirs = multiprocessing.Pipe()
        multiprocessing.Process(target=work, args=(self._hub.address, key, theirs), daemon=True).start()
        ours.recv()
        self._requests = 0
        self._poller.poll(10_000)
        self._worker = self._hub.receive()[0][0]

    def round(self) -> dict[str, object]:
        return {"us": statistics.median(self._call() for _ in range(CALLS)) * 1e6}

    def sizes(self) -> list[int]:
        """Bytes of the four messages."""
        messages = [request(1), Syn(1, 0), Ack(1), Reply(1, 0, None, {}, None, 0.0)]
        return [len(encode(Envelope("master", 1, message))) for message in messages]

    def _call(self) -> float:
        self._requests += 1
        started = time.perf_counter()
        self._hub.send(self._worker, request(self._requests))
        while True:
            self._poller.poll(1000)
            for identity, envelope, _raw in self._hub.receive():
                if isinstance(envelope.body, Syn):
                    self._hub.send(identity, Ack(self._requests))
                elif isinstance(envelope.body, Reply):
                    return time.perf_counter() - started
                else:
                    assert isinstance(envelope.body, Beat), envelope.body


def request(number: int) -> Request:
    return Request(number, step=1, call="actor_gen", part=0, ids=IDS, sources=(), minibatches=(), record=None)


if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    master = Master()
    serve(master.round, bytes=sum(master.sizes()) // 4)
