"""Whether spare nodes join: every reason for which they do not, and that they are told of once."""

import math
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest
from support.chaos import toy_experiment

from hpcrl.errors import ExitCode
from hpcrl.events import GrowthWeighed, NodeLeaving
from hpcrl.master.growth import Growth, Joining, Prospect, grows
from hpcrl.master.members import Members
from hpcrl.wire.messages import AgentHello, Trouble

KNOWN = Prospect(
    nodes=2,
    spare=1,
    since_grown_s=math.inf,
    grow_every_s=600.0,
    step_s=10.0,
    ratio=0.7,
    left_s=1000.0,
    cost_s=60.0,
)


@pytest.mark.parametrize(
    ("but", "waits"),
    [
        ({}, ""),
        ({"step_s": None}, "no step of this attempt has closed yet"),
        (
            {"since_grown_s": 599.0},
            "the run grew, or was to grow, less than cluster.grow_every_s = 600 s ago; 1 s are left",
        ),
        ({"ratio": None}, "what it would save is being reckoned"),
        ({"left_s": 199.0}, "on 3 nodes the run would save about 60 s of the 199 s that are left"),
        ({"left_s": 201.0}, ""),
        ({"ratio": 1.2}, "on 3 nodes the run would save about 0 s of the 1000 s that are left"),
        ({"cost_s": 301.0}, "and a new attempt costs about 301 s"),
        ({"left_s": math.inf}, ""),
    ],
)
def test_nodes_join_where_that_saves_more_than_it_costs_and_not_too_often(but: dict[str, Any], waits: str) -> None:
    decision = grows(replace(KNOWN, **but))
    assert decision is not None and decision.joins == (not waits)
    assert waits in decision.why


def test_without_spare_nodes_there_is_nothing_to_decide() -> None:
    assert grows(replace(KNOWN, spare=0)) is None


class Reactor:
    """What `Joining` needs of it."""

    def __init__(self) -> None:
        self.members = Members(4, 10.0, lambda: 0.0)
        self.let_go_of: list[tuple[int, ExitCode]] = []

    def let_go(self, node: int, code: ExitCode) -> None:
        self.let_go_of.append((node, code))
        self.members.dismiss(node)


def now(work: Any) -> Future[Any]:
    done: Future[Any] = Future()
    done.set_result(work())
    return done


def test_what_no_attempt_could_use_is_let_go_and_what_others_wait_for_is_told_once() -> None:
    reactor, noted = Reactor(), list[Any]()
    for node, (devices, trouble) in {
        0: (("GPU-a",), None),
        1: (("GPU-a",), None),
        2: ((), Trouble("no such interface", 64)),
        3: (("GPU-b",), None),
    }.items():
        hello = AgentHello(node, "host", 1, node, devices=devices, trouble=trouble)
        reactor.members.agent(b"agent%d" % node, hello)
    reactor.members.seats = frozenset({0})
    growth = Growth(toy_experiment(nodes="1-4", grow_every_s=100.0), now, lambda: 0.0)
    joining = Joining(growth, reactor, noted.append)  # type: ignore[arg-type]
    for _ in range(3):
        joining.weigh(None, math.inf)
    assert reactor.let_go_of == [(1, ExitCode.NEVER_REQUEUE), (2, ExitCode.NEVER_REQUEUE)]
    left, worse, waits = noted
    assert isinstance(left, NodeLeaving) and left.node == 1 and "has GPUs of node 0" in left.why
    assert isinstance(worse, NodeLeaving) and worse.node == 2 and "no such interface" in worse.why
    assert waits == GrowthWeighed((3,), False, "no step of this attempt has closed yet")
    joining.weigh(1.0, 100.0)
    assert noted[-1].joins and noted[-1].spare == (3,)
    assert joining.order.startswith("node 3 can join: the open steps are finished first, then the run continues on 2")


def joins(spare: tuple[int, ...] = (2, 3)) -> tuple[Reactor, list[Any], Growth, Joining]:
    """Where these nodes are to join those of an attempt on nodes 0 and 1."""
    reactor, noted, experiment = Reactor(), list[Any](), toy_experiment(nodes="1-4", grow_every_s=100.0)
    growth = Growth(experiment, now, lambda: 0.0)
    joining = Joining(growth, reactor, noted.append)  # type: ignore[arg-type]
    reactor.members.seats = frozenset({0, 1})
    for node in (0, 1, *spare):
        reactor.members.agent(b"agent%d" % node, AgentHello(node, "host", 1, node, devices=(f"GPU-{node}",)))
    joining.weigh(1.0, 100.0)
    assert joining.order and noted[-1].joins and noted[-1].spare == spare
    return reactor, noted, growth, joining


def test_an_order_is_withdrawn_once_one_of_its_nodes_has_left_and_the_others_are_weighed_anew() -> None:
    reactor, noted, _, joining = joins()
    before = joining.order
    reactor.members.dismiss(3)
    joining.weigh(1.0, 100.0)
    assert noted[-2] == GrowthWeighed((2,), False, "node 3 left before the open steps were finished")
    assert noted[-1].joins and noted[-1].spare == (2,)
    assert joining.order.startswith("node 2 can join") and joining.order != before
    reactor.members.dismiss(2)
    joining.weigh(1.0, 100.0)
    assert not joining.order and not noted[-1].joins and noted[-1].spare == ()
    told = len(noted)
    joining.weigh(1.0, 100.0)
    assert len(noted) == told and not joining.order
    reactor.members.agent(b"again", AgentHello(2, "host", 1, 5, devices=("GPU-2",)))
    joining.weigh(1.0, 100.0)
    assert joining.order and noted[-1].joins, "it has come again"


def test_an_order_stays_where_no_step_may_open_again_and_where_its_nodes_do() -> None:
    reactor, noted, _, joining = joins((2,))
    order, told = joining.order, len(noted)
    reactor.members.agent(b"agent3", AgentHello(3, "host", 1, 3, devices=("GPU-3",)))
    joining.weigh(1.0, 100.0)
    assert joining.order == order and len(noted) == told, "who comes meanwhile joins too"
    reactor.members.dismiss(2)
    joining.weigh(1.0, 100.0, keeps_order=True)
    assert joining.order == order and len(noted) == told


def test_an_attempt_that_ended_to_grow_counts_also_if_nobody_joins() -> None:
    _, _, growth, _ = joins()
    growth.handed_over()
    decision = growth.decide(2, 1, 1.0, 100.0)
    assert decision is not None and not decision.joins and "was to grow, less than" in decision.why
