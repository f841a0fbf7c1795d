"""The agent of a node: forks and reaps this node's workers, passes chores on, beats to the master, and outlives all.

Owns the zygote and with it every worker process of its node. Knows nothing of calls, models or the graph. A worker is
never repaired: when membership changes, all workers of the node are killed and forked anew from the warm zygote.
"""

import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import zmq

from hpcrl.agent.claims import Claims, Holder
from hpcrl.agent.clock import NodeClock
from hpcrl.agent.gpus import bind, bindings
from hpcrl.agent.housekeeper import Housekeeper, keep_house, patience_s
from hpcrl.agent.starter import Starter
from hpcrl.agent.torch_build import measure_build
from hpcrl.agent.watch import Watch
from hpcrl.agent.zygote import Work, Zygote
from hpcrl.config.cluster import Abilities
from hpcrl.config.experiment import ExperimentConfig
from hpcrl.durable.paths import RunPaths
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ExitCode, HpcrlError
from hpcrl.event_log import EventLog
from hpcrl.events import WorkerEnded
from hpcrl.foreign import plain
from hpcrl.inspect.lines import last_lines
from hpcrl.member_events import FinishHeard, MasterConnected, MasterLost, MessageLost, StacksShown
from hpcrl.nameresolve.base import DamagedEntryError, NameTimeoutError
from hpcrl.nameresolve.filesystem import FilesystemStore
from hpcrl.nameresolve.rendezvous import LISTINGS_PER_S, MasterAddress, NodeRecord, announce, wait_master
from hpcrl.placement.abilities import engines_of
from hpcrl.placement.plan import read_plan
from hpcrl.processes import Signals
from hpcrl.recipes.algorithm import algorithm_of, experiment_from
from hpcrl.stacks import ask, show_when_asked
from hpcrl.whereabouts import Doing
from hpcrl.wire.address import LOOPBACK, network_of
from hpcrl.wire.channel import Link, RunKey
from hpcrl.wire.chores import KeepStep, RemoveParts
from hpcrl.wire.messages import (
    AgentHello,
    AreYouThere,
    Beat,
    Finish,
    Here,
    Message,
    NodeDraining,
    ShowStacks,
    StartWorkers,
    Trouble,
    WorkerExited,
    WorkersConnected,
)
from hpcrl.wire.relay import Relay
from hpcrl.wire.zygote import WorkerArgs
from hpcrl.workers.model_worker import ModelWorker

LEAVE_S = 10.0
LAST_BYTES = 4096
"""Of what a worker has printed, in which its last line is looked for."""
MASTER_POLL_S = 2.0
SEEK_S = 0.25
SEEK_OPERATIONS = 4
"""How often a look for a master asks the file server."""

Disconnected = Literal["silent", "message lost"]
"""Why an agent and its master parted: whether that master may still be there."""
TICK_MS = 200


@dataclass(frozen=True)
class AgentArgs:
    """All that an agent is told: its node, the submission, where its node is reached, which start of it this is.

    `abilities` are those of whoever starts it.
    """

    run_dir: Path
    node: int
    submission: str
    host: str = LOOPBACK
    incarnation: tuple[int, int] = (0, 0)
    abilities: Abilities = field(default_factory=Abilities)


def run_agent(at: AgentArgs, fault: Callable[[str], None]) -> ExitCode:
    """The agent's process, from its first line to its exit code. Starts its zygote before it owns a thread."""
    run = RunDirectory(at.run_dir)
    experiment = experiment_from(run.configuration(at.submission))
    algorithm = algorithm_of(experiment)
    roles = algorithm.roles.values()
    hosts = (algorithm.host, *(kind.host for kind in roles if kind.host is not None))
    imports = tuple(dict.fromkeys((*hosts, *engines_of(experiment), *(kind.maker for kind in roles))))
    work = Work(lambda worker: _run_worker(worker, fault), lambda args, channel: keep_house(args, channel, fault))
    zygote = Zygote(imports, work)
    signals = Signals()
    cluster = experiment.cluster
    # After the zygote, which would hold them too.
    claims = Claims(Holder(str(run.root), at.submission, at.node, os.getpid()), cluster.orphan_timeout_s)
    starter = Starter(run, experiment, at.host, zygote)
    housekeeper = Housekeeper(zygote, run, at.node, cluster.heartbeat_s, patience_s(cluster.lost_after_s))
    try:
        return Agent(run, experiment, at, signals, claims, fault, starter, housekeeper).serve_run()
    finally:
        housekeeper.close()
        zygote.close()
        starter.servers.close()
        signals.close()
        claims.release()


