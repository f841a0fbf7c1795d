"""The master: finds the agents, begins attempts, keeps the calls going, and says how the run ended.

Owns membership, the sockets and the verdict; `graph_driver` owns the order of calls and what is durable. An attempt
ends when the run is done, somebody is lost, code raised, or it was told to go; after a loss the next one begins here.
"""

import os
import socket
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import zmq

from hpcrl.config.cluster import Abilities
from hpcrl.config.experiment import from_dict
from hpcrl.durable.history import attempts_without_progress
from hpcrl.durable.journal import Stopped
from hpcrl.durable.records import Verdict
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ExitCode, HpcrlError, StoppedError
from hpcrl.events import (
    AgentConnected,
    AttemptBegun,
    AttemptEnded,
    CallFailed,
    Event,
    EventLog,
    NodeLeaving,
    RowsLeftOut,
    WorkerConnected,
    WorkerEnded,
    WorkersReady,
)
from hpcrl.master.allocation import Allocation, AllocationWatch
from hpcrl.master.attempt_files import AttemptFiles, SupersededError, begin_attempt, refuse_superseded
from hpcrl.master.control import Control
from hpcrl.master.ending import Ending
from hpcrl.master.graph_driver import GraphDriver
from hpcrl.master.judge import Situation, is_replaced, judge
from hpcrl.master.members import Members
from hpcrl.master.node_wait import NodeWait
from hpcrl.master.schedule import RunSchedule
from hpcrl.master.stepping import step_source
from hpcrl.master.surroundings import Surroundings
from hpcrl.placement.plan import Plan, make_plan
from hpcrl.processes import Signals
from hpcrl.recipes.algorithm import evaluates
from hpcrl.wire.channel import Gatekeeper, Hub, RunKey
from hpcrl.wire.messages import (
    AgentHello,
    Beat,
    Begin,
    ExportWritten,
    Failed,
    Finish,
    Message,
    NodeDraining,
    Reply,
    ShardWritten,
    Spilled,
    StartWorkers,
    Syn,
    WorkerExited,
    WorkerHello,
    WorkerReady,
)

TICK_MS = 50
QUICK_TICK_MS = 5
FRUITLESS_ATTEMPTS = 3
END_MARGIN_S = 10.0
"""How long before its allocation ends a call should be over, so that what it produced can be put on disk."""

Result = TypeVar("Result")


def run_master(
    run_dir: Path,
    submission: str,
    fault: Callable[[str], None],
    host: str,
    abilities: Abilities,
    allocation: Allocation | None = None,
) -> ExitCode:
    """The master's process, from its first line to its exit code."""
    signals = Signals()
    try:
        fault("master.start")
        return Master(RunDirectory(run_dir, fault), submission, signals, host, abilities, allocation).serve_run()
    finally:
        signals.close()


