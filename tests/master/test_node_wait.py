"""Waiting for nodes: what is said of those that do not come."""

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from support.allocations import Lacks
from support.chaos import create_run, toy_experiment

from hpcrl.durable.notices import leave_notice
from hpcrl.durable.records import Verdict
from hpcrl.errors import ExitCode
from hpcrl.events import Event, NodesMissing
from hpcrl.master.allocation import Absence, AllocationWatch
from hpcrl.master.ending import Ending
from hpcrl.master.meeting_point import RunMeetingPoint
from hpcrl.master.members import Members
from hpcrl.master.node_wait import Muster, NodeWait, may_begin
from hpcrl.wire.messages import AgentHello


class Alone:
    """Two nodes that nobody replaces, on a clock of the test's own; a lost agent that lives comes back within 30 s."""

    def __init__(self, folder: Path, nodes: int | str = 2, allocation: Any = None) -> None:
        run = create_run(folder / "run", toy_experiment(nodes=nodes))
        cluster = toy_experiment(nodes=nodes, orphan_timeout_s=30.0, start_timeout_s=300.0).cluster
        self.now = 0.0
        self.run, clock = run, lambda: self.now
        self.members = Members(2, 10.0, clock)
        watch = AllocationWatch(allocation, lambda event: None, clock, clock, at_once)
        self.wait = NodeWait(RunMeetingPoint(run, "first"), cluster, False, self.members, watch, clock)
        self.wait.begin(0, "tcp://master")

    def comes(self, *nodes: int) -> None:
        for node in nodes:
            self.members.agent(b"agent%d" % node, AgentHello(node, "host", 2, node))

    def after(self, seconds: float) -> tuple[bool, Ending | None]:
        """Whether the attempt may begin then, and else whether it is given up."""
        self.now += seconds
        begins = self.wait.is_complete()
        return begins, None if begins else self.wait.given_up()


def test_where_nobody_replaces_a_lost_node_its_agent_may_come_back_for_a_while(tmp_path: Path) -> None:
    nodes = Alone(tmp_path)
    nodes.comes(0, 1)
    assert nodes.after(0.0) == (True, None)
    nodes.members.dismiss(1)
    for seconds in (0.0, 0.1, 29.0):
        assert nodes.after(seconds) == (False, None), "it may only have been silent"
    nodes.comes(1)
    assert nodes.after(0.0) == (True, None)
    nodes.members.dismiss(1)
    assert nodes.after(0.0) == nodes.after(30.0) == (False, None)
    _, ending = nodes.after(0.1)
    assert ending is not None and (ending.state, ending.exit_code) == ("incomplete", ExitCode.REQUEUE)
    assert ending.reason.startswith(
        "1 of 2 nodes are left, missing: [1]; nothing was heard of them within cluster.orphan_timeout_s = 30 s, and "
        "nobody starts them again here. `hpcrl resume "
    )


@pytest.mark.parametrize("nodes", [2, "1-2"])
@pytest.mark.parametrize("by", ["the allocation", "a notice"])
def test_a_lost_node_that_is_known_to_be_gone_is_not_waited_for(tmp_path: Path, by: str, nodes: int | str) -> None:
    lost = Alone(tmp_path, nodes, Lacks(Absence("ended", "agent-1 ended")) if by == "the allocation" else None)
    lost.comes(0, 1)
    assert lost.after(0.0) == (True, None)
    lost.members.dismiss(1)
    if by == "a notice":
        leave_notice(
            lost.run, "first", 1, (0, 0), Verdict(None, "failed", 75, "agent-1 ended", "agent-1", None, None, 1.0)
        )
    begins, ending = lost.after(0.0)
    while not begins and ending is None:
        begins, ending = lost.after(0.1)
    assert lost.now < 6.0
    if nodes == "1-2":
        assert begins and lost.wait.seats() == (0,)
    else:
        assert ending is not None and (ending.state, ending.exit_code) == ("incomplete", ExitCode.REQUEUE)
        assert "agent-1 ended" in ending.reason


def test_of_a_range_the_run_continues_on_what_is_left_once_a_lost_agent_is_waited_for_no_longer(tmp_path: Path) -> None:
    nodes = Alone(tmp_path, "1-2")
    nodes.comes(0, 1)
    assert nodes.after(0.0) == (True, None)
    nodes.members.dismiss(1)
    assert nodes.after(0.0) == nodes.after(29.9) == (False, None)
    assert nodes.after(0.1) == (True, None) and nodes.wait.seats() == (0,)


def test_an_answer_that_is_there_is_read_before_a_limit_is_judged(tmp_path: Path) -> None:
    """Also where the master was held up meanwhile for longer than the limit."""
    nodes = Alone(tmp_path, allocation=Lacks(Absence("queued", "job 7_1 is pending")))
    nodes.comes(0)
    assert nodes.after(0.0) == (False, None)
    _, ending = nodes.after(301.0)
    assert ending is not None and ending.state == "queued" and "node 1: job 7_1 is pending" in ending.reason