def _run_worker(args: WorkerArgs, fault: Callable[[str], None]) -> int:
    """In the forked worker. What it prints last before it could tell its master, its agent tells."""
    try:
        bind(args.environment, args.cpus)
        show_when_asked(RunPaths(Path(args.run_dir)).stacks(args.attempt, f"worker-{args.rank}"))
        plan = read_plan(RunDirectory(Path(args.run_dir)), args.attempt)
        fault(f"as worker-{args.rank}")
        return int(ModelWorker(args, plan, fault).run())
    except (HpcrlError, OSError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        # A node's trouble with its disk is not the run's.
        return int(error.exit_code if isinstance(error, HpcrlError) else ExitCode.REQUEUE)


@dataclass
class Agent:
    """One node's agent for as long as its submission lives."""

    run: RunDirectory
    experiment: ExperimentConfig
    at: AgentArgs
    signals: Signals
    claims: Claims
    fault: Callable[[str], None]
    starter: Starter
    housekeeper: Housekeeper
    _trouble: Trouble | None = None
    _announced: set[int] = field(default_factory=set)
    _heard: float = field(default_factory=time.monotonic)
    _ordered: StartWorkers | None = None
    _started: StartWorkers | None = None
    _told_draining: bool = False
    _has_met: bool = False

    @property
    def zygote(self) -> Zygote:
        return self.starter.zygote

    def serve_run(self) -> ExitCode:
        """Join the master of this submission, again after each loss, until it says how the run ended."""
        self.fault("agent.start")
        self._prepare()
        cluster, replaces = self.experiment.cluster, self.at.abilities.replaces_nodes
        before = self.run.newest_attempt_of(self.at.submission)
        patience_s, silent = cluster.start_timeout_s, None
        while time.monotonic() - self._heard < patience_s and not self.signals.caught:
            attempt = self.run.newest_attempt_of(self.at.submission)
            ended = self._ended(attempt, before)
            if ended is not None:
                return ended
            master = None if attempt in (None, silent) or self.run.is_closed(attempt) else self._ask_in(attempt)
            if master is None:
                time.sleep(max(SEEK_S, SEEK_OPERATIONS * cluster.most_nodes / LISTINGS_PER_S))
                continue
            code = self._serve(master)
            if isinstance(code, ExitCode):
                return self._leaving(code)
            silent = master.attempt if code == "silent" else None
            if self._has_met:
                patience_s = cluster.replace_timeout_s if replaces else cluster.orphan_timeout_s
        return self._leaving(ExitCode.REQUEUE)

    def _leaving(self, code: ExitCode) -> ExitCode:
        """Who is to come back says whether it was told to go: then nobody has to wait, or count."""
        return ExitCode.PREEMPTED if code == ExitCode.REQUEUE and self.signals.caught else code

    def _prepare(self) -> None:
        """Give every slot its place and keep other agents of this node off its GPUs; the master hears what is wrong."""
        try:
            cluster = self.experiment.cluster
            network_of(cluster, self.at.host)
            first = 0 if self.at.abilities.separates_gpus else self.at.node * cluster.workers_per_node
            measure = measure_build if engines_of(self.experiment) else None
            self.starter.bindings = bindings(cluster, first, os.environ, measure)
            self.claims.take(self.starter.devices, lambda: bool(self.signals.caught))
        except HpcrlError as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            self._trouble = Trouble(str(error), int(error.exit_code))
        self._heard = time.monotonic()

    # ── finding the master ────────────────────────────────────────────────────────────────────────────────────────────
    def _ended(self, attempt: int | None, before: int | None) -> ExitCode | None:
        """How the run ended while nobody could tell this agent.

        That the jobs were to be queued again, in an attempt from before this agent was started, is why it was started;
        and where a master comes back, it says itself whom it does not wait for.
        """
        verdict = None if attempt is None else self.run.read_verdict(attempt)
        if verdict is None:
            return None
        comes_back = self.at.abilities.replaces_nodes
        if verdict.exit_code == ExitCode.REQUEUE and (attempt == before or comes_back):
            return None
        return ExitCode(verdict.exit_code)

    def _ask_in(self, attempt: int) -> MasterAddress | None:
        """Announce this node in an attempt (once) and wait a little for where its master listens."""
        with closing(FilesystemStore(self.run.rendezvous(attempt))) as store:
            if attempt not in self._announced:
                announce(store, NodeRecord(self.at.node, socket.gethostname(), os.getpid(), self.at.incarnation))
                self._announced.add(attempt)
            try:
                return wait_master(store, MASTER_POLL_S, self.experiment.cluster.most_nodes)
            except (NameTimeoutError, DamagedEntryError):
                # A damaged store shows nobody its master; the next attempt has one of its own.
                return None

    # ── serving one master ────────────────────────────────────────────────────────────────────────────────────────────
    def _serve(self, master: MasterAddress) -> ExitCode | Disconnected:
        """Obey one master until it finishes the run (its exit code), or they part."""
        node = self.at.node
        context = zmq.Context(io_threads=1)
        run_key = RunKey.of(self.run)
        # A name of its own for every connection: the hub takes what comes again under an old one for a replay.
        name = f"{node}.{os.getpid()}.{secrets.token_hex(4)}"
        link = Link(context, run_key, f"agent-{name}", master.address)
        cluster = self.experiment.cluster
        workers = cluster.most_nodes * cluster.workers_per_node
        relay = Relay(context, run_key, f"relay-{name}", master.address, workers)
        log = EventLog(self.run.worker_log(master.attempt, f"agent-{node}"))
        log.write(MasterConnected(master.address))
        path = self.run.node_resources(master.attempt, node)
        watch = Watch(path, self.run.root, self.zygote.pids, self.starter.devices)
        watch.start()
        relay.start()
        try:
            slots = cluster.workers_per_node
            host, devices = socket.gethostname(), self.starter.devices
            link.send(AgentHello(node, host, slots, os.getpid(), self.at.incarnation, devices, self._trouble))
            return self._obey(link, log, master, watch, relay.address)
        finally:
            watch.close()
            self._end_workers(grace_s=0.0)
            self._ordered = self._started = None
            log.close()
            relay.close()
            link.close()
            context.term()

    def _is_over(self, attempt: int) -> bool:
        """Its master listens no more, though its address is still there."""
        return self.run.is_closed(attempt) or self.run.newest_attempt_of(self.at.submission) != attempt

    def _obey(
        self, link: Link, log: EventLog, master: MasterAddress, watch: Watch, for_workers: str
    ) -> ExitCode | Disconnected:
        """`for_workers` is where they reach the master, by the relay."""
        poller = zmq.Poller()
        for source in (link.socket, self.zygote.fileno(), self.housekeeper.fileno(), self.signals.fileno()):
            poller.register(source, zmq.POLLIN)
        heard, next_beat, met, clock = time.monotonic(), 0.0, False, NodeClock()
        while time.monotonic() - heard < self.experiment.cluster.lost_after_s:
            if time.monotonic() >= next_beat:
                doing = Doing("drain", "draining") if self.signals.caught else Doing("idle", self.zygote.doing)
                link.send(Beat(doing, self.zygote.work, time.monotonic()))
                next_beat = time.monotonic() + self.experiment.cluster.heartbeat_s
                if not met and self._is_over(master.attempt):
                    return "silent"
            poller.poll(min(TICK_MS, max(1, int(1000 * (next_beat - time.monotonic())))))
            for envelope, _raw in link.receive():
                heard, met = time.monotonic(), True
                self._has_met = True
                self._heard = heard
                if link.incoming.lost_from:
                    log.write(MessageLost(link.incoming.lost_from[0]))
                    return "message lost"
                if isinstance(envelope.body, Finish):
                    log.write(FinishHeard(envelope.body.exit_code))
                    self.starter.servers.close()  # who waits for one does not hear that it is to leave
                    self.housekeeper.dismiss()
                    self._end_workers(LEAVE_S)
                    return ExitCode(envelope.body.exit_code)
                if isinstance(envelope.body, Beat) and envelope.body.heard is not None:
                    for told in clock.answered(envelope.body.heard, heard, time.time()):
                        log.write(told)
                self._heed(envelope.body, link, log, watch)
            try:
                self._report_exits(link, log)
            except EOFError:
                link.send(NodeDraining(self.at.node, self.zygote.how_it_died))
                return ExitCode.REQUEUE
            for report in self.housekeeper.reports():
                link.send(report)
            self._start_ordered(link, log, for_workers)
            self._report_draining(link)
        log.write(MasterLost(self.experiment.cluster.lost_after_s))
        return "silent"

    def _heed(self, body: Message, link: Link, log: EventLog, watch: Watch) -> None:
        """Do what the master says, short of leaving it."""
        match body:
            case AreYouThere():
                link.send(Here(body.attempt))
            case StartWorkers():
                self._ordered = body
                watch.write_into(self.run.node_resources(body.attempt, self.at.node))
                self._kill_all()
            case KeepStep() | RemoveParts():
                self.housekeeper.order(body)
            case ShowStacks():
                self._show_stacks(body, log)
            case WorkersConnected():
                self.zygote.is_watched = False
                watch.wake()

    def _kill_all(self) -> None:
        self.housekeeper.dismiss()
        self.zygote.kill_all()

    def _show_stacks(self, order: ShowStacks, log: EventLog) -> None:
        """On a thread: who is asked may take its time to answer, and this one beats."""
        pids = {it.rank: pid for pid, it in self.zygote.alive.items() if it.attempt == order.attempt}
        paths = {rank: self.run.stacks(order.attempt, f"worker-{rank}") for rank in order.ranks if rank in pids}
        log.write(StacksShown(order.attempt, {rank: self.run.files.name(path) for rank, path in paths.items()}))

        def show() -> None:
            for rank, path in paths.items():
                ask(pids[rank], f"worker-{rank}", path, order.why)

        threading.Thread(target=show, name="stacks", daemon=True).start()

    def _report_exits(self, link: Link, log: EventLog) -> None:
        """Tell of workers of the current order that ended by themselves; those that were killed on order are silent."""
        for exited in self.zygote.exits():
            attempt, rank, ended = exited.worker.attempt, exited.worker.rank, exited.ended
            if rank is None:
                if (failed := self.housekeeper.ended(exited)) is not None:
                    link.send(failed)
                continue
            current = self._started is not None and attempt == self._started.attempt
            ordered = not current or self._ordered is not None
            name = self.run.files.name(self.run.worker_log(attempt, f"worker-{rank}").with_suffix(".err"))
            at = ended.exit_code, ended.signal, ended.out_of_memory
            log.write(WorkerEnded(rank, attempt, ended.how, name, *at, ordered=ordered))
            if not ordered:
                said = last_lines(self.run.root / name, LAST_BYTES)[0][-1:] if ended.exit_code else []
                how = plain(": ".join([ended.how, *said]))
                link.send(WorkerExited(attempt, rank, how, ended.exit_code, name, ended.signal, ended.out_of_memory))

    def _start_ordered(self, link: Link, log: EventLog, master: str) -> None:
        """Fork the ordered workers as soon as the last of the old ones is dead."""
        if self._ordered is None or self.zygote.alive:
            return
        order, self._ordered = self._ordered, None
        self._started = order
        try:
            self.starter.start(order, log, master)
        except OSError as error:
            path = self.run.worker_log(order.attempt, f"agent-{self.at.node}")
            how = plain(f"what makes its responses cannot be started: {error}")
            code = int(ExitCode.CONFIGURATION)
            link.send(WorkerExited(order.attempt, order.ranks[0], how, code, self.run.files.name(path)))

    def _report_draining(self, link: Link) -> None:
        self.signals.quiet()
        if self.signals.caught and not self._told_draining:
            self._told_draining = True
            link.send(NodeDraining(self.at.node, f"got {self.signals.caught}"))

    def _end_workers(self, grace_s: float) -> None:
        """Give workers that were told to finish some time, then kill what is left."""
        deadline = time.monotonic() + grace_s
        while time.monotonic() < deadline and self._workers_alive():
            time.sleep(0.01)
        self._kill_all()
        deadline = time.monotonic() + LEAVE_S
        while time.monotonic() < deadline and self._workers_alive():
            time.sleep(0.005)

    def _workers_alive(self) -> bool:
        try:
            self.zygote.exits()
        except (EOFError, HpcrlError):
            return False
        return bool(self.zygote.alive)
