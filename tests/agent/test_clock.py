"""How far a node's clock is from its master's: whatever the network does, the truth lies within the error."""

import random
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from hpcrl.agent.clock import DRIFT, MARGIN_S, ClockFilter, Exchange, NodeClock
from hpcrl.member_events import ClockMeasured
from hpcrl.wire.messages import BeatHeard

NOISE_S = 1e-9
"""Of adding up large and small numbers."""


@dataclass
class Node:
    """A node's clocks in the master's time: `mono` is `offset_s` ahead at first and drifts, `wall` may be set."""

    offset_s: float
    rate: float = 0.0
    set_by_s: float = 0.0

    def mono(self, at: float) -> float:
        return at + self.offset_at(at)

    def offset_at(self, at: float) -> float:
        return self.offset_s + self.rate * at

    def wall(self, at: float) -> float:
        return self.mono(at) + 1.7e9 + self.set_by_s


@dataclass
class Beats:
    """Beats of a node and their answers, at times of the master's clock."""

    node: Node
    at: float = 1000.0
    lines: list[ClockMeasured] = field(default_factory=list)
    clock: NodeClock = field(default_factory=NodeClock)
    truth_s: float = 0.0
    """By how much the node's clock was ahead when the last answer came."""

    def beat(self, there_s: float, held_s: float, back_s: float, every_s: float = 1.0) -> Exchange:
        sent, heard = self.at, self.at + there_s
        answered = heard + held_s
        came = answered + back_s
        self.truth_s = self.node.offset_at(came)
        self.at = max(came, self.at + every_s)
        answer = BeatHeard(self.node.mono(sent), heard, answered, 1.6e9 + answered)
        self.lines += self.clock.answered(answer, self.node.mono(came), self.node.wall(came))
        return Exchange(self.node.mono(sent), heard, answered, self.node.mono(came))

    def quiet(self, count: int) -> None:
        for _ in range(count):
            self.beat(0.0003, 0.4, 0.0004)


def nodes() -> st.SearchStrategy[Node]:
    """Up to an hour apart, and half of what two clocks may drift."""
    return st.builds(Node, st.floats(-3600, 3600), st.floats(-DRIFT / 2, DRIFT / 2))


ways = st.tuples(st.floats(0, 2), st.floats(0, 5), st.floats(0, 2), st.floats(0.05, 30))
"""There, held, back, and from one beat to the next: as unequal as they come."""


@settings(max_examples=300, deadline=None)
@given(nodes(), st.lists(ways, min_size=1, max_size=100))
def test_the_offset_is_within_the_error_whatever_the_ways_take(node: Node, given_ways: list) -> None:
    beats, best = Beats(node), ClockFilter()
    for way in given_ways:
        exchange = beats.beat(*way)
        best.feed(exchange)
        offset_s, error_s = best.best(exchange.came)
        assert abs(offset_s - beats.truth_s) <= error_s + NOISE_S
        assert error_s <= exchange.error_s, "a better one was known and not taken"


@settings(max_examples=200, deadline=None)
@given(nodes(), st.lists(ways, min_size=1, max_size=100))
def test_the_newest_line_holds_until_there_is_another(node: Node, given_ways: list) -> None:
    beats = Beats(node)
    for way in given_ways:
        beats.beat(*way)
        told = beats.lines[-1]
        assert abs(told.offset_s - beats.truth_s) <= told.error_s + 1e-6


def test_a_steady_node_writes_one_line_and_a_drifting_one_few() -> None:
    steady = Beats(Node(-1234.5))
    steady.quiet(10_000)
    assert len(steady.lines) == 1 and steady.lines[0].error_s < 2 * MARGIN_S
    drifting = Beats(Node(50.0, rate=1e-5))
    drifting.quiet(10_000)  # 0.1 s in all
    assert 2 < len(drifting.lines) < 2 * 0.1 / MARGIN_S


def test_a_poor_beginning_is_corrected_and_jitter_is_not_told() -> None:
    beats, chance = Beats(Node(7.0)), random.Random(1)
    beats.beat(0.0, 0.1, 3.0)
    assert beats.lines[0].error_s > 1
    for _ in range(1000):
        beats.beat(chance.expovariate(200), chance.uniform(0, 1), chance.expovariate(200))
    assert len(beats.lines) <= 4 and beats.lines[-1].error_s < 0.02


def test_a_wall_clock_that_is_set_is_told_and_moves_no_order() -> None:
    beats = Beats(Node(100.0))
    beats.quiet(50)
    beats.node.set_by_s = 3600.0
    beats.quiet(50)
    first, second = beats.lines
    assert second.ahead_s - first.ahead_s == 3600.0
    assert abs(second.offset_s - first.offset_s) < 0.001


def test_a_clock_that_jumps_although_nobody_sets_it_is_measured_anew() -> None:
    """A virtual machine that was moved, say: what was known contradicts what comes."""
    beats = Beats(Node(100.0))
    beats.quiet(50)
    beats.node.offset_s = 90.0
    beats.quiet(5)
    assert abs(beats.lines[-1].offset_s - 90.0) <= beats.lines[-1].error_s
