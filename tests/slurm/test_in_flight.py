"""A run on a real Slurm that carries unfinished rows on, while it loses a worker, a node and its master."""

from pathlib import Path

import pytest
from support.chaos import remains, started_twice
from support.slurm_cluster import SlurmCluster
from support.slurm_runs import SlurmRun, run_here, toy_values

from hpcrl.inspect.reader import merged_metrics

pytestmark = [pytest.mark.slurm, pytest.mark.slow]


def test_rows_in_flight_survive_a_killed_worker_a_node_that_is_taken_and_a_killed_master(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    values = toy_values("low")
    values["toy"] |= {"samples_per_row": 2, "batch_size": 6, "in_flight": 9, "max_age": 2}
    run = SlurmRun.submit(slurm, values)
    run.wait_steps(2)
    run.kill("worker-2")
    run.wait_steps(2)
    slurm.requeue(run.element_away_from_master())
    run.wait_steps(2)
    run.kill("master")
    run.wait_done()
    assert len(run.run.numbers()) >= 3
    assert any(row["carried"] for row in merged_metrics(run.run) if row["step"])

    assert remains(run.run) == remains(run_here(values, tmp_path))
    assert started_twice(run.run) == []
