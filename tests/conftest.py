"""A registry of the tests' own, no GPU but for tests that ask for one, and the Slurm cluster for tests.

Tests that use the cluster run on one worker of pytest-xdist: on several they would wait.
"""

import gc
import os
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import ClassVar

import hypothesis
import pytest
from support import slurm_cluster, strikes
from support.slurm_cluster import SlurmCluster

from hpcrl.agent.devices import MASK
from hpcrl.garbage import uncollected

CLUSTER_TESTS = "tests/slurm/"
LONGEST_FIRST = Path(__file__).parent / "longest_first.txt"
GIVEN = os.environ.get(MASK)
# A change is judged by the same examples as the one before; `make test-all` looks for new ones.
EXPLORES = os.environ.get("HPCRL_TEST_EXPLORE") == "1"
hypothesis.settings.register_profile("untimed", deadline=None, derandomize=not EXPLORES)
hypothesis.settings.load_profile("untimed")
# Each worker collects all tests, and half of that would be the rewriting of asserts that another has done already.
sys.dont_write_bytecode = False


@pytest.fixture(scope="session", autouse=True)
def state_of_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The registry of runs is one of the tests' own, and compiled modules are kept."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HPCRL_STATE", str(tmp_path_factory.mktemp("state")))
        # Thousands of processes import the same modules: what one has compiled, the others read, as users' do.
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        yield


@pytest.fixture(scope="session", autouse=True)
def computes_on_cpus() -> Iterator[None]:
    """A test that is not marked `gpu` means the CPU, on a machine that has a GPU, too: no process sees one.

    What torch sees in this process was settled when tests were collected, with the GPU.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MASK, "")
        yield


@pytest.fixture(autouse=True)
def sees_gpus(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are marked `gpu` see what was to be seen before."""
    if request.node.get_closest_marker("gpu") is None:
        return
    if GIVEN is None:
        monkeypatch.delenv(MASK, raising=False)
    else:
        monkeypatch.setenv(MASK, GIVEN)


@pytest.fixture(scope="session")
def slurm_is_up() -> None:
    """The cluster is up, or the test is skipped. It stays up after the session unless HPCRL_TEST_CLUSTER_DOWN=1."""
    try:
        slurm_cluster.up()
    except slurm_cluster.NotHere as reason:
        pytest.skip(str(reason))


@pytest.fixture
def slurm(slurm_is_up: None, tmp_path: Path) -> Iterator[SlurmCluster]:
    """The cluster for this test alone: no other job, all nodes up. For tests in tests/slurm, marked so."""
    with slurm_cluster.hold(tmp_path) as cluster:
        yield cluster


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The time-out of a test on the cluster does not count the wait for the cluster."""
    for item in items:
        if item.get_closest_marker("slurm") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(300, func_only=True))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Nobody looks for garbage while tests are collected, nor later among what was imported for them."""
    with uncollected():
        collected = yield
    gc.freeze()
    return collected


def pytest_configure(config: pytest.Config) -> None:
    """Strikes of all workers of a session are counted in one file."""
    if not hasattr(config, "workerinput"):
        folder = tempfile.TemporaryDirectory(prefix="hpcrl-strikes-")
        config.add_cleanup(folder.cleanup)
        os.environ[strikes.VARIABLE] = f"{folder.name}/strikes"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if told := strikes.told(Path(os.environ[strikes.VARIABLE])):
        terminalreporter.write_line(told)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if os.environ.get("HPCRL_TEST_CLUSTER_DOWN") == "1" and not hasattr(session.config, "workerinput"):
        slurm_cluster.down()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """`--dist loadfile` with all files of tests/slurm as one, and what takes longest first: else one worker ends alone.

    How long files take is in longest_first.txt; those that it does not name follow, with most tests first.
    """
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class LongestFirst(LoadFileScheduling):
        places: ClassVar = {name: place for place, name in enumerate(LONGEST_FIRST.read_text().split())}

        def _split_scope(self, nodeid: str) -> str:
            return CLUSTER_TESTS if nodeid.startswith(CLUSTER_TESTS) else super()._split_scope(nodeid)

        def _assign_work_unit(self, node: object) -> None:
            first = min(self.workqueue, key=lambda scope: self.places.get(scope, len(self.places)))
            self.workqueue.move_to_end(first, last=False)
            super()._assign_work_unit(node)

    return LongestFirst(config, log)
