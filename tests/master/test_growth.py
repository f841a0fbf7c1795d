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
        ({"since_grown_s": 599.0}, "the run grew less than cluster.grow_every_s = 600 s ago; 1 s are left"),
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
