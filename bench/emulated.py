"""Agents and workers that a master cannot tell from real ones, hundreds of them in one process: for what it costs it.

`python emulated.py RUN FIRST STOP OUT NODE STEP`: those of nodes FIRST … STOP. Messages, keys and files are real;
nothing is computed, so that what a call makes is zeros, and a digest says only which version of its role it is of.
Chores are done, by the code of an agent's housekeeper. When the first request of STEP comes to NODE it is gone, without
a word, and another takes its place.
"""

import hashlib
import json
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import suppress
from functools import cached_property
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import zmq

from hpcrl.agent.housekeeper import Housework
from hpcrl.data.samples import SequenceSample
from hpcrl.durable.checkpoints import write_shard
from hpcrl.durable.rundir import RunDirectory
from hpcrl.durable.spills import write_spill
from hpcrl.figures import Figures
from hpcrl.nameresolve.base import NameTimeoutError
from hpcrl.nameresolve.filesystem import FilesystemStore
from hpcrl.nameresolve.rendezvous import wait_master
from hpcrl.placement.plan import Plan, read_plan
from hpcrl.wire.bundle import Bundle
from hpcrl.wire.channel import Link, RunKey
from hpcrl.wire.chores import Chore, ChoreReport, KeepStep, RemoveParts
from hpcrl.wire.envelope import Envelope, decode, encode
from hpcrl.wire.messages import (
    Ack,
    AgentHello,
    Assemble,
    Beat,
    Begin,
    ExportWritten,
    Finish,
    Message,
    Reply,
    Request,
    Save,
    ShardsVerified,
    ShardWritten,
    Spilled,
    StartWorkers,
    Syn,
    Verify,
    WorkerHello,
    WorkerReady,
)
from hpcrl.wire.relay import GAP_S, Outbox

BEAT_S = 1.0
POLL_MS = 20
REPLACED_AFTER_S = 0.1
FIGURES = Figures()


class Worker:
    """One of an attempt. Answers at once."""

    def __init__(self, run: RunDirectory, plan: Plan, attempt: int, rank: int, link: "Carried") -> None:
        self._run = run
        self._plan = plan
        self.attempt = attempt
        self._rank = rank
        self._requests: dict[int, Request] = {}
        self.link = link
        link.send(WorkerHello(attempt, rank, os.getpid(), f"tcp://127.0.0.1:{10_000 + rank}", "", "emulated", "none"))

    def hear(self, body: Message) -> None:
        match body:
            case Begin():
                self.link.send(WorkerReady(self._rank, 0.0))
            case Request() if not body.sources:
                self._execute(body)
            case Request():
                self._requests[body.id] = body
                self.link.send(Syn(body.id, self._rank))
            case Ack():
                self._execute(self._requests.pop(body.request))
            case Save():
                self._save(body)
            case Assemble():
                self._assemble(body)
            case Verify():
                damage = [self._run.files.damage(shard) or "" for shard in body.shards]
                self.link.send(ShardsVerified(body.step, self._rank, "; ".join(filter(None, damage))))

    def _execute(self, request: Request) -> None:
        call = self._plan.call(request.call)
        part = next(it for it in self._plan.working(call.name, request.part) if self._rank in it.ranks)
        is_head, record, sample = self._rank == part.head, None, None
        if call.changes:
            digest = hashlib.blake2b(f"{call.role} {request.version}".encode(), digest_size=8).hexdigest()
            record = {"minibatches": 1, "lr": 0.1, "digest": digest, "parameters": digest}
            sample = rows_of(request.shown, call.shown) if request.shown else None
        elif is_head:
            sample = rows_of(request.ids, call.outputs)
        stats = {"norm": (0.0, float(len(request.ids)))} if is_head else {}
        meta = None if sample is None else sample.meta
        self.link.send(Reply(request.id, self._rank, meta, stats, record, 0.001, figures=FIGURES))
        if sample is not None:
            path = self._run.spill(request.step, call.name, part.index, self.attempt)
            self.link.send(Spilled(request.id, self._rank, write_spill(self._run.files, path, sample), 0.001))

    def _save(self, save: Save) -> None:
        index = self._plan.home(save.role).ranks.index(self._rank)
        of_export = self._run.export_shards(save.role, save.step, self.attempt)
        folder = self._run.checkpoint(save.step, self.attempt) if save.checkpoint else of_export
        shard = write_shard(self._run.files, folder, save.role, index, {"w": np.zeros(2)}, {"version": save.step})
        self.link.send(ShardWritten(save.step, save.role, self._rank, shard, 0.001, save.checkpoint, save.export))

    def _assemble(self, order: Assemble) -> None:
        self._run.export_parts(order.role, order.step, self.attempt).mkdir(parents=True, exist_ok=True)
        self.link.send(ExportWritten(order.step, order.role, self._rank))


