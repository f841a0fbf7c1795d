"""A run whose number of nodes is a range begins with what has come, continues on what is left, takes in what comes, and
ends as on any number, up to rounding."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.chaos import create_run, outputs, started_twice, toy_experiment
from support.cluster import Jobs, alive_of
from support.elastic import Whole, assert_nearly_equal, whole
from support.faults import Strike
from support.ranges import (
    begin_with,
    changes_of,
    closed_steps,
    join,
    join_in_time,
    leave,
    told,
    wait_for_nodes,
    wait_for_step,
    weighed,
)

from hpcrl.cli.main import main
from hpcrl.config.control import Frequency
from hpcrl.config.model import PlacementConfig
from hpcrl.durable.attempts import newest_nodes
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ExitCode
from hpcrl.events import AttemptEnded, NodesChanged
from hpcrl.inspect.nodes import changes_of as changes_told
from hpcrl.inspect.reader import RunReader
from hpcrl.inspect.status_text import status_text
from hpcrl.inspect.verdicts import VERDICTS
from hpcrl.inspect.views.status import read_status
from hpcrl.inspect.views.why import why
from hpcrl.recipes.toy import ToyExperiment

STEPS = 12
NONCE = "first"


def ranged(nodes: int | str, steps: int = STEPS, delay_s: float = 0.05, **cluster: Any) -> ToyExperiment:
    """One worker a node; critic and reward on the first."""
    fast = {"patience_s": 0.3, "grow_every_s": 0.0, "lost_after_s": 3.0, "start_timeout_s": 30.0}
    experiment = toy_experiment(steps, delay_s, nodes=nodes, workers_per_node=1, **(fast | cluster))
    first = PlacementConfig(mesh="0", layout="d1")
    return ToyExperiment(**{**vars(experiment), "critic": first, "reward": first})


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """What an undisturbed run on two nodes leaves."""
    run = create_run(tmp_path_factory.mktemp("reference") / "run", ranged(2))
    ends_well(run, begin_with(run, NONCE, [0, 1]))
    return whole(run)


def ends_well(run: RunDirectory, jobs: Jobs) -> None:
    code = jobs.wait_for("master", 90)
    jobs.wait(30)
    jobs.kill_all()
    assert code == 0, outputs(run)
    assert started_twice(run) == []
    assert alive_of(run.root) == []


def test_a_run_begins_with_the_nodes_that_have_come_and_takes_in_one_that_comes_later(
    folder: Path, reference: Whole, capfd: pytest.CaptureFixture[str]
) -> None:
    run = create_run(folder / "run", ranged("2-3"))
    jobs = begin_with(run, NONCE, [0, 2])
    wait_for_step(run, 2)
    assert changes_of(run) == []
    join_in_time(jobs, run, NONCE, 1)
    ends_well(run, jobs)
    (change,) = told(run, NodesChanged)
    assert (change.before, change.nodes, change.why) == (2, 3, "node 1 joined")
    assert 2 <= change.step < STEPS
    joined = next(event for event in weighed(run) if event.joins)
    assert joined.spare == (1,) and "continues on 3 nodes" in joined.why
    assert [event.state for event in told(run, AttemptEnded)] == ["grown", "done"]
    (cause,) = why(RunReader(run)).causes
    grew = f"grew from 2 to 3 nodes at step {change.step}: node 1 joined"
    said = status_text(read_status(run.root))
    assert f"nodes    on 3 of 2-3 nodes; {grew}" in said
    assert cause.kind == "more nodes" and f"it {grew}." in cause.said
    advised = shlex.split(VERDICTS["more nodes"].next.format(run=run.root))
    assert main(advised[1:]) == ExitCode.DONE and grew in " ".join(capfd.readouterr().out.split())
    assert changes_told(RunReader(run)) == (grew,)
    assert_nearly_equal(run, reference)


def test_a_run_continues_on_what_is_left_of_its_nodes_where_nobody_replaces_one(folder: Path, reference: Whole) -> None:
    run = create_run(folder / "run", ranged("1-3", patience_s=60.0))
    jobs = begin_with(run, NONCE, [0, 1, 2])
    wait_for_step(run, 2)
    leave(jobs, 0)
    wait_for_nodes(run, 2)
    leave(jobs, 2)
    code = jobs.wait_for("master", 90)
    jobs.kill_all()
    assert code == 0, outputs(run)
    assert changes_of(run) == [(3, 2), (2, 1)]
    assert "node 0 was lost and not replaced" in told(run, NodesChanged)[0].why
    assert_nearly_equal(run, reference)


@pytest.mark.slow
def test_a_new_master_knows_when_the_run_grew(folder: Path) -> None:
    run = create_run(folder / "run", ranged("2-4", steps=40, grow_every_s=3600.0))
    jobs = begin_with(run, NONCE, [0, 2])
    wait_for_step(run, 2)
    join(jobs, run, NONCE, 1)
    wait_for_nodes(run, 3)
    wait_for_step(run, closed_steps(run) + 1)
    jobs.processes["master"].kill()
    jobs.kill_all()
    before = weighed(run)
    assert before[-1].joins
    jobs = begin_with(run, "second", [0, 1, 2])
    wait_for_step(run, closed_steps(run) + 1)
    join(jobs, run, "second", 3)
    ends_well(run, jobs)
    later = weighed(run)[len(before) :]
    assert {it.spare for it in later} == {(3,)} and not any(it.joins for it in later)
    assert "the run grew, or was to grow, less than cluster.grow_every_s = 3600 s ago" in later[-1].why
    assert changes_of(run) == [(2, 3)]


def test_with_fewer_nodes_than_the_least_a_run_ends_as_one_of_a_fixed_number(folder: Path) -> None:
    run = create_run(folder / "run", ranged("2-3"))
    jobs = begin_with(run, NONCE, [0, 1])
    wait_for_step(run, 1)
    leave(jobs, 1)
    assert jobs.wait_for("master", 60) == 75
    jobs.kill_all()
    assert told(run, AttemptEnded)[-1].state == "incomplete"
    assert "1 of 2-3 nodes are left" in told(run, AttemptEnded)[-1].reason
    assert changes_of(run) == []


def rare(nodes: str, steps: int = STEPS, **cluster: Any) -> ToyExperiment:
    """Without checkpoints but at the end, and where the run grows."""
    experiment = ranged(nodes, steps, **cluster)
    return replace(experiment, control=replace(experiment.control, checkpoint=Frequency(steps=100)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("who", "point", "target"),
    [
        ("master", "manifest.write", "all"),  # ordered to grow, not yet on disk
        ("master", "manifest.published", "all"),
        ("worker-2", "worker.start", "all"),  # as the new attempt starts
        ("worker-2", "worker.start", "agent-1"),  # who joins is gone while it loads
        ("worker-2", "worker.start", "agent-0"),
        ("master", "manifest.write", "agent-1"),  # gone before it could join
        ("master", "manifest.write", "agent-0"),  # one that the others need, while they grow
    ],
)
def test_whoever_is_killed_while_a_run_grows_it_ends_as_if_nothing_had_happened(
    folder: Path, reference: Whole, who: str, point: str, target: str
) -> None:
    run = create_run(folder / "run", rare("2-3" if target == "all" else "1-3", patience_s=2.0))
    strike = Strike(folder, "kill", who, point, "KILL", target)
    jobs = begin_with(run, NONCE, [0, 2], strike)
    wait_for_step(run, 2)
    join_in_time(jobs, run, NONCE, 1, strike)
    code = jobs.wait_for("master", 90)
    jobs.kill_all()
    assert strike.marker.exists(), f"the strike never came: the test tests nothing\n{outputs(run)}"
    if target == "all":
        assert code != 0
        ends_well(run, begin_with(run, "second", [0, 1, 2]))
    else:
        assert code == 0, outputs(run)
    assert started_twice(run) == []
    assert newest_nodes(run) == {"all": (0, 1, 2), "agent-0": (1, 2), "agent-1": (0, 2)}[target]
    assert (2, 3) in changes_of(run) or target != "all"  # whoever is missed early enough is replaced by who comes
    assert_nearly_equal(run, reference)
