"""A run's processes listen at cluster.interface and cluster.ports and nowhere else."""

from contextlib import closing
from pathlib import Path

import pytest
from support.chaos import begin, create_run, outputs, toy_experiment, wait_until
from support.cluster import Jobs
from support.sockets import family_of, listening

from hpcrl.errors import ExitCode
from hpcrl.nameresolve.filesystem import FilesystemStore
from hpcrl.nameresolve.rendezvous import wait_master
from hpcrl.wire.address import LOOPBACK, InterfaceAddress, addresses_here

FIRST, LAST = 23000, 23999
LISTENERS = 5
"""The master, and two workers that give rows and exchange sums."""


def another_interface() -> InterfaceAddress:
    """One that a run on this machine does not take by itself, where there is one."""
    here = addresses_here()
    return next((each for each in here if each.interface != "lo"), here[0])


@pytest.mark.parametrize("by", ["interface", "network"])
def test_all_processes_of_a_run_listen_at_its_interface_within_its_ports(tmp_path: Path, by: str) -> None:
    chosen = another_interface() if by == "interface" else InterfaceAddress("lo", LOOPBACK)
    setting = chosen.interface if by == "interface" else "127.0.0.0/8"
    experiment = toy_experiment(2, delay_s=0.3, interface=setting, ports=f"{FIRST}-{LAST}", start_timeout_s=30.0)
    run = create_run(tmp_path / "run", experiment)
    jobs = begin(run, "s0")
    try:
        found: set[tuple[str, int]] = set()
        wait_until(lambda: len(found.update(found_of(jobs)) or found) == LISTENERS, 90, "listeners")
        assert {host for host, _ in found} == {chosen.host}
        assert all(FIRST <= port <= LAST for _, port in found)
        with closing(FilesystemStore(run.rendezvous(0))) as store:
            assert wait_master(store, 10.0, 1).address in {f"tcp://{host}:{port}" for host, port in found}
        assert jobs.wait_for("master", 60.0) == 0, outputs(run)
    finally:
        jobs.kill_all()


def found_of(jobs: Jobs) -> set[tuple[str, int]]:
    return {each for name in jobs.processes for pid in family_of(jobs.pid(name)) for each in listening(pid)}


def test_an_interface_that_the_node_has_not_ends_the_run_with_those_that_it_has(tmp_path: Path) -> None:
    run = create_run(tmp_path / "run", toy_experiment(1, interface="ib7", start_timeout_s=30.0))
    jobs = begin(run, "s0")
    try:
        assert jobs.wait_for("master", 90) == ExitCode.CONFIGURATION
    finally:
        jobs.kill_all()
    assert "cluster.interface = ib7" in outputs(run) and "lo (127.0.0.1)" in outputs(run)
