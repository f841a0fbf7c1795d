"""One attempt: from its files, over its nodes, its plan and its workers, to its ending.

Alone decides nothing about the end: `judge` does, by what this class gathers. The order of calls is the driver's.
"""

import math
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future
from typing import Any

import msgspec

from hpcrl.config.changes import RunSettings
from hpcrl.config.cluster import ClusterConfig
from hpcrl.data.inputs import input_files
from hpcrl.durable.journal import Broken, Stopped
from hpcrl.durable.once import SetAside
from hpcrl.errors import ExitCode
from hpcrl.events import AttemptBegun, AttemptEnded, Event, WorkerEnded, WorkersReady
from hpcrl.master.allocation import EVERYTHING, AllocationWatch
from hpcrl.master.attempt_records import AttemptRecords
from hpcrl.master.chores import Agents
from hpcrl.master.divergence import ScriptChanged, ScriptDiverged, by_a_change
from hpcrl.master.driver import Driver
from hpcrl.master.ending import Ending
from hpcrl.master.graph_driver import GraphDriver
from hpcrl.master.growth import Growth, Joining
from hpcrl.master.judge import Situation, judge
from hpcrl.master.members import Members
from hpcrl.master.node_wait import NodeWait
from hpcrl.master.numerics import Computing, devices, expected_memory
from hpcrl.master.reactor import QUICK_TICK_MS, TICK_MS, Reactor, Report
from hpcrl.master.schedule import RunSchedule
from hpcrl.master.script_driver import ScriptDriver
from hpcrl.master.stalls import Stalls
from hpcrl.master.stepping import RunData, StepSource
from hpcrl.master.surroundings import Surroundings
from hpcrl.placement.plan import Plan, plan_under
from hpcrl.progress import Progress
from hpcrl.recipes.algorithm import algorithm_of
from hpcrl.whereabouts import Doing, culprits_of
from hpcrl.wire.chores import ChoreReport
from hpcrl.wire.messages import Begin, Finish, ShowStacks, StartWorkers, WorkersConnected

END_MARGIN_S = 10.0
"""How long before its allocation ends a call should be over, so that what it produced can be put on disk."""


