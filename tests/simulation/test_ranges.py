"""A simulated run on a range of nodes: it begins, grows and shrinks by the master's own code, as a real one does."""

from dataclasses import replace
from typing import Any

import pytest
from support.chaos import toy_experiment
from support.lagging import ALGORITHM

from hpcrl.config.model import PlacementConfig
from hpcrl.durable.journal import Checkpointed
from hpcrl.errors import ConfigurationError
from hpcrl.master.stepping import open_data
from hpcrl.placement.plan import Plan
from hpcrl.recipes.algorithm import experiment_of
from hpcrl.recipes.toy import ToyExperiment
from hpcrl.simulation.clock import SECOND_NS
from hpcrl.simulation.disturbances import Disturbances, NodeLate, NodeLost, NodePreempted, Slowed, When
from hpcrl.simulation.durations import Durations
from hpcrl.simulation.rows import Rows
from hpcrl.simulation.simulate import Simulated, simulate

FAST = {"patience_s": 10.0, "grow_every_s": 0.0, "replace_timeout_s": 30.0, "start_timeout_s": 200.0}


def ranged(nodes: str, steps: int = 60, **cluster: Any) -> Any:
    """A worker on each node, over which data is split; critic and reward on the first."""
    experiment = toy_experiment(steps, nodes=nodes, workers_per_node=1, **(FAST | cluster))
    first = PlacementConfig(mesh="0", layout="d1")
    return ToyExperiment(**{**vars(experiment), "critic": first, "reward": first})


