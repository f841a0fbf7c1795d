"""Who is there and who is lost, on a clock of the test's own."""

import pytest

from hpcrl.master.allocation import EVERYTHING
from hpcrl.master.members import Members
from hpcrl.whereabouts import Doing
from hpcrl.wire.messages import AgentHello, Beat, WorkerExited, WorkerHello, WorkerReady

LOST_AFTER_S = 10.0


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def members_of_one_node(clock: Clock, nodes: int = 1) -> Members:
    members = Members(nodes, lost_after_s=LOST_AFTER_S, clock=clock)
    members.agent(b"agent", AgentHello(0, "host", 2, 1))
    for rank in range(2):
        members.worker(b"worker%d" % rank, WorkerHello(0, rank, 100 + rank, "tcp://x", ""))
    return members


def test_nobody_is_lost_who_goes_on_being_heard() -> None:
    clock = Clock()
    members = members_of_one_node(clock)
    for _ in range(30):
        clock.now += 1.0
        for identity in (b"agent", b"worker0", b"worker1"):
            members.heard(identity)
        members.find_silent()
    assert members.losses == [] and members.missing == {}


def test_a_silent_worker_is_lost_once() -> None:
    clock = Clock()
    members = members_of_one_node(clock)
    for _ in range(15):
        clock.now += 1.0
        members.heard(b"agent")
        members.heard(b"worker0")
        members.find_silent()
    assert [loss.who for loss in members.losses] == ["worker-1"]
    assert "silent" in members.losses[0].how


def test_a_silent_agent_leaves_a_node_without_one() -> None:
    clock = Clock()
    members = members_of_one_node(clock, nodes=2)
    clock.now = 11.0
    members.heard(b"worker0")
    members.heard(b"worker1")
    members.find_silent()
    assert [loss.who for loss in members.losses] == ["agent-0"]
    assert members.missing == {0: (0, 0), 1: None}


def test_a_worker_that_ended_is_not_lost_a_second_time_by_its_silence() -> None:
    clock = Clock()
    members = members_of_one_node(clock)
    members.exited(WorkerExited(0, 1, "killed by SIGKILL", None, "logs/worker-1.err"))
    clock.now = 11.0
    for identity in (b"agent", b"worker0"):
        members.heard(identity)
    members.find_silent()
    assert [(loss.who, loss.how) for loss in members.losses] == [("worker-1", "killed by SIGKILL")]


def test_a_new_attempt_keeps_agents_and_forgets_workers() -> None:
    clock = Clock()
    members = members_of_one_node(clock)
    members.exited(WorkerExited(0, 1, "exit code 1", 1, ""))
    members.ready[0] = WorkerReady(0, 1.0)
    members.new_attempt()
    assert members.missing == {}
    assert not members.workers and not members.losses and not members.ready
    clock.now = 5.0
    members.heard(b"agent", Beat(Doing("idle", "2 workers")))
    assert members.agents[0].heard == 5.0 and members.agents[0].doing.what == "2 workers"


def test_progress_is_new_words_or_work_and_agents_speak_for_workers_that_are_not_there_yet() -> None:
    clock = Clock()
    members = members_of_one_node(clock)
    for clock.now, identity, beat, both, three in (
        (1.0, b"worker0", Beat(Doing("start", "loading")), 1.0, 1.0),
        (2.0, b"worker0", Beat(Doing("start", "loading")), 1.0, 1.0),
        (3.0, b"worker0", Beat(Doing("start", "loading"), 1), 3.0, 3.0),
        (4.0, b"worker1", Beat(Doing("idle", "idle")), 4.0, 4.0),
        (5.0, b"agent", Beat(Doing("start", "importing torch")), 4.0, 5.0),
        (6.0, b"agent", Beat(Doing("start", "importing torch"), 1), 4.0, 6.0),
    ):
        members.heard(identity, beat)
        assert (members.newest_progress([0, 1]), members.newest_progress([0, 1, 2])) == (both, three), clock.now


def test_all_are_connected_and_ready_only_when_every_rank_is() -> None:
    members = members_of_one_node(Clock())
    assert members.all_connected([0, 1]) and not members.all_connected([0, 1, 2])
    assert members.may_meet([0, 1]) and not members.may_meet([0, 1, 2])
    members.ready[0] = WorkerReady(0, 1.0)
    assert not members.all_ready([0, 1])
    members.ready[1] = WorkerReady(1, 1.0)
    assert members.all_ready([0, 1])


def test_nobody_begins_with_a_worker_that_could_not_make_its_host() -> None:
    """The error of who did would be told as the cause, if it came first."""
    members = members_of_one_node(Clock())
    members.worker(b"worker1", WorkerHello(0, 1, 101, "tcp://x", "", failed=True))
    assert members.all_connected([0, 1]) and not members.may_meet([0, 1])


def test_a_worker_that_ended_with_the_code_of_an_error_has_failed() -> None:
    members = members_of_one_node(Clock())
    members.exited(WorkerExited(0, 1, "exit code 65", 65, "logs/worker-1.err"))
    assert members.losses == []
    [failure] = members.failures
    assert failure.told.exit_code == 65 and "logs/worker-1.err" in failure.told.error