class Attempt:
    """Run once. Its plan is made when its nodes are there, and says from then on how many they are.

    `broken_before` is what broke in attempts before this one while everybody was alive.
    """

    def __init__(
        self,
        files: AttemptRecords,
        settings: RunSettings,
        data: Future[RunData[Any]],
        schedule: RunSchedule,
        reactor: Reactor,
        watch: AllocationWatch,
        nodes: NodeWait,
        growth: Growth,
        clock: Callable[[], float] = time.monotonic,
        broken_before: Collection[Broken] = (),
        driver: type[GraphDriver] | type[ScriptDriver] = GraphDriver,
    ) -> None:
        self._files = files
        self._settings = settings
        self._data = data
        self._schedule = schedule
        self._reactor = reactor
        self._watch = watch
        self._nodes = nodes
        self._broken_before = broken_before
        self._clock = clock
        self._plan: Plan | None = None
        self._kind = driver
        self._driver: Driver | None = None
        self._stalls = Stalls(self._cluster.stalled_after_s, clock)
        self._growth = growth
        self._joining = Joining(growth, reactor, self.note)

    # ── what the reactor tells ────────────────────────────────────────────────────────────────────────────────────────
    @property
    def number(self) -> int:
        return self._files.number

    @property
    def _members(self) -> Members:
        return self._reactor.members

    @property
    def _cluster(self) -> ClusterConfig:
        cluster: ClusterConfig = self._settings.newest.cluster
        return cluster

    def note(self, event: Event) -> None:
        self._files.note(self._located(event))

    def follow(self, progress: Progress) -> None:
        """What happens to calls: it is added up."""
        self._files.follow(progress)
        self._growth.follow(progress)
        if went_on := self._stalls.follow(progress):
            self.note(went_on)

    def _located(self, event: Event) -> Event:
        """An end with the unit that whoever ended had to execute."""
        if not isinstance(event, WorkerEnded | AttemptEnded) or self._driver is None or self._plan is None:
            return event
        who = f"worker-{event.rank}" if isinstance(event, WorkerEnded) else event.who
        kind, _, number = who.partition("-")
        ranks = self._plan.ranks_on(int(number)) if kind == "agent" else [int(number)] if kind == "worker" else []
        doing = self._doing()
        units = (self._driver.dispatcher.unit_of(rank, doing.get(rank, Doing())) for rank in ranks)
        unit = next((unit for unit in units if unit is not None), None)
        if unit is None:
            return event
        return msgspec.structs.replace(event, step=unit.step, call=unit.call, part=unit.part)

    def hear(self, report: Report) -> None:
        if self._driver is None:
            return
        try:
            self._driver.hear(report)
        except ScriptDiverged as error:
            assert self._plan is not None, "a script runs by it"
            found = by_a_change(error, self._files.recovery, self._settings.other_scripts, self._plan.units)
            if found is None:
                return
            if isinstance(found, ScriptChanged):
                in_order = () if self._settings.until_closed else (Stopped(str(found)),)
                self._files.append([*found.aside, *in_order])
            raise found from None

    def hear_agent(self, agent: bytes, report: ChoreReport) -> None:
        self._files.heard(agent, report)

    def refuse_superseded(self) -> None:
        self._files.refuse_superseded()

    # ── its course ────────────────────────────────────────────────────────────────────────────────────────────────────
    def run(self) -> Ending:
        self._reactor.while_beating(self._refuse_changed_inputs)
        data = self._reactor.beat_until(self._data)
        recovered = self._files.recovery.describe(self._settings.version)
        paused = self._reactor.commands.paused
        self.note(AttemptBegun(self.number, recovered, paused, data.steps(self._schedule)))
        for left_out in data.left_out:
            self.note(left_out)
        if ending := self._assemble():
            return self._stop(ending)
        plan = self._plan_here()
        if ending := self._nodes.unfit(plan.workers):
            return self._stop(ending)
        self._reactor.while_beating(lambda: self._begin(plan))
        self._plan = plan
        if ending := self._start_workers(plan):
            return self._stop(ending) if ending.asked else ending
        source = self._reactor.while_beating(lambda: self._source(plan, data))
        return self._work(plan, source, data.steps(self._schedule))

    def _plan_here(self) -> Plan:
        """That of the nodes that are there, which are the attempt's from now on."""
        seats = self._nodes.seats()
        self._members.seats = frozenset(seats)
        if changed := self._reactor.while_beating(lambda: self._nodes.changed(seats, self._files.recovery)):
            self.note(changed)
            self._growth.changed(changed)
        self._settings = self._settings.on(len(seats))
        return plan_under(self._settings, seats, self._files.inputs())

    def _begin(self, plan: Plan) -> None:
        self._files.publish_plan(plan)
        self._files.begin_archives(self._settings.newest, Agents(self._reactor))

    def _refuse_changed_inputs(self) -> None:
        """What the master reads; each worker compares what it reads itself."""
        experiment = self._settings.newest
        self._files.refuse_changed(input_files(experiment, algorithm_of(experiment).rows, roles=()))

    def _assemble(self) -> Ending | None:
        """Wait until every node has an agent that is connected to this master."""
        self._nodes.begin(self.number, self._reactor.address)
        while not self._nodes.is_complete():
            # Who came and went meanwhile is missed by nobody: there was no worker yet.
            self._members.losses.clear()
            if self._nodes.replaces_nodes:
                self._members.forget_gone()
            if ending := self._nodes.given_up() or self._judged():
                return ending
            self._reactor.turn()
        self._members.losses.clear()
        return None

    def _start_workers(self, plan: Plan) -> Ending | None:
        """Have the agents fork all workers, introduce them to each other, and wait until all roles are loaded."""
        limit_s, begun = self._cluster.start_timeout_s, self._clock()
        for node in self._seated:
            self._reactor.send_to_node(node, StartWorkers(self.number, plan.ranks_on(node)))
        ranks = [worker.rank for worker in plan.workers]
        introduced = False
        while not self._members.all_ready(ranks):
            self._reactor.turn()
            if ending := self._judged():
                return ending
            if not introduced and self._members.may_meet(ranks):
                self._introduce(ranks)
                introduced = True
            if self._clock() - max(begun, self._members.newest_progress(ranks)) > limit_s:
                why = f"no progress in starting within cluster.start_timeout_s = {limit_s:g}: {self._late(plan)}"
                return Ending("incomplete", ExitCode.REQUEUE, why)
        computing = Computing(self._members.hellos, self._members.ready)
        expected = self._reactor.while_beating(lambda: expected_memory(plan))
        self._growth.started(self._clock() - begun)
        self.note(WorkersReady(len(ranks), *devices(computing), expected))
        return None

    def _late(self, plan: Plan) -> str:
        """Who is not ready and waits for nobody, and what it does; of who is not there, what its agent does."""
        members = self._members
        agents = {node: f"not there (agent-{node}: {agent.doing})" for node, agent in members.agents.items()}
        doing = {rank: worker.doing or "starting" for rank, worker in members.workers.items()}
        late = [worker for worker in plan.workers if worker.rank not in members.ready]
        whom = culprits_of([worker.rank for worker in late], self._doing()).ranks
        late = [worker for worker in late if worker.rank in whom or worker.rank not in doing] or late
        return ", ".join(f"worker-{at.rank} is {doing.get(at.rank) or agents[at.node]}" for at in late)

    def _introduce(self, ranks: list[int]) -> None:
        hellos = [self._members.hellos[rank] for rank in ranks]
        addresses = tuple(hello.address for hello in hellos)
        prepared = tuple(hello.prepared for hello in hellos)
        begin = Begin(addresses, prepared, self._files.saved_roles())
        for rank in ranks:
            self._reactor.send(rank, begin)
        for node in self._seated:
            self._reactor.send_to_node(node, WorkersConnected())

    @property
    def _seated(self) -> list[int]:
        """The nodes of the attempt whose agents are there."""
        return [node for node in self._members.agents if not self._members.is_spare(node)]

    def _source(self, plan: Plan, data: RunData[Any]) -> StepSource:
        """Tokenises: for a thread that may be slow."""
        settings, beside = self._settings, self._reactor.in_background
        scripted = self._kind is ScriptDriver
        source = StepSource(plan, settings.newest, data, self._schedule, beside, settings.earlier, scripted)
        source.measure(self._files.recovery.opened)
        return source

    def _work(self, plan: Plan, source: StepSource, steps: int) -> Ending:
        """Drive the graph, or follow the script, until something ends it; once told to go, calls in flight are what is
        still waited for. `steps` is how many the run has."""
        files = self._files
        reactor = self._reactor
        around = Surroundings(reactor.send, self.note, self.follow, files.fault, self._clock, reactor.flush)
        computing = Computing(dict(self._members.hellos), dict(self._members.ready))
        driver = self._driver = self._reactor.while_beating(
            lambda: self._kind(self._files, plan, source, around, computing)
        )
        self._watch.ask_ends()
        files.watch(self._doing)
        while True:
            self._reactor.turn(QUICK_TICK_MS if driver.is_writing else TICK_MS)
            driver.dispatcher.paused = self._reactor.commands.paused
            driver.opens_steps = self._reactor.commands.stop != "finish" and not (
                self._joining.order or self._settings.until_closed
            )
            if self._nodes.is_elastic:
                self._look_beyond(driver, steps)
            self._watch_the_end(driver)
            self._tell_stalls()
            driver.advance()
            files.show()
            known = self.situation()
            ending = self._judged()
            if ending is None and known.told_to_go and not known.finishes:
                driver.dispatcher.drain()
                ending = self._judged()
            if ending is not None:
                return self._stop(ending) if ending.asked else self._set_aside_what_fails(ending, driver.pace.newest)

    def _set_aside_what_fails(self, ending: Ending, newest: int) -> Ending:
        """A script that was changed may fail where it only ends what it has begun: then the changed one begins anew."""
        assert self._plan is not None, "it has begun"
        failure, script = ending.failure, self._plan.workers[-1].rank
        if not self._settings.until_closed or failure is None or failure.rank != script:
            return ending
        aside = SetAside(max((newest, *self._files.recovery.closed)) + 1)
        self._files.append([aside])
        why = f"the script as it was fails in step {aside.step}, and what this had recorded is set aside"
        return Ending("changed", ExitCode.REQUEUE, f"{why}: {ending.reason}")

    def _look_beyond(self, driver: Driver, steps: int) -> None:
        """What becomes of nodes without a place, and of those that are missing."""
        self._nodes.poll()
        step_s, newest = driver.pace.step_s, driver.pace.newest
        left_s = math.inf if step_s is None else min(self._watch.time_left_s(), (steps - newest) * step_s)
        if not self.situation().told_to_go:
            self._joining.weigh(step_s, left_s, keeps_order=driver.lag > 0)

    def _watch_the_end(self, driver: Driver) -> None:
        """Begin no call that cannot end before the allocation does; once none fits, go as if told to."""
        driver.pace.time_left_s = self._watch.time_left_s() - END_MARGIN_S
        if why := driver.out_of_time:
            first = self._watch.first_to_go(END_MARGIN_S + self._cluster.slurm.signal_lead_s)
            for node in (node for node in first if node == EVERYTHING or not self._members.is_spare(node)):
                self._members.draining[node] = f"its allocation ends soon, and {why}"

    def _doing(self) -> dict[int, Doing]:
        """What each worker said last that it does."""
        return {rank: worker.doing for rank, worker in self._members.workers.items()}

    def _tell_stalls(self) -> None:
        """Of what takes too long, whom it waits for, and have these workers write where they are."""
        for found in self._stalls.found():
            doing = self._doing()
            whom = culprits_of(found.ranks, doing)
            said = {rank: str(doing[rank]) for rank in {*found.ranks, *whom.ranks} & doing.keys()}
            at = tuple(rank for rank in whom.ranks if doing[rank].unit == (found.step, found.call, found.part))
            self.note(msgspec.structs.replace(found, culprits=whom.ranks, why=whom.why, doing=said, executing=at))
            unit = f"{found.call} of step {found.step}, part {found.part}, for {found.seconds:.0f} s"
            for node in self._members.agents:
                if self._plan is not None and (here := said.keys() & set(self._plan.ranks_on(node))):
                    self._reactor.send_to_node(node, ShowStacks(self.number, tuple(sorted(here)), unit))

    # ── its end ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def _judged(self) -> Ending | None:
        """What the judge says. Where it wants to know who is alive, they are asked; what broke or is damaged is written
        down."""
        verdict = judge(self.situation())
        if verdict == "ask":
            self._reactor.ask(self.number, self._peers_of_the_broken())
            return None
        if verdict is not None and verdict.broken:
            self._files.append(verdict.broken)
        damaged = [failure.told.damaged for failure in self._members.failures if failure.told.damaged]
        if verdict is not None and damaged:
            self._files.damaged(damaged[0])
        return verdict

    def _peers_of_the_broken(self) -> set[int]:
        """The workers that may have broken what their peers told of; others may be busy with a user's code."""
        assert self._plan is not None, "workers know each other by a plan"
        told = [failure.told for failure in self._members.failures]
        return {peer for failed in told if failed.broken is not None for peer in self._plan.peers(failed.rank)}

    def situation(self) -> Situation:
        """What is known now."""
        members, commands, driver = self._members, self._reactor.commands, self._driver
        return Situation(
            now=members.clock(),
            nodes=members.nodes if self._plan is None else self._plan.nodes,
            replaces_nodes=self._nodes.replaces_nodes,
            losses=members.losses,
            failures=members.failures,
            draining=members.draining,
            signal=self._reactor.signals.caught,
            stop=commands.stop,
            worker_log=self._files.worker_log,
            roll_called=members.roll_called,
            all_answered=members.all_answered,
            broken_before=self._broken_before,
            finished=driver.why_finished if driver is not None and driver.finished else "",
            hands_over=None if driver is None else self._handing_over(),
            at_work=driver is not None and not self._is_at_rest(driver),
        )

    def _handing_over(self) -> Ending | None:
        """How the attempt ends that has work of its own, so that another one continues."""
        if self._settings.until_closed:
            return Ending("changed", ExitCode.REQUEUE, self._settings.until_closed, asked=True)
        order = self._joining.order
        return Ending("grown", ExitCode.REQUEUE, order, asked=True) if order else None

    def _is_at_rest(self, driver: Driver) -> bool:
        """Whether nothing is waited for any more; calls in flight have their time, open steps as long as they take."""
        grace_s = 0.0 if self._reactor.commands.stop == "now" else self._cluster.grace_s
        return driver.is_closed_up or (driver.dispatcher.has_drained(grace_s) and not driver.is_writing)

    def _stop(self, ending: Ending) -> Ending:
        """The attempt was told to go, or began no work: it ends in good order, and so do the nodes that leave."""
        self._files.append([Stopped(ending.reason)])
        if ending.state == "grown":
            self._growth.handed_over()
        for node in ending.leaving:
            if self._plan is not None:
                for rank in self._plan.ranks_on(node):
                    if rank in self._members.workers:
                        self._reactor.send(rank, Finish(int(ExitCode.REQUEUE)))
            if node in self._members.agents:
                self._reactor.send_to_node(node, Finish(int(ExitCode.REQUEUE)))
            self._members.dismiss(node)
        return ending
