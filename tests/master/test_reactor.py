"""The master's loop on a clock of the test's own, without sockets: whom it beats to, whom it believes what."""

import threading
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest

from hpcrl.config.cluster import ClusterConfig
from hpcrl.errors import ExitCode
from hpcrl.events import AgentConnected, CallFailed, Event, NodeLeaving, WorkerConnected, WorkerEnded
from hpcrl.master.members import Members
from hpcrl.master.reactor import Reactor, Report
from hpcrl.wire.messages import (
    AgentHello,
    AreYouThere,
    Beat,
    BrokenOperation,
    Failed,
    Finish,
    Here,
    Message,
    NodeDraining,
    Syn,
    WorkerExited,
    WorkerHello,
    WorkerReady,
)

HELLO = AgentHello(0, "host", 2, 1)
CLUSTER = ClusterConfig(heartbeat_s=1.0, lost_after_s=9.0)


class SupersededError(Exception):
    pass


@dataclass
class Attempt:
    """Remembers what it is told."""

    number: int
    superseded: bool = False
    heard: list[Report] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    def note(self, event: Event) -> None:
        self.events.append(event)

    def hear(self, report: Report) -> None:
        self.heard.append(report)

    def refuse_superseded(self) -> None:
        if self.superseded:
            raise SupersededError


@dataclass
class Stage:
    """All that a reactor touches. A turn in which nobody says anything takes a tick."""

    now: float = 0.0
    says: list[tuple[bytes, Message]] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    sent: list[tuple[bytes, Message]] = field(default_factory=list)
    caught: str = ""
    polls: int = 0
    left: int = 0
    """How many of what was sent have left."""

    def __post_init__(self) -> None:
        self.members = Members(1, CLUSTER.lost_after_s, lambda: self.now)
        self.attempt = Attempt(3)
        self.reactor = Reactor(self, self.members, self, self, CLUSTER, lambda: self.now)  # type: ignore[arg-type]
        self.reactor.listener = self.attempt

    # as sockets
    def receive(self, timeout_ms: int, _gather_s: float) -> list[tuple[bytes, Message]]:
        said, self.says = self.says, []
        self.now += 0.0 if said else timeout_ms / 1000
        return said

    def take_lost(self) -> list[str]:
        lost, self.lost = self.lost, []
        return lost

    def send(self, identity: bytes, body: Message) -> None:
        self.sent.append((identity, body))

    def flush(self) -> None:
        self.left = len(self.sent)

    # as signals
    def quiet(self) -> None:
        pass

    # as commands
    def poll(self, *_told: Any) -> None:
        self.polls += 1

    def say(self, *what: tuple[bytes, Message]) -> None:
        self.says.extend(what)
        self.reactor.turn()

    def events(self, kind: type) -> list[Event]:
        return [event for event in self.attempt.events if isinstance(event, kind)]


@pytest.fixture
def stage() -> Stage:
    """An agent and two workers of attempt 3 are there."""
    stage = Stage()
    workers = [(b"worker%d" % rank, WorkerHello(3, rank, 100 + rank, "tcp://x", "")) for rank in range(2)]
    stage.say((b"agent", HELLO), *workers)
    return stage


def test_every_agent_hears_a_beat_before_a_heartbeat_is_over(stage: Stage) -> None:
    """Every 0.75 s: beats are due every 0.7 s, and turns are 0.125 s apart."""
    stage.sent.clear()
    while stage.now <= 5.0:
        stage.say((b"agent", Beat()), (b"worker0", Beat()), (b"worker1", Beat()))
        stage.now += 0.125
    beats = [identity for identity, body in stage.sent if isinstance(body, Beat)]
    assert {identity: beats.count(identity) for identity in beats} == {b"agent": 6, b"worker0": 1, b"worker1": 1}


