"""The agent of a node: forks and reaps this node's workers, beats to the master, and outlives both.

Owns the zygote and with it every worker process of its node. Knows nothing of calls, models or the graph. A worker is
never repaired: when membership changes, all workers of the node are killed and forked anew from the warm zygote.
"""

import os
import secrets
import socket
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import zmq

from hpcrl.config.experiment import ExperimentConfig, from_dict
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ExitCode, HpcrlError
from hpcrl.launch.zygote import Seat, Zygote
from hpcrl.logs import EventLog
from hpcrl.nameresolve.base import NameEntryExistsError, NameTimeoutError
from hpcrl.nameresolve.filesystem import FilesystemStore
from hpcrl.nameresolve.rendezvous import NodeRecord, Roster, announce, wait_roster
from hpcrl.placement.plan import plan_from_json
from hpcrl.workers.channel import Link, RunKey
from hpcrl.workers.messages import (
    AgentHello,
    Beat,
    Finish,
    NodeDraining,
    StartWorkers,
    WorkerExited,
)
from hpcrl.workers.model_worker import ModelWorker, WorkerSeat
from hpcrl.workers.signals import Signals

LEAVE_S = 10.0
ROSTER_POLL_S = 2.0
TICK_MS = 200


def run_agent(run_dir: Path, node: int, submission: str, fault: Callable[[str], None]) -> ExitCode:
    """The agent's process, from its first line to its exit code. Starts its zygote before it owns a thread."""
    run = RunDirectory(run_dir)
    experiment = from_dict(run.read_run().experiment)
    host_module = run.read_run().host.partition(":")[0]
    zygote = Zygote((host_module,), lambda seat: _run_worker(seat, fault))
    signals = Signals()
    try:
        return Agent(run, experiment, node, submission, zygote, signals, fault).serve_run()
    finally:
        zygote.close()
        signals.close()


def _run_worker(seat: Seat, fault: Callable[[str], None]) -> int:
    """In the forked worker."""
    run = RunDirectory(Path(seat["run_dir"]))
    plan = plan_from_json(run.plan(seat["attempt"]).read_bytes())
    experiment = from_dict(plan.experiment)
    at = WorkerSeat(
        run_dir=run.root,
        attempt=seat["attempt"],
        rank=seat["rank"],
        master=seat["master"],
        plan=plan,
        device=device_of(experiment, seat["slot"]),
        pid=os.getpid(),
    )
    fault(f"as worker-{seat['rank']}")
    try:
        return int(ModelWorker(at, fault).run())
    except HpcrlError as error:
        traceback.print_exc()
        return int(error.exit_code)


def device_of(experiment: ExperimentConfig, slot: int) -> str:
    """`cpu`, or this slot's GPU where the configuration or (auto) the node says that there is one."""
    wanted = experiment.cluster.device
    has_gpu = Path(f"/dev/nvidia{slot}").exists()
    return f"cuda:{slot}" if wanted == "cuda" or (wanted == "auto" and has_gpu) else "cpu"


