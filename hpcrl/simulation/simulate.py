"""A run on a virtual clock: the master's own code, with workers that take the time that a table says.

`simulate` has one attempt after another until the run has ended. What is real: plan, order of calls, journal lines,
recovery, the judge, the waiting for nodes. What is not: arithmetic, rows, files, beats of those who live.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from typing import Any, Literal

from hpcrl.config.changes import RunSettings
from hpcrl.dataflow.graph import Graph, changes
from hpcrl.durable.journal import Broken, Closed, Event, Stopped, Trained
from hpcrl.errors import ConfigurationError, ExitCode
from hpcrl.events import AttemptEnded
from hpcrl.garbage import uncollected
from hpcrl.master.allocation import EVERYTHING, Absence, AllocationWatch
from hpcrl.master.attempt import Attempt
from hpcrl.master.ending import Ending
from hpcrl.master.growth import Growth
from hpcrl.master.master import CONTINUES, FRUITLESS_ATTEMPTS
from hpcrl.master.members import Members
from hpcrl.master.node_wait import NodeWait
from hpcrl.master.reactor import Reactor
from hpcrl.master.schedule import RunSchedule
from hpcrl.placement.plan import Plan, plan_for
from hpcrl.recipes.algorithm import algorithm_of
from hpcrl.simulation.clock import SECOND_NS, VirtualClock
from hpcrl.simulation.cluster import Cluster
from hpcrl.simulation.disturbances import Disturbances
from hpcrl.simulation.durations import Durations
from hpcrl.simulation.records import EPOCH, Kept, SimulatedMeetingPoint, SimulatedRecords
from hpcrl.simulation.rows import Rows
from hpcrl.simulation.worker import World
from hpcrl.wire.messages import StartWorkers

FUTILE = 4
"""How often a run may be queued again without having finished anything, while all of its nodes could come."""
MANY = 1000
"""The same while it waits for a node that comes later."""
NEVER_S = 1e9
"""Nobody beats: whoever lives counts as heard."""
UNDISTURBED = Disturbances()


@dataclass(frozen=True)
class Simulated:
    """What became of a run. Times are seconds since it was submitted."""

    attempts: tuple[SimulatedRecords, ...]
    endings: tuple[Ending, ...]
    ended_s: tuple[float, ...]
    orders: tuple[Mapping[int, list[tuple[int, str, int]]], ...]
    """Attempt → worker → step, call and part of what it executed, in that order."""
    events: tuple[Event, ...]
    """The journal; of steps before the oldest checkpoint, closing lines alone."""
    durations: Mapping[int, Durations]
    """Attempt → what its plan made everything last."""
    unfelt: tuple[str, ...]
    """Of disturbances that disturbed nothing, why, in sentences."""
    graph: Graph
    """Of each step's calls."""

    @property
    def ending(self) -> Ending:
        return self.endings[-1]

    @property
    def seconds(self) -> float:
        return self.ended_s[-1]


def simulate(
    experiment: Any,
    durations: Callable[[Plan], Durations],
    rows: Rows,
    disturbances: Disturbances = UNDISTURBED,
    *,
    replaces_nodes: bool = True,
    seed: int = 0,
) -> Simulated:
    """A run of an experiment to its end. `durations` are those under a plan; each attempt makes its own.

    `replaces_nodes`: whether others come in the place of nodes while the rest stays. Of a range of nodes all are asked
    for, and each has its place. The answer follows from what is given alone. Raises ConfigurationError where a
    disturbance is of no node, worker or step of the run, and what the master's code raises.
    """
    cluster, plan = experiment.cluster, plan_for(experiment)
    disturbances.refuse_unknown(cluster.most_nodes, len(plan.workers), experiment.control.steps)
    with uncollected():
        return _Run(experiment, durations, rows, disturbances, replaces_nodes).to_the_end(seed)