def rows_of(ids: Sequence[str], keys: Sequence[str]) -> SequenceSample:
    """A number for each sample and key."""
    return SequenceSample.from_rows(ids, {key: [np.zeros(1)] * len(ids) for key in keys})


def do_chore(root: Path, chore: Chore) -> ChoreReport:
    """In a process of its own: beats go on meanwhile."""
    return Housework(RunDirectory(root), chore.attempt).do(chore)


class Carried:
    """A worker's connection, which its node's relay carries."""

    def __init__(self, name: str, outbox: Outbox) -> None:
        self.name = name
        self._outbox = outbox
        self._sent = 0

    def send(self, body: Message) -> None:
        self._sent += 1
        self._outbox.add(self.name.encode(), encode(Envelope(self.name, self._sent, body)))


class Node:
    """An agent, its relay and its workers, from its hello to when it is told to finish, or lost."""

    def __init__(self, crowd: "Crowd", number: int, address: str, start: int) -> None:
        self._crowd = crowd
        self._number = number
        self._address = address
        self._workers: dict[bytes, Worker] = {}
        self._plan: Plan | None = None
        self._outbox = Outbox(GAP_S)
        self._vanished = False
        self._chore: Future[ChoreReport] | None = None
        self.beaten: list[float] = []
        """When the master has sent its beats, by its own clock."""
        self._agent = crowd.link(f"agent-{number}.{start}", address, self._hear)
        hello = AgentHello(number, "emulated", crowd.workers, os.getpid() * 1000 + start, (1, start))
        self._relay = crowd.link(f"relay-{number}.{start}", address, self._carry)
        self._agent.send(hello)

    def _hear(self, body: Message) -> None:
        match body:
            case StartWorkers():
                self._workers = {}
                for rank in body.ranks:
                    link = Carried(f"worker-{rank}.a{body.attempt:03d}", self._outbox)
                    plan = self._crowd.plan(body.attempt)
                    self._workers[link.name.encode()] = Worker(self._crowd.run, plan, body.attempt, rank, link)
                self.flush()
            case KeepStep() | RemoveParts():
                self._chore = self._crowd.beside.submit(do_chore, self._crowd.run.root, body)
            case Beat():
                self.beaten.append(body.sent)
            case Finish():
                self._crowd.finished.add(self._number)

    def _carry(self, bundle: Message) -> None:
        """To the workers that are there, and what they say at once back."""
        for name, frame in bundle.frames if isinstance(bundle, Bundle) else ():
            worker, body = self._workers.get(name), decode(frame).body
            if worker is None:
                continue
            if isinstance(body, Request) and worker.attempt == 0 and self._crowd.loses(self._number, body.step):
                self._crowd.lose(self._number)
                return
            # One of an older attempt, whose files are gone, would have been killed by now.
            with suppress(FileNotFoundError):
                worker.hear(body)
            self.flush()

    def flush(self) -> None:
        """As a real relay does."""
        if not self._vanished and self._outbox.wait_s(now := time.monotonic()) == 0.0:
            self._relay.send(self._outbox.take(now))

    def report(self) -> None:
        """Tell of a chore that is done."""
        if self._chore is not None and self._chore.done() and not self._vanished:
            self._agent.send(self._chore.result())
            self._chore = None

    def beat(self) -> None:
        """As often as the real ones."""
        if self._vanished:
            return
        self._agent.send(Beat(sent=time.monotonic()))
        for worker in self._workers.values():
            worker.link.send(Beat())
        self.flush()

    def vanish(self) -> None:
        """Without a word."""
        self._vanished = True
        self._workers = {}
        self._crowd.close(self._agent)
        self._crowd.close(self._relay)