@dataclass
class Agent:
    """One node's agent for as long as its submission lives."""

    run: RunDirectory
    experiment: ExperimentConfig
    node: int
    submission: str
    zygote: Zygote
    signals: Signals
    fault: Callable[[str], None]
    _announced: set[int] = field(default_factory=set)
    _ordered: StartWorkers | None = None
    _started: StartWorkers | None = None
    _told_draining: bool = False

    def serve_run(self) -> ExitCode:
        """Join the master of this submission, again after each loss, until it says how the run ended."""
        self.fault("agent.start")
        patience_s = self.experiment.cluster.start_timeout_s
        while True:
            roster = self._join(patience_s)
            if roster is None:
                return ExitCode.REQUEUE
            code = self._serve(roster)
            if code is not None:
                return code
            patience_s = self.experiment.cluster.orphan_timeout_s

    # ── finding the master ────────────────────────────────────────────────────────────────────────────────────────────
    def _join(self, patience_s: float) -> Roster | None:
        """The roster of this submission's newest attempt; None after `patience_s` or when told to go."""
        deadline = time.monotonic() + patience_s
        pause_s = 0.02
        while time.monotonic() < deadline and not self.signals.caught:
            attempt = self.run.newest_attempt_of(self.submission)
            if attempt is not None and not self.run.is_closed(attempt):
                roster = self._ask_in(attempt, min(ROSTER_POLL_S, deadline - time.monotonic()))
                if roster is not None:
                    return roster
            time.sleep(pause_s)
            pause_s = min(1.0, pause_s * 1.5)
        return None

    def _ask_in(self, attempt: int, timeout_s: float) -> Roster | None:
        """Announce this node in an attempt (once) and wait a while for its roster."""
        store = FilesystemStore(self.run.rendezvous(attempt))
        if attempt not in self._announced:
            slots = self.experiment.cluster.workers_per_node
            record = NodeRecord(self.node, socket.gethostname(), slots, self.submission, os.getpid())
            try:
                announce(store, record)
            except NameEntryExistsError:
                return None
            self._announced.add(attempt)
        try:
            roster = wait_roster(store, max(0.1, timeout_s), self.experiment.cluster.nodes)
        except NameTimeoutError:
            return None
        return roster if any(record.pid == os.getpid() for record in roster.nodes) else None

    # ── serving one master ────────────────────────────────────────────────────────────────────────────────────────────
    def _serve(self, roster: Roster) -> ExitCode | None:
        """Obey one master until it finishes the run (its exit code) or falls silent (None)."""
        context = zmq.Context(io_threads=1)
        key = self.run.read_key()
        run_key = RunKey(key.public.encode(), key.secret.encode())
        # A name of its own for every connection: the hub takes what comes again under an old one for a replay.
        name = f"agent-{self.node}.{os.getpid()}.{secrets.token_hex(4)}"
        link = Link(context, run_key, name, roster.master_address)
        log = EventLog(self.run.worker_log(roster.attempt, f"agent-{self.node}"))
        log.event("connected", master=roster.master_address)
        try:
            slots = self.experiment.cluster.workers_per_node
            link.send(AgentHello(self.node, socket.gethostname(), slots, os.getpid()))
            return self._obey(link, log, roster.master_address)
        finally:
            self._end_workers(grace_s=0.0)
            self._ordered = self._started = None
            log.close()
            link.close()
            context.term()

    def _obey(self, link: Link, log: EventLog, master: str) -> ExitCode | None:
        poller = zmq.Poller()
        for source in (link.socket, self.zygote.fileno(), self.signals.fileno()):
            poller.register(source, zmq.POLLIN)
        heard, next_beat = time.monotonic(), 0.0
        while time.monotonic() - heard < self.experiment.cluster.lost_after_s:
            if time.monotonic() >= next_beat:
                link.send(Beat("draining" if self.signals.caught else f"{len(self.zygote.alive)} workers"))
                next_beat = time.monotonic() + self.experiment.cluster.heartbeat_s
            poller.poll(min(TICK_MS, max(1, int(1000 * (next_beat - time.monotonic())))))
            for envelope, _raw in link.receive():
                heard = time.monotonic()
                if link.incoming.lost_from:
                    log.event("message lost", sender=link.incoming.lost_from[0])
                    return None
                if isinstance(envelope.body, Finish):
                    log.event("finish", exit_code=envelope.body.exit_code)
                    self._end_workers(LEAVE_S)
                    return ExitCode(envelope.body.exit_code)
                if isinstance(envelope.body, StartWorkers):
                    self._ordered = envelope.body
                    self.zygote.kill_all()
            try:
                self._report_exits(link, log)
            except EOFError:
                link.send(NodeDraining(self.node, "the parent of its workers died"))
                return ExitCode.REQUEUE
            self._start_ordered(log, master)
            self._report_draining(link)
        log.event("master lost", silent_s=self.experiment.cluster.lost_after_s)
        return None

    def _report_exits(self, link: Link, log: EventLog) -> None:
        """Tell of workers of the current order that ended by themselves; those that were killed on order are silent."""
        for exited in self.zygote.exits():
            log.event("worker ended", rank=exited.rank, attempt=exited.attempt, how=exited.how)
            current = self._started is not None and exited.attempt == self._started.attempt
            if current and self._ordered is None:
                path = self.run.worker_log(exited.attempt, f"worker-{exited.rank}").with_suffix(".err")
                log_name = self.run.files.name(path)
                link.send(WorkerExited(exited.attempt, exited.rank, exited.how, exited.exit_code, log_name))

    def _start_ordered(self, log: EventLog, master: str) -> None:
        """Fork the ordered workers as soon as the last of the old ones is dead."""
        if self._ordered is None or self.zygote.alive:
            return
        order, self._ordered = self._ordered, None
        self._started = order
        plan = plan_from_json(self.run.plan(order.attempt).read_bytes())
        slots = {worker.rank: worker.slot for worker in plan.workers}
        for rank in order.ranks:
            path = self.run.worker_log(order.attempt, f"worker-{rank}")
            seat = {
                "run_dir": str(self.run.root),
                "attempt": order.attempt,
                "rank": rank,
                "slot": slots[rank],
                "master": master,
                "out": str(path.with_suffix(".out")),
                "err": str(path.with_suffix(".err")),
            }
            self.zygote.fork(seat)
        log.event("forked", attempt=order.attempt, ranks=list(order.ranks))

    def _report_draining(self, link: Link) -> None:
        self.signals.quiet()
        if self.signals.caught and not self._told_draining:
            self._told_draining = True
            link.send(NodeDraining(self.node, f"got {self.signals.caught}"))

    def _end_workers(self, grace_s: float) -> None:
        """Give workers that were told to finish some time, then kill what is left."""
        deadline = time.monotonic() + grace_s
        while time.monotonic() < deadline and self._workers_alive():
            time.sleep(0.01)
        self.zygote.kill_all()
        deadline = time.monotonic() + LEAVE_S
        while time.monotonic() < deadline and self._workers_alive():
            time.sleep(0.005)

    def _workers_alive(self) -> bool:
        try:
            self.zygote.exits()
        except EOFError:
            return False
        return bool(self.zygote.alive)