class Inline(Executor):
    """Does at once what is asked for, in no time."""

    def submit(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(work(*args, **kwargs))
        except Exception as error:
            done.set_exception(error)
        return done


class Unasked:
    """No signal comes, and no user. Fulfils `Caught` and `Commands` of `hpcrl.master.reactor`."""

    caught = ""
    paused = False
    stop: Literal[""] = ""

    def quiet(self) -> None:
        """There is none."""

    def poll(self, attempt: int | None, note: Callable[[Any], None]) -> None:
        """There are none."""


@dataclass
class SimulatedMembers(Members):
    """Beats are not sent: whoever is not among the `silent` was heard just now."""

    silent: set[bytes] | None = None

    def find_silent(self) -> dict[int, str]:
        if not self.silent:
            return {}
        now = self.clock()
        for member in self.everybody:
            if member.identity not in self.silent:
                member.heard = now
        return super().find_silent()

    def forgive(self, slept_s: float) -> None:
        """A simulated master does not sleep."""


@dataclass(frozen=True)
class SimulatedAllocation:
    """Of jobs that run for so long; where they replace nodes, who is missing is queued. Fulfils
    `hpcrl.master.allocation.Allocation`."""

    end_s: float | None
    replaces_nodes: bool

    def ends(self) -> Mapping[int, float]:
        return {} if self.end_s is None else {EVERYTHING: EPOCH + self.end_s}

    def replace_missing(self, missing: Mapping[int, tuple[int, int] | None]) -> Mapping[int, Absence]:
        return {node: Absence("queued", "waits for its turn") for node in missing} if self.replaces_nodes else {}

    def release(self, nodes: Collection[int]) -> None:
        """Whoever still waits is nobody's."""


class _Run:
    """Until it has ended."""

    def __init__(
        self,
        experiment: Any,
        durations: Callable[[Plan], Durations],
        rows: Rows,
        disturbances: Disturbances,
        replaces_nodes: bool,
    ) -> None:
        self._experiment = experiment
        self._durations = durations
        self._rows = rows
        self._disturbances = disturbances
        self._replaces_nodes = replaces_nodes
        self._clock = VirtualClock()
        self._kept = Kept(experiment.control.keep_checkpoints, rows)
        self._cluster = Cluster(
            self._clock,
            experiment.cluster.most_nodes,
            experiment.cluster.workers_per_node,
            disturbances,
            together=not replaces_nodes,
        )
        self._changed_by = changes(algorithm_of(experiment).calls(experiment))
        self._attempts: list[SimulatedRecords] = []
        self._used: dict[int, Durations] = {}
        self._turns = self._futile = self._finished = 0
        """Turns in the queue since something was finished; those of them in which all nodes could come."""

    def to_the_end(self, seed: int) -> Simulated:
        endings: list[Ending] = []
        ended: list[float] = []
        schedule = RunSchedule(self._experiment.control, False, self._clock.seconds)
        self._cluster.begin(seed)
        self._clock.go_to(round(self._disturbances.queue_s * SECOND_NS))
        while not endings or endings[-1].exit_code == ExitCode.REQUEUE:
            awaited_ns = self._cluster.all_due_ns
            for ending in self._submission(schedule):
                endings.append(ending)
                ended.append(self._clock.seconds())
            if endings[-1].exit_code == ExitCode.REQUEUE:
                self._refuse_futile(endings[-1], self._clock.now_ns < awaited_ns)
                self._clock.go_to(self._cluster.requeue())
        events = tuple(self._kept.events)
        orders = tuple(self._cluster.orders)
        unfelt = tuple(self._cluster.unfelt())
        graph = algorithm_of(self._experiment).graph(self._experiment)
        return Simulated(tuple(self._attempts), tuple(endings), tuple(ended), orders, events, self._used, unfelt, graph)

    def _refuse_futile(self, ending: Ending, awaits: bool) -> None:
        """Nobody waits for ever for a run that is queued again and again, and finishes nothing. `awaits`: a node that
        was missing from the beginning had not come yet."""
        if self._kept.finished > self._finished:
            self._turns = self._futile = 0
        self._turns, self._futile = self._turns + 1, self._futile + (not awaits)
        self._finished = self._kept.finished
        if self._futile >= FUTILE or self._turns >= MANY:
            raise ConfigurationError(
                [f"the run was queued {self._turns} times in a row and finished no call: {ending.reason}."],
                "Give a longer --wall-time, a shorter --replaced, or fewer disturbances.",
            )

    def _submission(self, schedule: RunSchedule) -> Iterator[Ending]:
        """The endings of one master's attempts, each as it ends."""
        clock, cluster = self._clock.seconds, self._experiment.cluster
        members = SimulatedMembers(cluster.most_nodes, cluster.lost_after_s, clock, lambda: EPOCH + clock())
        members.silent = self._cluster.silent
        unasked = Unasked()
        beatless = replace(cluster, heartbeat_s=NEVER_S)
        reactor = Reactor(self._cluster, members, unasked, unasked, beatless, clock, Inline())
        watch = AllocationWatch(self._allocation(), reactor.note, clock, lambda: EPOCH + clock(), Inline().submit)
        point = SimulatedMeetingPoint(self._kept)
        nodes = NodeWait(point, cluster, self._replaces_nodes, members, watch, clock)
        growth = Growth(self._experiment, reactor.in_background, clock, clock() - self._kept.grown_s)
        ending = None
        while ending is None or ending.state in CONTINUES:
            ending = self._attempt(reactor, watch, nodes, schedule, growth)
            yield ending

    def _allocation(self) -> SimulatedAllocation:
        wall_s = self._disturbances.wall_time_s
        return SimulatedAllocation(None if wall_s is None else self._clock.seconds() + wall_s, self._replaces_nodes)

    def _attempt(
        self, reactor: Reactor, watch: AllocationWatch, nodes: NodeWait, schedule: RunSchedule, growth: Growth
    ) -> Ending:
        kept, members = self._kept, reactor.members
        if kept.fruitless >= FRUITLESS_ATTEMPTS:
            reason = f"{FRUITLESS_ATTEMPTS} attempts in a row finished no call"
            return Ending("failed", ExitCode.NEVER_REQUEUE, reason)
        members.new_attempt()
        records = SimulatedRecords(
            len(self._attempts), kept, self._changed_by, self._clock, self._planned, self._cluster.opened
        )
        self._attempts.append(records)
        data: Future[Any] = Future()
        data.set_result(self._rows.data)
        settings, clock = RunSettings(self._experiment), self._clock.seconds
        broken = _broken_in(kept.events)
        attempt = Attempt(records, settings, data, schedule, reactor, watch, nodes, growth, clock, broken)
        before, kept.fruitless = len(kept.events), kept.fruitless + 1
        self._cluster.restless = lambda: _restless(members, self._cluster)
        reactor.listener = attempt
        ending = attempt.run()
        reactor.listener = None
        attempt.note(AttemptEnded(ending.state, ending.reason, int(ending.exit_code), ending.who, ending.asked))
        records.ended()
        self._count(ending, kept.events[before:])
        for node in members.agents:
            reactor.send_to_node(node, StartWorkers(records.number, (), over=True))
        return ending

    def _count(self, ending: Ending, events: list[Event]) -> None:
        """An attempt that ended in good order is not counted among those that finished nothing."""
        self._kept.fruitless -= bool(self._kept.fruitless) and any(isinstance(it, Stopped) for it in events)
        self._kept.failed_rendezvous += ending.state == "incomplete"

    def _planned(self, attempt: int, plan: Plan) -> int:
        durations = self._used[attempt] = self._durations(plan)
        world = World(attempt, plan, durations, self._rows, self._clock, self._cluster.say)
        self._cluster.start_attempt(world)
        return durations.append_ns


def _restless(members: Members, cluster: Cluster) -> bool:
    """Whether the master waits for what no message tells."""
    known = members.losses or members.failures or members.draining or members.missing
    return bool(known) or any(map(members.waits_for, cluster.silent))


def _broken_in(events: list[Event]) -> frozenset[Broken]:
    """What broke while everybody was alive, since anything was trained."""
    found: set[Broken] = set()
    for event in reversed(events):
        if isinstance(event, Trained | Closed):
            break
        if isinstance(event, Broken):
            found.add(event)
    return frozenset(found)