@pytest.mark.parametrize(
    ("here", "coming", "waited_s", "begins"),
    [
        (5, 3, 0.0, True),  # as many as were wanted
        (4, 4, 59.0, False),
        (4, 4, 60.0, True),
        (4, 0, 0.0, True),  # nobody else comes
        (1, 0, 1e9, False),  # too few
    ],
)
def test_an_attempt_begins_with_enough_nodes_once_there_is_no_more_to_wait_for(
    here: int, coming: int, waited_s: float, begins: bool
) -> None:
    known = Muster(here, least=2, wanted=5, coming=coming, waited_s=waited_s, patience_s=60.0)
    assert may_begin(known) == begins


class Ranged:
    """Nodes of a range 2-4 on a clock of the test's own; who is lost is replaced within 900 s."""

    def __init__(self, folder: Path, absence: Absence | None = None) -> None:
        self.run = create_run(folder / "run", toy_experiment(nodes="2-4"))
        cluster = toy_experiment(nodes="2-4", patience_s=60.0, replace_timeout_s=900.0).cluster
        self.now = 0.0
        self.members = Members(4, 1e9, lambda: self.now)
        allocation = None if absence is None else Lacks(absence)
        self.noted: list[Event] = []
        self.start_timeout_s = cluster.start_timeout_s
        clock = lambda: self.now  # noqa: E731
        self.watch = AllocationWatch(allocation, self.noted.append, clock, clock, at_once)
        point = RunMeetingPoint(self.run, "first")
        self.wait = NodeWait(point, cluster, True, self.members, self.watch, lambda: self.now)
        self.wait.begin(0, "tcp://master")

    def comes(self, *nodes: int) -> None:
        for node in nodes:
            self.members.agent(b"agent%d" % node, AgentHello(node, "host", 2, node))

    def after(self, seconds: float) -> bool:
        self.now += seconds
        return self.wait.is_complete()


def at_once(question: Any) -> Any:
    answer: Future[Any] = Future()
    answer.set_result(question())
    return answer


def test_the_patience_for_more_nodes_begins_with_the_least_number_and_a_lost_one_has_its_own(tmp_path: Path) -> None:
    nodes = Ranged(tmp_path)
    nodes.comes(3)
    assert not nodes.after(200.0) and nodes.wait.given_up() is None
    nodes.comes(1)
    assert not nodes.after(0.0) and not nodes.after(59.0) and nodes.after(1.0)
    assert nodes.wait.seats() == (1, 3)
    nodes.comes(0)
    assert nodes.after(0.0) and nodes.wait.seats() == (0, 1, 3)  # who has come meanwhile is taken along
    nodes.members.dismiss(3)
    assert not nodes.after(0.0) and not nodes.after(899.0)
    nodes.comes(2)
    assert nodes.after(0.0) and nodes.wait.seats() == (0, 1, 2)  # another is as good
    nodes.members.dismiss(1)
    assert not nodes.after(0.0) and nodes.after(900.0) and nodes.wait.seats() == (0, 2)
    nodes.members.dismiss(0)
    assert not nodes.after(0.0) and not nodes.after(901.0)
    ending = nodes.wait.given_up()
    assert ending is not None and ending.reason.startswith("1 of 2-4 nodes came within 900 s, missing: [0, 1, 3]")


def test_nodes_that_never_come_are_not_waited_for_where_enough_others_are_there(tmp_path: Path) -> None:
    nodes = Ranged(tmp_path, Absence("gone", "job 7_2 was cancelled"))
    nodes.comes(0, 1)
    assert not nodes.after(0.0)
    while not nodes.after(0.1):
        assert nodes.wait.given_up() is None
    assert nodes.now < 60.0, "it is known that nobody else comes"
    nodes.members.dismiss(0)
    while (ending := nodes.wait.given_up()) is None:
        assert not nodes.after(0.1)
    assert ending.state == "failed" and "job 7_2 was cancelled" in ending.reason


def test_a_master_that_has_just_begun_blames_no_limit_for_nodes_that_the_run_had_before(tmp_path: Path) -> None:
    nodes = Ranged(tmp_path)
    nodes.comes(0, 1)
    assert not nodes.after(0.0) and nodes.after(60.0)
    assert nodes.wait._why_changed([2, 3], []) == "nodes 2, 3 did not come again"
    assert nodes.wait.seats() == (0, 1)
    nodes.comes(2)
    assert nodes.after(1.0)
    assert nodes.wait._why_changed([3], [2]).endswith("lost and not replaced within cluster.replace_timeout_s = 900")


def test_how_long_missing_nodes_are_waited_for_is_told_with_them(tmp_path: Path) -> None:
    nodes = Ranged(tmp_path, Absence("queued", "job 7_2 is pending"))
    untils = lambda: [event.until for event in nodes.noted if isinstance(event, NodesMissing)]  # noqa: E731

    def look(seconds: float) -> None:
        nodes.watch.found_all()
        assert not nodes.after(seconds)
        for _ in range(2):
            assert nodes.wait.given_up() is None

    nodes.comes(0)
    look(0.0)
    limit_s = nodes.start_timeout_s
    assert untils() == [limit_s], "too few are there: until all are queued again"
    nodes.comes(1)
    look(20.0)
    assert untils()[1:] == [80.0], "enough are there: it begins without the others"
    assert nodes.after(60.0)
    nodes.members.dismiss(1)
    look(20.0)
    assert untils()[2:] == [100.0 + 900.0], "for one in the place of another"
