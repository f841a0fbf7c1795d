"""A slurmctld that is away while runs are submitted and stopped."""

import json
from collections.abc import Iterator

import pytest
from support.slurm_cluster import SlurmCluster
from support.slurm_runs import SlurmRun, hpcrl, toy_values

from hpcrl.errors import ExitCode

pytestmark = pytest.mark.slurm


@pytest.fixture
def controller(slurm: SlurmCluster) -> Iterator[SlurmCluster]:
    """The cluster, whose controller is back afterwards."""
    yield slurm
    slurm.restart()


def test_auto_says_what_it_takes_and_starts_nothing_on_the_login_node_of_a_slurm_that_is_silent(
    controller: SlurmCluster,
) -> None:
    config = controller.directory / "run.json"
    values = toy_values("low", type="auto", nodes=2)
    config.write_text(json.dumps(values))
    taken = "cluster.type = auto: slurm, which answers here"
    assert taken in hpcrl(controller, "submit", str(config), "--dry-run").stdout
    assert taken in hpcrl(controller, "plan", str(config)).stdout
    controller.stop_controller()
    refused = hpcrl(controller, "submit", str(config), "--run-dir", str(controller.directory / "run"), check=False)
    assert refused.returncode == ExitCode.CONFIGURATION
    assert "Slurm does not answer" in refused.stderr
    assert "--cluster slurm" in refused.stderr and "--cluster local" in refused.stderr
    assert not (controller.directory / "run").exists()
    assert "Slurm does not answer" in hpcrl(controller, "plan", str(config)).stdout


@pytest.mark.parametrize("topology", ["array", pytest.param("colocated", marks=pytest.mark.slow)])
def test_a_run_is_stopped_while_slurm_is_silent(controller: SlurmCluster, topology: str) -> None:
    run = SlurmRun.submit(controller, toy_values("low", topology=topology, nodes=2) | {"control": {"steps": 400}})
    run.wait_steps(2)
    controller.stop_controller()
    stopped = hpcrl(controller, "stop", str(run.run.root))
    assert "slurmctld does not answer" in stopped.stderr and "The order to stop is in" in stopped.stderr
    assert "its master has stopped it" in stopped.stdout
    assert run.verdict == "stopped"
    controller.restart()
    controller.wait_ended(*(job for name in ("master", "workers", "run") for job in run.jobs(name)), timeout_s=90)
    controller.wait_no_processes(30)


@pytest.mark.slow
@pytest.mark.parametrize(("topology", "words"), [("colocated", ["--now"]), ("array", [])])
def test_jobs_that_waited_while_slurm_was_silent_end_when_they_begin(
    controller: SlurmCluster, topology: str, words: list[str]
) -> None:
    values = toy_values("low", topology=topology, nodes=2) | {"control": {"steps": 400}}
    values["cluster"]["slurm"] |= {"flags": ["--hold"], "master_flags": ["--hold"]}
    run = SlurmRun.submit(controller, values)
    controller.stop_controller()
    left = hpcrl(controller, "stop", str(run.run.root), *words, check=False)
    assert left.returncode == ExitCode.REQUEUE
    assert "No master has answered so far. One that begins later ends the run" in left.stdout
    controller.restart()
    jobs = [job for name in ("master", "workers", "run") for job in run.jobs(name)]
    for job in jobs:
        controller.run(["scontrol", "release", job])
    controller.wait_ended(*jobs, timeout_s=120)
    assert run.verdict == "stopped" and run.steps == 0
    controller.wait_no_processes(30)