def test_while_something_slow_is_done_elsewhere_everybody_goes_on_hearing_beats(stage: Stage) -> None:
    enough = threading.Event()
    threads = []

    def slow() -> str:
        threads.append(threading.current_thread().name)
        enough.wait(90)
        return "done"

    receive = stage.receive

    def tick(timeout_ms: int, gather_s: float) -> list[tuple[bytes, Message]]:
        stage.now += 0.25
        if stage.now > 60.0:
            enough.set()
        return [(member, Beat()) for member in (b"agent", b"worker0", b"worker1")] + receive(timeout_ms, gather_s)

    stage.receive = tick  # type: ignore[method-assign]
    stage.sent.clear()
    assert stage.reactor.while_beating(slow) == "done"
    assert threads[0].startswith("slow")
    assert sum(identity == b"agent" for identity, _ in stage.sent) >= 59
    assert stage.members.losses == []


def test_what_is_raised_elsewhere_is_raised_here(stage: Stage) -> None:
    with pytest.raises(ZeroDivisionError):
        stage.reactor.while_beating(lambda: 1 // 0)


def test_who_says_nothing_for_too_long_is_lost(stage: Stage) -> None:
    for _ in range(10):
        stage.say((b"agent", Beat()), (b"worker1", Beat()))
        stage.now += 1.0
    stage.reactor.turn()
    assert [loss.who for loss in stage.members.losses] == ["worker-0"]


def test_nobody_is_lost_because_this_process_slept(stage: Stage) -> None:
    stage.now += 100.0
    stage.reactor.turn()
    assert stage.members.losses == []
    for _ in range(10):
        stage.now += 1.0
        stage.reactor.turn()
    assert {loss.who for loss in stage.members.losses} == {"agent-0", "worker-0", "worker-1"}


def test_an_attempt_that_a_newer_one_has_superseded_ends_with_the_next_beat(stage: Stage) -> None:
    stage.attempt.superseded = True
    stage.reactor.turn()
    stage.now += 1.0
    with pytest.raises(SupersededError):
        stage.reactor.turn()
    stage.reactor.listener = None
    stage.reactor.turn()


def test_reports_of_the_workers_of_this_attempt_reach_it_and_no_others(stage: Stage) -> None:
    stage.say((b"worker1", Syn(7, 1)), (b"stranger", Syn(8, 1)), (b"agent", Syn(9, 1)))
    assert stage.attempt.heard == [Syn(7, 1)]
    stage.reactor.listener = None
    stage.say((b"worker1", Syn(10, 1)))
    assert stage.attempt.heard == [Syn(7, 1)]


def test_workers_of_older_attempts_neither_come_nor_go(stage: Stage) -> None:
    stage.say((b"late", WorkerHello(2, 0, 77, "tcp://y", "")), (b"agent", WorkerExited(2, 1, "exit code 0", 0, "log")))
    assert stage.members.hellos[0].pid == 100 and stage.members.losses == []
    assert len(stage.events(WorkerConnected)) == 2 and stage.events(WorkerEnded) == []


def test_a_worker_is_ready_or_has_failed_when_it_says_so_itself(stage: Stage) -> None:
    failed = Failed(1, "starting", "boom", "Traceback", int(ExitCode.USER_CODE), 1.7e9)
    stage.say((b"worker0", WorkerReady(0, 1.0)), (b"stranger", WorkerReady(1, 1.0)), (b"stranger", failed))
    assert stage.members.ready == {0: WorkerReady(0, 1.0)} and stage.members.failures == []
    stage.say((b"worker1", failed))
    assert [error.told for error in stage.members.failures] == [failed]
    assert stage.events(CallFailed) == [CallFailed(1, "starting", "boom", exit_code=66)]


def test_losses_stand_in_the_order_in_which_they_were_learned(stage: Stage) -> None:
    stage.lost = ["relay-0.9", "worker-1.a003.55", "agent-0.9"]
    stage.say((b"agent", WorkerExited(3, 0, "killed by SIGKILL", None, "logs/worker-0.err")))
    assert [loss.who for loss in stage.members.losses] == ["worker-0", "worker-1", "agent-0"]


def test_what_a_turn_says_has_left_when_it_ends(stage: Stage) -> None:
    stage.now += CLUSTER.heartbeat_s
    stage.say((b"third", AgentHello(1, "other", 2, 9)))
    assert stage.sent[-1] == (b"third", Finish(int(ExitCode.NEVER_REQUEUE))) and stage.left == len(stage.sent)


def test_a_beat_says_when_it_was_sent_and_answers_an_agents_once(stage: Stage) -> None:
    stage.say((b"agent", Beat(sent=5.0)))
    for answers in (True, False):
        stage.sent.clear()
        stage.now += CLUSTER.heartbeat_s
        stage.reactor.turn()
        [(identity, beat)] = stage.sent
        assert identity == b"agent" and isinstance(beat, Beat) and beat.sent == stage.now - 0.05
        assert (beat.heard is not None) == answers


def test_beats_are_no_farther_apart_than_the_settings_say_where_each_turn_takes_long(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To hear what came takes a while, and so does what is done of it before the next turn."""
    takes_s = 0.29 * CLUSTER.heartbeat_s

    def hear(_report: Report) -> None:
        stage.now += takes_s

    monkeypatch.setattr(stage.attempt, "hear", hear)
    stage.reactor.turn()
    for _ in range(20):
        stage.say((b"worker1", Syn(7, 1)))
        stage.now += takes_s
    sent = [body.sent for identity, body in stage.sent if identity == b"agent" and isinstance(body, Beat)]
    assert len(sent) > 5 and max(after - before for before, after in pairwise(sent)) <= CLUSTER.heartbeat_s


def test_workers_are_beaten_to_less_often_and_long_before_they_miss_it(stage: Stage) -> None:
    """Their agent hears every beat, and takes them along when it hears none."""
    stage.sent.clear()
    began = stage.now
    while stage.now < began + CLUSTER.orphan_timeout_s:
        stage.now += CLUSTER.heartbeat_s
        stage.say((b"agent", Beat()), (b"worker0", Beat()), (b"worker1", Beat()))
    beaten = [identity for identity, body in stage.sent if isinstance(body, Beat)]
    assert beaten.count(b"agent") == CLUSTER.orphan_timeout_s / CLUSTER.heartbeat_s
    assert 7 <= beaten.count(b"worker0") == beaten.count(b"worker1") <= 8


def test_a_node_is_told_to_go_by_its_own_agent_alone(stage: Stage) -> None:
    stage.say((b"stranger", NodeDraining(0, "got SIGTERM")))
    assert stage.members.draining == {}
    stage.say((b"agent", NodeDraining(0, "got SIGTERM")))
    assert stage.members.draining == {0: "got SIGTERM"}
    assert stage.events(NodeLeaving) == [NodeLeaving(0, "got SIGTERM")]


def test_an_agent_that_is_one_too_many_is_sent_away(stage: Stage) -> None:
    stage.say((b"third", AgentHello(1, "other", 2, 9)))
    assert (b"third", Finish(int(ExitCode.NEVER_REQUEUE))) in stage.sent
    assert stage.events(AgentConnected)[-1] == AgentConnected(1, "other", 9, welcome=False)
    assert stage.members.agents.keys() == {0}


def test_commands_are_read_in_every_turn(stage: Stage) -> None:
    before = stage.polls
    stage.reactor.turn()
    stage.reactor.turn()
    assert stage.polls == before + 2


def test_everybody_is_asked_for_a_sign_of_life_and_only_answers_of_this_attempt_count(stage: Stage) -> None:
    stage.sent.clear()
    stage.reactor.ask(3, (0, 1))
    asked = {identity for identity, body in stage.sent if body == AreYouThere(3)}
    assert asked == {b"agent", b"worker0", b"worker1"}
    stage.say((b"agent", Here(3)), (b"worker0", Here(3)), (b"worker1", Here(2)), (b"stranger", Here(3)))
    assert not stage.members.all_answered
    stage.say((b"worker1", Here(3)))
    assert stage.members.all_answered and stage.members.losses == []


def test_what_a_worker_tells_of_a_peer_is_noted_as_such(stage: Stage) -> None:
    broken = BrokenOperation((0, 1), "all-to-all", 7, 1)
    stage.say((b"worker1", Failed(1, "step 1", "boom", "", int(ExitCode.REQUEUE), 1.7e9, broken)))
    assert stage.events(CallFailed) == [CallFailed(1, "step 1", "boom", "", True, int(ExitCode.REQUEUE))]