class Master:
    """One submission's master."""

    def __init__(
        self,
        run: RunDirectory,
        submission: str,
        signals: Signals,
        host: str,
        abilities: Abilities,
        allocation: Allocation | None = None,
    ) -> None:
        self._run = run
        self._submission = submission
        self._signals = signals
        self._experiment = from_dict(run.configuration(submission))
        self._cluster = self._experiment.cluster
        self._plan: Plan = make_plan(self._experiment, self._cluster.nodes)
        self._ranks = tuple(worker.rank for worker in self._plan.workers)
        keys = run.read_key()
        key = RunKey(keys.public.encode(), keys.secret.encode())
        self._context = zmq.Context(io_threads=1)
        self._gatekeeper = Gatekeeper(self._context, key)
        self._hub = Hub(self._context, key, f"master.{submission}.{os.getpid()}", host)
        self._members = Members(self._cluster.lost_after_s)
        self._control = Control(run, submission)
        self._poller = zmq.Poller()
        for source in (self._hub.socket, signals.fileno()):
            self._poller.register(source, zmq.POLLIN)
        self._calendar = RunSchedule(self._experiment.control, evaluates(self._experiment))
        self._source = step_source(self._plan, self._experiment, self._calendar)
        self._watch = AllocationWatch(allocation, self._note)
        self._replaces_nodes = abilities.replaces_nodes
        self._roll = NodeWait(run, submission, self._cluster, self._replaces_nodes, self._members, self._watch)
        self._attempt_number = -1
        self._last_attempt: int | None = None
        self._log: EventLog | None = None
        self._slow = ThreadPoolExecutor(1, thread_name_prefix="slow")
        self._last_loop = time.monotonic()
        self._next_beat = 0.0

    def serve_run(self) -> ExitCode:
        """Attempt after attempt until the run has ended; returns the exit code that the agents were told too."""
        over = self._is_over()
        if over is not None:
            return over
        while True:
            ending = self._guarded(self._next_attempt)
            if ending.state != "lost":
                return self._leave(ending)

    def _is_over(self) -> ExitCode | None:
        """A job can be started again although nobody needs it: the run is done, or this submission was stopped."""
        for number in self._run.numbers():
            verdict = self._run.read_verdict(number)
            claim = self._run.read_claim(number)
            ours = claim is not None and claim.submission == self._submission
            if verdict is not None and (verdict.state == "done" or (verdict.state == "stopped" and ours)):
                print(f"nothing to do: {verdict.state}: {verdict.reason}", flush=True)
                return ExitCode(verdict.exit_code)
        return None

    def _next_attempt(self) -> Ending:
        fruitless = self._while_beating(lambda: attempts_without_progress(self._run, self._submission))
        if fruitless >= FRUITLESS_ATTEMPTS:
            reason = f"{FRUITLESS_ATTEMPTS} attempts in a row finished no call; see `hpcrl logs {self._run.root}`"
            return Ending("failed", ExitCode.NEVER_REQUEUE, reason)
        self._members.new_attempt()
        control = self._experiment.control
        attempt = self._while_beating(
            lambda: begin_attempt(self._run, self._plan, self._submission, control.keep_checkpoints, control.compact)
        )
        self._attempt_number = self._last_attempt = attempt.number
        self._log = attempt.events
        ending = self._guarded(lambda: self._attempt(attempt))
        self._attempt_number, self._log = -1, None
        try:
            self._while_beating(attempt.close)
        except (HpcrlError, OSError) as error:
            # What ended the attempt came first, and says more than a disk that has been full since.
            print(f"attempt {attempt.number} was not closed: {error}", flush=True)
        if ending.state == "lost":
            self._idle(attempt.number)
        return ending

    def _idle(self, attempt: int) -> None:
        """End the workers of all nodes until the next attempt has everybody."""
        for agent in self._members.agents.values():
            self._hub.send(agent.identity, StartWorkers(attempt, ()))

    def _while_beating(self, work: Callable[[], Result]) -> Result:
        """On another thread, so that everybody hears from this process however long it takes to read what is there."""
        pending = self._slow.submit(work)
        while not pending.done():
            self._loop(None, QUICK_TICK_MS)
        return pending.result()

    def _guarded(self, work: Callable[[], Ending]) -> Ending:
        try:
            return work()
        except (SupersededError, StoppedError) as error:
            return Ending("superseded", ExitCode.NEVER_REQUEUE, str(error))
        except (HpcrlError, OSError) as error:
            # A newer attempt removes what is older: this one's errors are then only its way of noticing.
            if self._attempt_number >= 0 and self._run.superseded(self._attempt_number):
                return Ending("superseded", ExitCode.NEVER_REQUEUE, str(error))
            code = error.exit_code if isinstance(error, HpcrlError) else ExitCode.INTERNAL
            return Ending("failed", code, f"{type(error).__name__}: {error}")
        except Exception as error:
            reason = f"the master raised {type(error).__name__}: {error}"
            return Ending("failed", ExitCode.INTERNAL, reason, traceback="".join(traceback.format_exception(error)))

    def _leave(self, ending: Ending) -> ExitCode:
        """Write the verdict, tell everybody, close the sockets."""
        # Of two masters of one submission the agents belong to the other, and so does the newest attempt.
        replaced = ending.state == "superseded" and self._is_another_of_ours(self._run.newest_attempt())
        number = self._last_attempt if replaced else self._run.newest_attempt_of(self._submission)
        failure = ending.failure
        verdict = Verdict(
            attempt=-1 if number is None else number,
            state=ending.state,
            exit_code=int(ending.exit_code),
            reason=ending.reason,
            worker=None if failure is None else f"worker-{failure.rank}",
            call=None if failure is None else failure.what,
            traceback=ending.traceback if failure is None else failure.traceback,
            time=time.time(),
        )
        print(f"{ending.state}: {ending.reason}", flush=True)
        try:
            if number is not None and self._run.read_verdict(number) is None:
                self._run.publish_verdict(verdict)
        except (HpcrlError, OSError) as error:
            # On a full disk they are to hear it all the same.
            print(f"the verdict was not written: {error}", flush=True)
        if number is not None and (replaced or is_replaced(ending, self._situation())):
            self._idle(number)
        elif not replaced:
            for member in (*self._members.workers.values(), *self._members.agents.values()):
                self._hub.send(member.identity, Finish(int(ending.exit_code)))
        self._slow.shutdown(wait=False, cancel_futures=True)
        self._hub.socket.close(1000)
        self._context.term()
        return ending.exit_code

    def _is_another_of_ours(self, number: int | None) -> bool:
        """Whether another process of this submission has claimed the attempt: the master's job was queued again while
        this process lived on."""
        claim = None if number is None else self._run.read_claim(number)
        here = socket.gethostname(), os.getpid()
        return claim is not None and claim.submission == self._submission and (claim.host, claim.pid) != here

    # ── one attempt ───────────────────────────────────────────────────────────────────────────────────────────────────
    def _attempt(self, attempt: AttemptFiles) -> Ending:
        log = attempt.events
        recovered = attempt.recovery.describe()
        log.write(AttemptBegun(attempt.number, recovered, self._control.paused, self._source.steps))
        for notice in self._source.notices:
            log.write(RowsLeftOut(notice))
        ending = self._assemble(attempt)
        if ending is not None:
            return self._stopped(attempt, ending)
        ending = self._start_workers(attempt)
        if ending is not None:
            return ending
        hellos = dict(self._members.hellos)
        around = Surroundings(self._send, log.write, attempt.fault)
        driver = GraphDriver(attempt, self._plan, self._source, self._calendar, around, hellos)
        driver.dispatcher.paused = self._control.paused
        self._watch.ask_ends()
        while True:
            self._loop(driver)
            self._watch_the_end(driver)
            driver.advance()
            ending = self._ending(attempt, driver)
            if ending is not None:
                log.write(AttemptEnded(ending.state, ending.reason))
                return ending

    def _assemble(self, attempt: AttemptFiles) -> Ending | None:
        """Wait until every node has an agent that is connected to this master."""
        self._roll.begin(attempt.number, self._hub.address)
        while not self._roll.is_complete():
            # Who came and went meanwhile is missed by nobody: there was no worker yet.
            self._members.losses.clear()
            if ending := self._roll.given_up() or judge(self._situation()):
                return ending
            self._loop(None)
        self._members.losses.clear()
        return self._roll.unfit(self._plan.workers)

    def _watch_the_end(self, driver: GraphDriver) -> None:
        """Begin no call that cannot end before the allocation does; once none fits, go as if told to."""
        driver.pace.time_left_s = self._watch.time_left_s() - END_MARGIN_S
        if why := driver.out_of_time:
            for node in self._watch.first_to_go(END_MARGIN_S + self._cluster.slurm.signal_lead_s):
                self._members.draining[node] = f"its allocation ends soon, and {why}"

    def _start_workers(self, attempt: AttemptFiles) -> Ending | None:
        """Have the agents fork all workers, introduce them to each other, and wait until all roles are loaded."""
        deadline = time.monotonic() + self._cluster.start_timeout_s
        for node, agent in self._members.agents.items():
            ranks = tuple(worker.rank for worker in self._plan.workers if worker.node == node)
            self._hub.send(agent.identity, StartWorkers(attempt.number, ranks))
        introduced = False
        while not self._members.all_ready(self._ranks):
            self._loop(None)
            if ending := judge(self._situation()):
                return self._stopped(attempt, ending) if ending.asked else ending
            if not introduced and self._members.all_connected(self._ranks):
                hellos = [self._members.hellos[rank] for rank in self._ranks]
                begin = Begin(
                    tuple(hello.address for hello in hellos),
                    tuple(hello.prepared for hello in hellos),
                    attempt.checkpoint_shards(),
                )
                for rank in self._ranks:
                    self._send(rank, begin)
                introduced = True
            if time.monotonic() > deadline:
                late = [rank for rank in self._ranks if rank not in self._members.ready]
                reason = (
                    f"workers {late} were not ready within cluster.start_timeout_s = {self._cluster.start_timeout_s:g}"
                )
                return Ending("incomplete", ExitCode.REQUEUE, reason)
        attempt.events.write(WorkersReady(len(self._ranks)))
        return None

    def _ending(self, attempt: AttemptFiles, driver: GraphDriver) -> Ending | None:
        """How the attempt has ended, if it has; once it was told to go, calls in flight are what it still waits for."""
        driver.dispatcher.paused = self._control.paused
        ending = judge(self._situation(driver))
        if ending is None and self._situation().told_to_go:
            driver.dispatcher.drain()
            ending = judge(self._situation(driver))
        return self._stopped(attempt, ending) if ending is not None and ending.asked else ending

    def _situation(self, driver: GraphDriver | None = None) -> Situation:
        members, finished, at_work = self._members, "", False
        if driver is not None:
            grace_s = 0.0 if self._control.stop == "now" else self._cluster.grace_s
            finished = driver.why_finished if driver.finished else ""
            at_work = not driver.dispatcher.has_drained(grace_s)
        return Situation(
            now=members.clock(),
            nodes=self._cluster.nodes,
            replaces_nodes=self._replaces_nodes,
            losses=members.losses,
            failures=members.failures,
            draining=members.draining,
            signal=self._signals.caught,
            stop=self._control.stop,
            worker_log=self._worker_log,
            finished=finished,
            at_work=at_work,
        )

    def _worker_log(self, rank: int) -> str:
        return self._run.files.name(self._run.worker_log(self._attempt_number, f"worker-{rank}"))

    def _stopped(self, attempt: AttemptFiles, ending: Ending) -> Ending:
        """An attempt that was told to go, or began no work, has ended in good order."""
        attempt.append([Stopped(ending.reason)])
        for node in ending.leaving:
            self._release(node)
        return ending

    def _release(self, node: int) -> None:
        """Let a node go in good order."""
        theirs = [worker.rank for worker in self._plan.workers if worker.node == node]
        members = [self._members.workers.get(rank) for rank in theirs] + [self._members.agents.get(node)]
        for member in members:
            if member is not None:
                self._hub.send(member.identity, Finish(int(ExitCode.REQUEUE)))
        self._members.dismiss(node)

    # ── the loop ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def _loop(self, driver: GraphDriver | None, tick_ms: int = TICK_MS) -> None:
        """Beat, hear what came, notice who fell silent. Blocks for at most a tick."""
        self._beat()
        self._poller.poll(tick_ms)
        if time.monotonic() - self._last_loop > self._cluster.lost_after_s / 2:
            self._after_freeze()
        self._last_loop = time.monotonic()
        self._signals.quiet()
        for identity, envelope, _raw in self._hub.receive():
            self._hear(identity, envelope.body, driver)
        while self._hub.incoming.lost_from:
            self._members.missed(self._hub.incoming.lost_from.pop())
        self._members.find_silent()
        self._control.poll(self._attempt_number if self._attempt_number >= 0 else None, self._note)

    def _after_freeze(self) -> None:
        """This process slept: nobody is to be blamed for the silence, and somebody may have taken the run over."""
        for member in (*self._members.agents.values(), *self._members.workers.values()):
            member.heard = time.monotonic()

    def _note(self, event: Event) -> None:
        """In the events of the attempt, while there is one."""
        if self._log is not None:
            self._log.write(event)

    def _hear(self, identity: bytes, body: Message, driver: GraphDriver | None) -> None:
        self._members.heard(identity, body.doing if isinstance(body, Beat) else None)
        match body:
            case Syn() | Reply() | Spilled() | ShardWritten() | ExportWritten() if driver is not None:
                if self._members.is_current(identity):
                    driver.hear(body)
            case WorkerHello() if body.attempt == self._attempt_number:
                self._members.worker(identity, body)
                self._note(WorkerConnected(body.rank, body.pid))
            case WorkerReady() if self._members.is_current(identity):
                self._members.ready.add(body.rank)
            case AgentHello():
                self._welcome(identity, body)
            case WorkerExited() if body.attempt == self._attempt_number:
                self._members.exited(body)
                self._note(WorkerEnded(body.rank, body.attempt, body.how, body.log))
            case Failed() if self._members.is_current(identity):
                self._members.failed(body)
                self._note(CallFailed(body.rank, body.what, body.error, body.traceback))
            case NodeDraining() if self._members.is_agent(identity, body.node):
                self._members.draining[body.node] = body.why
                self._note(NodeLeaving(body.node, body.why))

    def _welcome(self, identity: bytes, hello: AgentHello) -> None:
        surplus = self._members.agent(identity, hello) if hello.node < self._cluster.nodes else identity
        self._note(AgentConnected(hello.node, hello.host, hello.pid, welcome=surplus != identity))
        if surplus is not None:
            self._hub.send(surplus, Finish(int(ExitCode.NEVER_REQUEUE)))

    def _beat(self) -> None:
        if time.monotonic() < self._next_beat:
            return
        self._next_beat = time.monotonic() + self._cluster.heartbeat_s
        if self._attempt_number >= 0:
            refuse_superseded(self._run, self._attempt_number)
        for member in (*self._members.agents.values(), *self._members.workers.values()):
            self._hub.send(member.identity, Beat())

    def _send(self, rank: int, body: Message) -> None:
        self._hub.send(self._members.workers[rank].identity, body)