class Crowd:
    """All that one process emulates."""

    def __init__(self, run: RunDirectory, nodes: range, workers: int, told: Path, loses: tuple[int, int]) -> None:
        self.run = run
        self.workers = workers
        self.finished: set[int] = set()
        self.beside = ProcessPoolExecutor(1, get_context("spawn"))
        """Does chores."""
        self._told = told
        self._loses = loses
        self._lost_at = 0.0
        self._context = zmq.Context(io_threads=1)
        self._context.max_sockets = len(nodes) * 2 * 3
        self._key = RunKey.of(run)
        self._poller = zmq.Poller()
        self._links: dict[zmq.Socket, tuple[Link, Any]] = {}
        self._plans: dict[int, Plan] = {}
        address = self._address
        self._nodes = {number: Node(self, number, address, 0) for number in nodes}

    @cached_property
    def _address(self) -> str:
        """Where the master listens, in all of its attempts."""
        while not self.run.rendezvous(0).exists():
            time.sleep(0.02)
        with suppress(NameTimeoutError):
            return wait_master(FilesystemStore(self.run.rendezvous(0)), 60.0).address
        raise SystemExit("no master came")

    def link(self, name: str, address: str, hear: Any) -> Link:
        link = Link(self._context, self._key, name, address)
        self._links[link.socket] = link, hear
        self._poller.register(link.socket, zmq.POLLIN)
        return link

    def close(self, link: Link) -> None:
        self._poller.unregister(link.socket)
        del self._links[link.socket]
        link.close(0)

    def plan(self, attempt: int) -> Plan:
        if attempt not in self._plans:
            self._plans[attempt] = read_plan(self.run, attempt)
        return self._plans[attempt]

    def live(self) -> None:
        """Until everybody was told to finish; then say how far apart the master's beats were."""
        beat_at = 0.0
        while self.finished != self._nodes.keys():
            for socket, _ in self._poller.poll(POLL_MS):
                self._hear(socket)
            for node in self._nodes.values():
                node.report()
                node.flush()
            if time.monotonic() >= beat_at:
                beat_at = time.monotonic() + BEAT_S
                for node in self._nodes.values():
                    node.beat()
            if self._lost_at and time.monotonic() > self._lost_at + REPLACED_AFTER_S:
                self._lost_at, number = 0.0, self._loses[0]
                self._nodes[number] = Node(self, number, self._address, 1)
        gaps = [b - a for node in self._nodes.values() for a, b in zip(node.beaten, node.beaten[1:], strict=False)]
        self._told.write_text(json.dumps(max(gaps, default=0.0)))

    def loses(self, node: int, step: int) -> bool:
        return (node, step) == self._loses and not self._lost_at

    def lose(self, node: int) -> None:
        """Say when it was."""
        self._nodes[node].vanish()
        self._lost_at = time.monotonic()
        (self._told.parent / "lost").write_text(str(time.time()))

    def _hear(self, socket: zmq.Socket) -> None:
        if socket not in self._links:
            return
        link, hear = self._links[socket]
        for envelope, _ in link.receive():
            hear(envelope.body)
            if socket not in self._links:
                return


if __name__ == "__main__":
    of, first, stop, out, *losing = sys.argv[1:]
    there = RunDirectory(Path(of))
    cluster = there.configuration("first")["cluster"]
    at = int(losing[0]), int(losing[1])
    Crowd(there, range(int(first), int(stop)), int(cluster["workers_per_node"]), Path(out), at).live()
