"""Nodes that do not come: who is waited for, how often, and when a run gives up."""

from pathlib import Path

import pytest
from support.allocations import Lacks
from support.chaos import create_run, outputs, toy_experiment
from support.cluster import start

from hpcrl.durable.rundir import RunDirectory, Verdict
from hpcrl.errors import ExitCode
from hpcrl.workers.allocation import Absence, AllocationWatch
from hpcrl.workers.roll_call import MEETINGS_IN_VAIN


def made(tmp_path: Path, **cluster: object) -> RunDirectory:
    return create_run(tmp_path / "run", toy_experiment(steps=2, **cluster))


def meet(run: RunDirectory, absence: Absence, submission: str = "first") -> Verdict:
    """A master whose node never comes, to its end."""
    code = start(run.root, submission, nodes=0, allocation=Lacks(absence)).wait_for("master", 30)
    verdict = run.read_verdict(max(run.numbers()))
    assert verdict is not None and verdict.exit_code == code, outputs(run)
    return verdict


@pytest.mark.parametrize("standing", ["silent", "held"])
def test_a_run_whose_nodes_never_come_gives_up(tmp_path: Path, standing: str) -> None:
    run = made(tmp_path, start_timeout_s=0.3)
    absence = Absence(standing, "job 7_0 is so and so")  # type: ignore[arg-type]
    for _ in range(MEETINGS_IN_VAIN - 1):
        verdict = meet(run, absence)
        assert (verdict.state, verdict.exit_code) == ("incomplete", ExitCode.REQUEUE)
        assert "node 0: job 7_0 is so and so" in verdict.reason and "start_timeout_s" in verdict.reason
    verdict = meet(run, absence)
    assert (verdict.state, verdict.exit_code) == ("failed", ExitCode.NEVER_REQUEUE)
    assert f"for the {MEETINGS_IN_VAIN}th time in a row" in verdict.reason and "hpcrl resume" in verdict.reason
    assert meet(run, absence, "resumed").state == "incomplete", "somebody has put it right: it is counted anew"


def test_a_run_whose_nodes_wait_for_their_turn_never_gives_up(tmp_path: Path) -> None:
    run = made(tmp_path, start_timeout_s=0.3)
    for _ in range(MEETINGS_IN_VAIN + 2):
        verdict = meet(run, Absence("queued", "job 7_0 is pending (Priority)"))
        assert (verdict.state, verdict.exit_code) == ("queued", ExitCode.REQUEUE)


def test_a_node_that_is_gone_for_good_ends_the_run_long_before_the_deadline(tmp_path: Path) -> None:
    run = made(tmp_path, start_timeout_s=300.0)
    verdict = meet(run, Absence("gone", "job 7_0 was cancelled"))
    assert (verdict.state, verdict.exit_code) == ("failed", ExitCode.NEVER_REQUEUE)
    assert "node 0: job 7_0 was cancelled. `hpcrl resume" in verdict.reason


def learn(watch: AllocationWatch, *looks: Absence) -> dict[int, str]:
    for absence in looks:
        watch._learn({3: absence})
    return watch.gone


def test_one_look_does_not_make_a_node_gone() -> None:
    noted: list[object] = []
    watch = AllocationWatch(None, lambda name, **fields: noted.append((name, fields)))
    gone, queued = Absence("gone", "was cancelled"), Absence("queued", "is pending")
    assert learn(watch, gone) == {}
    assert learn(watch, queued, gone) == {}
    assert learn(watch, gone) == {3: "was cancelled"}
    watch.found_all()
    assert learn(watch, gone) == {}
    assert noted[0] == ("missing", {"nodes": {"3": "was cancelled"}})


def test_nodes_of_which_nothing_is_known_do_not_only_queue() -> None:
    watch = AllocationWatch(None, lambda *_, **__: None)
    learn(watch, Absence("queued", "is pending"))
    assert watch.only_queue([3])
    assert not watch.only_queue([3, 4])
