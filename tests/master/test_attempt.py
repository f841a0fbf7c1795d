"""One attempt of a toy run, from its files to its ending, without sockets or processes: a script is the others."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.chaos import create_run, rows_of, toy_experiment
from support.made_parts import under_way_in

from hpcrl.config.changes import RunSettings
from hpcrl.costs import decode_live
from hpcrl.data.indexes import ScratchIndexes
from hpcrl.dataflow.graph import changes
from hpcrl.durable.history import read_history
from hpcrl.durable.journal import Stopped
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ExitCode
from hpcrl.events import AttemptBegun
from hpcrl.inspect.reader import RunReader
from hpcrl.master.allocation import AllocationWatch
from hpcrl.master.attempt import Attempt
from hpcrl.master.attempt_files import SupersededError, begin_attempt
from hpcrl.master.control import Control
from hpcrl.master.ending import Ending
from hpcrl.master.growth import Growth
from hpcrl.master.meeting_point import RunMeetingPoint
from hpcrl.master.members import Members
from hpcrl.master.node_wait import NodeWait
from hpcrl.master.reactor import Reactor
from hpcrl.master.schedule import RunSchedule
from hpcrl.master.stepping import open_data
from hpcrl.placement.plan import Plan, plan_for, plan_from_json, plan_under
from hpcrl.wire.messages import (
    AgentHello,
    AreYouThere,
    Beat,
    Begin,
    BrokenOperation,
    Failed,
    Finish,
    Message,
    NodeDraining,
    Request,
    StartWorkers,
    WorkerExited,
    WorkerHello,
    WorkerReady,
    WorkersConnected,
)

NODES, WORKERS = 2, 2
START_TIMEOUT_S = 3.0


@dataclass
class Script:
    """What the others say, turn by turn, and then from the first request on; else they only beat.

    A clock that runs a tick at a time.
    """

    says: list[list[tuple[bytes, Message]]]
    at_work: list[tuple[bytes, Message]] = field(default_factory=list)
    now: float = 0.0
    sent: list[tuple[bytes, Message]] = field(default_factory=list)
    address: str = "tcp://nowhere"
    caught: str = ""
    plan_seen: list[bool] = field(default_factory=list)
    run: RunDirectory | None = None

    def receive(self, timeout_ms: int, _gather_s: float) -> list[tuple[bytes, Message]]:
        self.now += timeout_ms / 1000
        if timeout_ms == 0:  # it only beats while something slow is done
            return []
        assert self.run is not None
        self.plan_seen.append(self.run.plan(0).exists())
        if self.orders(Request):
            said, self.at_work = self.at_work, []
            return said + [(name, Beat()) for name in everybody()]
        time.sleep(0.001)
        return self.says.pop(0) if self.says else [(name, Beat()) for name in everybody()]

    def take_lost(self) -> list[str]:
        return []

    def send(self, identity: bytes, body: Message) -> None:
        self.sent.append((identity, body))

    def flush(self) -> None:
        pass

    def quiet(self) -> None:
        pass

    def close(self) -> None:
        pass

    def orders(self, kind: type) -> list[tuple[bytes, Any]]:
        return [(identity, body) for identity, body in self.sent if isinstance(body, kind)]


def everybody() -> list[bytes]:
    return [b"agent%d" % node for node in range(NODES)] + [b"worker%d" % rank for rank in range(NODES * WORKERS)]


def agents(nodes: Iterable[int]) -> list[tuple[bytes, Message]]:
    return [(b"agent%d" % node, AgentHello(node, f"host{node}", WORKERS, 7 + node)) for node in nodes]


def workers(ranks: Iterable[int] = range(NODES * WORKERS)) -> list[tuple[bytes, Message]]:
    return [(b"worker%d" % rank, WorkerHello(0, rank, 100 + rank, f"tcp://{rank}", f"p{rank}")) for rank in ranks]


def ready(ranks: Iterable[int] = range(NODES * WORKERS)) -> list[tuple[bytes, Message]]:
    return [(b"worker%d" % rank, WorkerReady(rank, 0.5)) for rank in ranks]


ALL_CAME = [agents(range(NODES)), workers(), ready()]


@dataclass
class Stage:
    """A run of two nodes, and what became of its first attempt."""

    run: RunDirectory
    script: Script
    commands: Control
    attempt: Attempt

    def ends(self) -> Ending:
        return self.attempt.run()

    @property
    def stopped(self) -> list[str]:
        return [line.event.reason for line in read_history(self.run).lines if isinstance(line.event, Stopped)]


def stage(tmp_path: Path, says: list[list[tuple[bytes, Message]]], replaces_nodes: bool = True) -> Stage:
    experiment = toy_experiment(nodes=NODES, workers_per_node=WORKERS, start_timeout_s=START_TIMEOUT_S)
    run = create_run(tmp_path / "run", experiment)
    script = Script([list(said) for said in says], run=run)
    clock = lambda: script.now  # noqa: E731
    members = Members(NODES, experiment.cluster.lost_after_s, clock)
    commands = Control(run, "first", clock)
    reactor = Reactor(script, members, script, commands, experiment.cluster, clock)  # type: ignore[arg-type]
    watch = AllocationWatch(None, reactor.note, clock)
    nodes = NodeWait(RunMeetingPoint(run, "first"), experiment.cluster, replaces_nodes, members, watch, clock)
    schedule = RunSchedule(experiment.control, evaluates=True, clock=clock)
    files = begin_attempt(run, changes(plan_for(experiment, NODES).calls), "first", 2, compacts=False)
    data = reactor.in_background(lambda: open_data(experiment, ScratchIndexes()))
    growth = Growth(experiment, reactor.in_background, clock)
    attempt = Attempt(files, RunSettings(experiment), data, schedule, reactor, watch, nodes, growth, clock)
    reactor.listener = attempt
    return Stage(run, script, commands, attempt)


def test_an_attempt_that_is_told_to_go_before_all_nodes_are_there_waits_for_none_and_makes_no_plan(
    tmp_path: Path,
) -> None:
    at = stage(tmp_path, [agents([1]), [], agents([0]), workers(), ready()])
    at.commands.stop = "drain"
    assert at.ends().state == "stopped"
    assert len(at.script.says) == 5 and not at.run.plan(0).exists()
    assert at.stopped == ["asked to by `hpcrl stop` or Ctrl-C (drain)"]


def test_workers_are_started_by_a_plan_of_the_nodes_that_came_then_introduced_then_given_work(tmp_path: Path) -> None:
    at = stage(tmp_path, [agents([1]), [], agents([0]), workers(), ready()])
    at.script.at_work = [(b"agent0", WorkerExited(0, 1, "killed by SIGKILL", None, "logs/worker-1.err"))]
    ending = at.ends()
    assert at.script.plan_seen[:3] == [False] * 3 and all(at.script.plan_seen[3:])
    assert plan_from_json(at.run.plan(0).read_bytes()).nodes == NODES
    started = {identity: order.ranks for identity, order in at.script.orders(StartWorkers)}
    assert started == {b"agent0": (0, 1), b"agent1": (2, 3)}
    begun = dict(at.script.orders(Begin))
    assert begun.keys() == {b"worker%d" % rank for rank in range(4)}
    assert begun[b"worker0"].addresses == tuple(f"tcp://{rank}" for rank in range(4))
    kinds = [type(body) for _, body in at.script.sent if not isinstance(body, Beat)]
    assert list(dict.fromkeys(kinds)) == [StartWorkers, Begin, WorkersConnected, Request]
    assert {identity for identity, _ in at.script.orders(WorkersConnected)} == {b"agent0", b"agent1"}
    assert (ending.state, ending.reason) == ("lost", "worker-1: killed by SIGKILL (logs/worker-1.err)")
    assert at.stopped == [], "a loss is no end in good order"
    names = [row["event"] for row in rows_of(at.run.events(0))]
    assert names[0] == "attempt" and names.index("ready") < names.index("opened")
    assert [it.ranks for it in under_way_in(at.run)], "it was sent"
    assert "worker ended" in names and "ending" not in names, "how it is judged, the master notes"


def test_of_a_broken_collective_agents_and_peers_are_asked_and_no_worker_of_another_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_another_host(*arguments: Any) -> Plan:
        plan = plan_under(*arguments)
        last = msgspec.structs.replace(plan.workers[3], host="another:Host")
        return msgspec.structs.replace(plan, workers=(*plan.workers[:3], last))

    monkeypatch.setattr("hpcrl.master.attempt.plan_under", with_another_host)
    at = stage(tmp_path, ALL_CAME)
    broken = BrokenOperation((0, 1, 2), "sum", 1, 0)
    at.script.at_work = [(b"worker0", Failed(0, "step 1", "lost", "", int(ExitCode.REQUEUE), 1.0, broken))]
    assert "gave no sign of life" in at.ends().reason
    asked = [identity for identity, _ in at.script.orders(AreYouThere)]
    assert sorted(asked) == [b"agent0", b"agent1", b"worker0", b"worker1", b"worker2"]


def test_what_is_found_damaged_is_written_down_whatever_ends_the_attempt(tmp_path: Path) -> None:
    at = stage(tmp_path, ALL_CAME)
    written: list[str] = []
    at.attempt._files.damaged = written.append  # type: ignore[method-assign]
    told = Failed(0, "loading", "other bits", "", int(ExitCode.REQUEUE), 1.0, damaged="other bits")
    at.script.at_work = [(b"worker0", told), (b"agent1", WorkerExited(0, 3, "killed", None, "logs/worker-3.err"))]
    ending = at.ends()
    assert (ending.state, ending.exit_code) == ("lost", ExitCode.REQUEUE)
    assert written == ["other bits"]


def test_a_node_that_goes_is_let_go_with_its_workers_and_the_others_stay(tmp_path: Path) -> None:
    at = stage(tmp_path, ALL_CAME)
    at.script.at_work = [(b"agent1", NodeDraining(1, "got SIGTERM"))]
    ending = at.ends()
    assert (ending.state, ending.exit_code) == ("lost", ExitCode.REQUEUE)
    assert [identity for identity, _ in at.script.orders(Finish)] == [b"worker2", b"worker3", b"agent1"]
    assert at.stopped == ["node 1 is to go: got SIGTERM"]


def test_calls_in_flight_have_the_grace_to_end_and_a_user_who_wants_it_now_gives_none(tmp_path: Path) -> None:
    for stop, least_s, most_s in (("drain", 5.0, 5.5), ("now", 0.0, 0.5)):
        at = stage(tmp_path / stop, ALL_CAME)
        asked: list[float] = []

        def receive(tick_ms: int, gather_s: float, at: Stage = at, stop: Any = stop, asked: list[float] = asked) -> Any:
            if at.script.orders(Request) and not asked:
                asked.append(at.script.now)
                at.commands.stop = stop
            return Script.receive(at.script, tick_ms, gather_s)

        at.script.receive = receive  # type: ignore[method-assign]
        assert at.ends().state == "stopped"
        assert least_s <= at.script.now - asked[0] <= most_s
        assert at.stopped == [f"asked to by `hpcrl stop` or Ctrl-C ({stop})"]


def test_nodes_that_do_not_come_in_time_are_not_waited_for(tmp_path: Path) -> None:
    at = stage(tmp_path, [agents([0])])
    ending = at.ends()
    assert ending.state == "incomplete" and "1 of 2 nodes came within 3 s, missing: [1]" in ending.reason
    assert at.stopped == [ending.reason] and not at.run.plan(0).exists()


def test_workers_that_do_not_load_in_time_are_not_waited_for(tmp_path: Path) -> None:
    at = stage(tmp_path, [*ALL_CAME[:2], ready([0, 1, 3])])
    ending = at.ends()
    assert (ending.state, ending.exit_code) == ("incomplete", ExitCode.REQUEUE)
    assert ending.reason == "no progress in starting within cluster.start_timeout_s = 3: worker-2 is starting"


def test_who_is_lost_while_nodes_come_is_missed_by_nobody(tmp_path: Path) -> None:
    again = AgentHello(0, "other", WORKERS, 99, (7, 1))
    at = stage(tmp_path, [agents([0]), [(b"agent0", again)], agents([1]), workers(), ready()])
    at.script.at_work = [(b"agent0", NodeDraining(0, "x")), (b"agent1", NodeDraining(1, "y"))]
    assert at.ends().state == "preempted", "all nodes go"


def test_an_attempt_that_is_superseded_writes_no_more(tmp_path: Path) -> None:
    at = stage(tmp_path, ALL_CAME)
    newer = begin_attempt(at.run, {"actor_train": "actor", "critic_train": "critic"}, "second", 2, compacts=False)
    newer.close()
    size = at.run.journal(0).stat().st_size
    with pytest.raises(SupersededError):
        at.ends()
    assert at.run.journal(0).stat().st_size == size


@pytest.mark.parametrize(("replaces_nodes", "state"), [(True, "lost"), (False, "preempted")])
def test_a_node_that_fell_silent_as_it_went_ends_no_attempt_that_waits_for_it(
    tmp_path: Path, replaces_nodes: bool, state: str
) -> None:
    at = stage(tmp_path, ALL_CAME, replaces_nodes)
    at.attempt._members.draining[0] = "got SIGTERM"
    at.script.at_work = [(b"agent0", WorkerExited(0, 1, "killed by SIGKILL", None, "logs/worker-1.err"))]
    assert at.ends().state == state
    assert at.run.plan(0).exists() == replaces_nodes, "a node that comes in its place has work"


def test_whoever_looks_at_an_attempt_that_has_just_begun_sees_that_it_is_this_one(tmp_path: Path) -> None:
    at = stage(tmp_path, ALL_CAME)
    newer = begin_attempt(at.run, {"actor_train": "actor", "critic_train": "critic"}, "second", 2, compacts=False)
    newer.note(AttemptBegun(newer.number, "", False, 2))
    assert decode_live(at.run.live(1).read_bytes()).attempt == 1
    newer.close()
    assert RunReader(at.run).lacking == ""
