"""A simulated run beside the real one: the master's own code, real processes and sockets, calls that take the time that
a table says. Only order and waiting are compared."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from support.chaos import create_run, finish, outputs
from support.faults import Strike
from support.paced import GRAPHS, attempts, durations, order, paced, rows, struck

from hpcrl.costs import StepCost
from hpcrl.inspect.reader import AttemptReader
from hpcrl.simulation.disturbances import Disturbances, NodeLost, When, WorkerKilled
from hpcrl.simulation.simulate import Simulated, simulate

OF_STEP, OF_CALL_S = 0.03, 0.005
MANY = [pytest.param(graph, seed, marks=pytest.mark.slow) for graph in GRAPHS for seed in range(20)]


@pytest.mark.parametrize(("graph", "seed"), [("parallel", 101), ("chain", 102), *MANY])
def test_workers_do_the_same_in_the_same_order_and_time(graph: str, seed: int, tmp_path: Path) -> None:
    experiment = paced(graph, seed)
    run = create_run(tmp_path / "run", experiment)
    assert finish(run, nodes=2) == [0], outputs(run)
    simulated = simulate(experiment, durations(experiment), rows(experiment))
    (real,), (made,) = attempts(run), simulated.attempts
    assert order(made) == order(real)
    calls = len(real.costs()[-1].calls)
    expected, found = step_s(made.costs()), step_s(real.costs())
    assert abs(found - expected) <= OF_STEP * expected + OF_CALL_S * calls, (found, expected, calls)


def test_a_killed_worker_costs_the_same_attempts_reads_and_replays(tmp_path: Path) -> None:
    experiment, killed = struck("chain", 7)
    run = create_run(tmp_path / "run", experiment)
    strike = Strike(tmp_path, "first", f"worker-{killed.rank}", "worker.call", "KILL", nth=killed.nth)
    assert finish(run, strike, nodes=2) == [0], outputs(run)
    disturbed = Disturbances(killed=(WorkerKilled(killed.rank, When(killed.at_s)),))
    simulated = simulate(experiment, durations(experiment), rows(experiment), disturbed, replaces_nodes=False)
    assert_alike(simulated, attempts(run))


def test_a_killed_node_costs_the_same_attempts_reads_and_replays(tmp_path: Path) -> None:
    experiment, killed = struck("chain", 8, lost_after_s=6.0)
    run = create_run(tmp_path / "run", experiment)
    node = killed.rank // 4
    strike = Strike(tmp_path, "first", f"worker-{killed.rank}", "worker.call", "KILL", f"agent-{node}", killed.nth)
    assert finish(run, strike, nodes=2) == [75, 0], outputs(run)
    disturbed = Disturbances(lost=(NodeLost(node, When(killed.at_s)),))
    simulated = simulate(experiment, durations(experiment), rows(experiment), disturbed, replaces_nodes=False)
    assert_alike(simulated, attempts(run))


def assert_alike(simulated: Simulated, real: Sequence[AttemptReader]) -> None:
    assert len(simulated.attempts) == len(real) > 1
    assert [ending.state for ending in simulated.endings] == [it.activity.ending.partition(":")[0] for it in real]
    for made, found in zip(simulated.attempts, real, strict=True):
        assert made.recovery.describe() == found.activity.recovered
        replays = [(it.step, it.call, it.span.replay) for it in found.made()]
        assert sorted((it.step, it.call, it.span.replay) for it in made.made()) == sorted(replays)


def step_s(rows: Sequence[StepCost]) -> float:
    """From a step's close to that of the next, once: what else the machine has to do only adds to it."""
    return min(later.at_s - earlier.at_s for earlier, later in pairwise(rows))