def test_a_worker_of_an_older_attempt_is_not_heard() -> None:
    members = members_of_one_node(Clock())
    members.new_attempt()
    assert not members.is_current(members.heard(b"worker0"))
    members.worker(b"newer", WorkerHello(1, 0, 200, "tcp://x", ""))
    assert members.is_current(members.heard(b"newer")) and not members.is_current(members.heard(b"agent"))


def test_of_two_agents_of_a_node_the_one_of_the_later_job_counts_and_of_one_job_the_first() -> None:
    members = Members(nodes=1, lost_after_s=10.0, clock=Clock())
    assert members.agent(b"first", AgentHello(0, "host", 2, 1, (7, 1))) is None
    assert members.agent(b"twin", AgentHello(0, "other", 2, 2, (7, 1))) == b"twin"
    assert members.agent(b"older", AgentHello(0, "other", 2, 3, (7, 0))) == b"older"
    assert members.is_agent(b"first", 0) and members.losses == []
    assert members.agent(b"later", AgentHello(0, "other", 2, 4, (7, 2))) == b"first"
    assert members.is_agent(b"later", 0) and [loss.who for loss in members.losses] == ["agent-0"]


def test_an_agent_of_a_node_beyond_those_that_are_waited_for_has_to_go() -> None:
    members = members_of_one_node(Clock())
    assert members.agent(b"third", AgentHello(1, "host", 2, 3)) == b"third"
    assert not members.is_agent(b"third", 1) and members.missing == {}


def test_who_was_asked_and_does_not_answer_in_time_is_lost_however_recently_it_was_heard() -> None:
    clock = Clock()
    members = members_of_one_node(clock)
    members.ask((0, 1))
    assert members.roll_called and not members.all_answered
    clock.now += 1.0
    members.answered(b"agent")
    members.answered(b"worker0")
    clock.now += members.answer_s
    for identity in (b"agent", b"worker0", b"worker1"):
        members.heard(identity)
    members.find_silent()
    assert [(loss.who, loss.how) for loss in members.losses] == [("worker-1", "gave no sign of life within 3.3 s")]


def test_an_agent_that_does_not_answer_is_named_before_its_workers_and_leaves() -> None:
    clock = Clock()
    members = members_of_one_node(clock)
    members.ask((0, 1))
    clock.now += members.answer_s + 0.1
    members.find_silent()
    assert [loss.who for loss in members.losses] == ["agent-0", "worker-0", "worker-1"]
    assert members.missing == {0: (0, 0)}


def test_an_agent_that_said_why_it_goes_before_it_fell_silent_is_named_with_it() -> None:
    clock = Clock()
    members = members_of_one_node(clock)
    members.draining[0] = "the parent of its workers died"
    clock.now = 11.0
    members.find_silent()
    assert members.losses[0].how == "the parent of its workers died, then silent for 10 s"


def test_a_node_that_fell_silent_as_it_was_told_to_go_does_not_go_a_second_time() -> None:
    clock = Clock()
    members = members_of_one_node(clock, nodes=2)
    members.agent(b"agent1", AgentHello(1, "host", 2, 2))
    members.draining |= {EVERYTHING: "the run is to go", 0: "got SIGTERM", 1: "got SIGTERM"}
    clock.now = 9.0
    members.heard(b"agent1")
    clock.now = 11.0
    members.find_silent()
    members.new_attempt()
    members.forget_gone()
    assert members.draining == {EVERYTHING: "the run is to go", 1: "got SIGTERM"}


def test_nobody_owes_an_answer_for_what_the_master_slept() -> None:
    clock = Clock()
    members = members_of_one_node(clock)
    members.ask((0, 1))
    clock.now += members.answer_s + 0.1
    members.forgive(slept_s=members.answer_s)
    members.find_silent()
    assert members.losses == [] and not members.all_answered


def test_answers_that_were_owed_in_one_attempt_are_not_owed_in_the_next() -> None:
    clock = Clock()
    members = members_of_one_node(clock)
    members.ask((0, 1))
    members.new_attempt()
    assert members.all_answered and not members.roll_called
    clock.now += members.answer_s + 0.1
    members.find_silent()
    assert members.losses == []


@pytest.mark.parametrize(("lost_after_s", "answer_s"), [(0.8, 3.0), (9.0, 3.0), (60.0, 20.0)])
def test_where_silence_is_borne_for_long_an_answer_may_take_longer(lost_after_s: float, answer_s: float) -> None:
    assert Members(1, lost_after_s).answer_s == answer_s


def test_who_is_not_asked_owes_no_answer() -> None:
    clock = Clock()
    members = members_of_one_node(clock)
    assert [member.identity for member in members.ask((0,))] == [b"agent", b"worker0"]
    members.answered(b"agent")
    members.answered(b"worker0")
    assert members.all_answered
    clock.now += members.answer_s + 0.1
    members.find_silent()
    assert members.losses == []
