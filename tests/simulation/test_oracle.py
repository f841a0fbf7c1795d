"""A simulated run beside the real one: the master's own code, real processes and sockets, calls that take the time that
a table says. Only order and waiting are compared."""

from pathlib import Path
from typing import Any

import pytest
from support.chaos import create_run, finish, outputs
from support.paced import attempts, durations, order, paced, rows

from hpcrl.simulation.simulate import simulate

OF_STEP, OF_CALL_S = 0.03, 0.005
FEW = [("parallel", 1, 1), ("chain", 2, 2)]
MANY = [
    pytest.param(graph, seed, 2, marks=pytest.mark.slow)
    for graph in ("parallel", "chain", "fork")
    for seed in range(20)
]


@pytest.mark.parametrize(("graph", "seed", "nodes"), [*FEW, *MANY])
def test_workers_do_the_same_in_the_same_order_and_time(graph: str, seed: int, nodes: int, tmp_path: Path) -> None:
    experiment = paced(graph, seed, nodes)
    run = create_run(tmp_path / "run", experiment)
    assert finish(run, nodes=nodes) == [0], outputs(run)
    simulated = simulate(experiment, durations(experiment), rows(experiment))
    (real,), (made,) = attempts(run), simulated.attempts
    assert order(made) == order(real)
    assert_alike_in_time(made.costs(), real.costs())


def assert_alike_in_time(simulated: Any, real: Any) -> None:
    """From the first step's close to the last one's."""
    calls = sum(len(row.calls) for row in real[1:])
    expected, found = (rows[-1].at_s - rows[0].at_s for rows in (simulated, real))
    assert abs(found - expected) <= OF_STEP * expected + OF_CALL_S * calls, (found, expected, calls)