def simulated(experiment: Any, disturbances: Disturbances, load_s: int = 1, **options: Any) -> Simulated:
    """Its generation takes a share of 12 s on each node, and loading so long."""

    def durations(plan: Plan) -> Durations:
        calls = dict.fromkeys((call.name for call in plan.calls), SECOND_NS // 10)
        calls["actor_gen"] = 12 * SECOND_NS // plan.nodes
        return Durations(calls, row_bytes=1, loads=dict.fromkeys(range(plan.nodes), load_s * SECOND_NS))

    rows = Rows(open_data(experiment, None), lambda _sample: experiment.toy.width)  # type: ignore[arg-type]
    return simulate(experiment, durations, rows, disturbances, **options)


def attempts(of: Simulated) -> list[tuple[int, str]]:
    """Nodes of each attempt, and how it ended."""
    return [(it.nodes, ending.state) for it, ending in zip(of.attempts, of.endings, strict=True)]


def closed(of: Simulated) -> list[int]:
    return [row.step for it in of.attempts for row in it.costs()]


def test_it_begins_with_what_has_come_and_a_late_node_joins_at_a_closed_step() -> None:
    found = simulated(ranged("2-3"), Disturbances(late=(NodeLate(2, 100.0),)))
    assert attempts(found) == [(2, "grown"), (3, "done")] and closed(found) == [*range(1, 61)]
    assert (found.attempts[1].activity.began or 0.0) > 100.0 and "node 2 can join" in found.endings[0].reason
    whole = simulated(ranged("2-3"), Disturbances())
    assert attempts(whole) == [(3, "done")]
    assert whole.seconds < found.seconds < simulated(ranged("2-2"), Disturbances()).seconds


def test_a_lost_node_that_nobody_replaces_in_time_shrinks_the_run_and_one_that_comes_later_makes_it_grow() -> None:
    lost = (NodeLost(1, When(step=10)),)
    found = simulated(ranged("1-3"), Disturbances(lost=lost, replaced_s=120.0))
    assert attempts(found) == [(3, "lost"), (2, "grown"), (3, "done")] and closed(found) == [*range(1, 61)]
    quick = simulated(ranged("1-3"), Disturbances(lost=lost, replaced_s=5.0))
    assert attempts(quick) == [(3, "lost"), (3, "done")]
    alone = simulated(ranged("1-3"), Disturbances(lost=lost, replaced_s=5.0), replaces_nodes=False)
    assert attempts(alone) == [(3, "lost"), (2, "done")], "nobody comes in the place of one that is lost"


def test_where_nobody_replaces_a_lost_node_it_is_back_once_all_are_queued_again() -> None:
    lost = (NodeLost(1, When(step=10)),)
    of_range = simulated(ranged("1-3"), Disturbances(lost=lost, wall_time_s=200.0), replaces_nodes=False)
    assert attempts(of_range) == [(3, "lost"), (2, "preempted"), (3, "done")]
    fixed = simulated(ranged("3-3"), Disturbances(lost=lost, replaced_s=5.0), replaces_nodes=False)
    assert [state for _, state in attempts(fixed)] == ["lost", "incomplete", "done"]
    assert closed(of_range) == closed(fixed) == [*range(1, 61)]


def test_where_nobody_replaces_a_node_that_is_told_to_go_all_are_queued_again() -> None:
    told = Disturbances(preempted=(NodePreempted(1, When(step=5), 20.0),))
    assert attempts(simulated(ranged("1-3"), told, replaces_nodes=False)) == [(3, "preempted"), (3, "done")]


def test_it_grows_no_more_often_than_the_settings_let_it_and_not_for_nothing() -> None:
    late = Disturbances(late=(NodeLate(1, 60.0), NodeLate(2, 120.0)))
    often = simulated(ranged("1-3"), late)
    assert [nodes for nodes, _ in attempts(often)] == [1, 2, 3]
    seldom = simulated(ranged("1-3", grow_every_s=1e6), late)
    assert [nodes for nodes, _ in attempts(seldom)] == [1, 2]
    end = simulated(ranged("1-3", steps=6), Disturbances(late=(NodeLate(1, 80.0), NodeLate(2, 90.0))), load_s=60)
    assert attempts(end)[-1] == (1, "done"), "what is left is less than a new attempt costs"


def comes_and_goes(node: int, times: int = 30, every_s: int = 40, stays_s: int = 5) -> Disturbances:
    """It comes every so often, and is told to go a little later."""
    told = tuple(NodePreempted(node, When(seconds=100.0 + every_s * i + stays_s), 0.0) for i in range(times))
    return Disturbances(late=(NodeLate(node, 100.0),), preempted=told, replaced_s=every_s - stays_s)


@pytest.mark.parametrize("stays_s", [1, 3, 5])
def test_a_node_that_leaves_before_the_open_steps_are_finished_costs_no_attempt(stays_s: int) -> None:
    found = simulated(ranged("2-3", steps=30), comes_and_goes(2, stays_s=stays_s))
    assert attempts(found) == [(2, "done")] and closed(found) == [*range(1, 31)]
    told = [event for event in found.events if isinstance(event, Checkpointed)]
    assert told[-1].step == 30, "the last step is saved, whatever was saved before steps opened again"


def test_where_steps_lag_behind_a_node_that_leaves_costs_one_attempt_in_grow_every_s() -> None:
    """No step may open any more once changes no longer wait for it: the attempt ends, and counts."""
    lagging = experiment_of(ALGORITHM)(**vars(ranged("2-3", 30, grow_every_s=1e6)) | {"algorithm": ALGORITHM})
    found = simulated(lagging, comes_and_goes(2))
    assert attempts(found) == [(2, "grown"), (2, "done")] and closed(found) == [*range(1, 31)]


def test_a_slow_disk_is_its_nodes_whatever_the_workers_numbers_are() -> None:
    """On nodes 0 and 2 worker 1 is on node 2."""

    def seconds(*slow: int) -> float:
        disks = tuple(Slowed(node, 30.0) for node in slow)
        found = simulated(ranged("2-3", steps=3), Disturbances(slow_disk=disks, late=(NodeLate(1, 1e4),)))
        assert attempts(found) == [(2, "done")]
        return found.seconds

    assert seconds(1) == seconds() < seconds(2) - 20.0


def test_a_preempted_node_and_the_least_number() -> None:
    gone = Disturbances(preempted=(NodePreempted(1, When(step=5), 20.0),), replaced_s=1000.0)
    found = simulated(ranged("2-3"), gone)
    assert [nodes for nodes, _ in attempts(found)][:2] == [3, 2] and found.ending.state == "done"
    with pytest.raises(ConfigurationError, match="node 3"):
        simulated(ranged("2-3"), Disturbances(late=(NodeLate(3, 1.0),)))
    experiment = ranged("2-3")
    same = [simulated(replace(experiment), gone) for _ in range(2)]
    assert same[0].seconds == same[1].seconds and same[0].orders == same[1].orders
