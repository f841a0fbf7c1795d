"""PPO with the torch host on two nodes: whoever dies or stops while others are in a collective is a loss, no error.

`make kill` tries every phase; here are the ones that have to do with each other in every way that counts.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.chaos import Remains, begin, create_run, finish, outputs, remains, rows_of, started_twice, waking
from support.cluster import alive_of
from support.faults import Strike
from support.hosts import write_task
from support.phases import Cut, Phased
from support.tiny_ppo import tiny_ppo

from hpcrl.durable.journal import Broken, parse
from hpcrl.durable.records import Verdict
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ExitCode

NODES = 2
LONGEST_S = 240.0

Point = tuple[str, str, int, str, str]
"""Who strikes, where, at which passage, what, whom."""

KILLED: list[Point] = [
    ("worker-0", "reduce.begin", 11, "KILL", "agent-1"),
    ("worker-1", "total.begin", 9, "KILL", "self"),
]
MORE: list[Point] = [
    ("worker-0", "reduce.begin", 5, "KILL", "agent-1"),
    ("worker-0", "backward.end", 13, "KILL", "agent-1"),
    ("worker-0", "gather.begin", 17, "KILL", "agent-1"),
    ("worker-0", "digest.begin", 3, "KILL", "agent-1"),
    ("worker-0", "form.begin", 1, "KILL", "agent-1"),
    ("worker-1", "optimizer.begin", 6, "KILL", "self"),
    ("worker-1", "join.begin", 1, "KILL", "self"),
    ("worker-0", "join.begin", 1, "KILL", "self"),
    ("worker-1", "reduce.begin", 7, "STOP", "self"),
    ("worker-1", "forward.begin", 20, "STOP", "self"),
    ("worker-0", "reduce.begin", 7, "STOP", "agent-1"),
    ("worker-0", "total.begin", 30, "STOP", "master"),
]


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("task")
    write_task(folder)
    return folder


@pytest.fixture(scope="module")
def undisturbed(task: Path) -> Iterator[Remains]:
    with tempfile.TemporaryDirectory() as folder:
        run = create_run(Path(folder) / "run", tiny_ppo(task, nodes=1, workers=2))
        assert finish(run, timeout_s=LONGEST_S) == [0], outputs(run)
        yield remains(run)


def two_nodes(folder: Path, task: Path) -> RunDirectory:
    return create_run(folder / "run", tiny_ppo(task, nodes=NODES, workers=1))


def ending_of(run: RunDirectory, attempt: int) -> str:
    [reason] = [row["reason"] for row in rows_of(run.events(attempt)) if row["event"] == "ending"]
    return str(reason)


def verdict_of(run: RunDirectory, attempt: int) -> Verdict:
    verdict = run.read_verdict(attempt)
    assert verdict is not None, outputs(run)
    return verdict


def broken_in(run: RunDirectory, attempt: int) -> list[Broken]:
    lines = parse(run.files.read(run.journal(attempt)))
    return [event for _, event in lines if isinstance(event, Broken)]


def check(folder: Path, task: Path, undisturbed: Remains, point: Point) -> RunDirectory:
    run = two_nodes(folder, task)
    role, where, nth, what, target = point
    strike = Strike(folder, "strike", role, where, what, target, nth)
    with waking(run, lambda: strike.hit if what == "STOP" else ()):
        codes = finish(run, Phased(strike), timeout_s=LONGEST_S, nodes=NODES)
    assert strike.hit, "the strike never came: the test tests nothing"
    assert set(codes) <= {ExitCode.REQUEUE, ExitCode.DONE}, outputs(run)
    assert remains(run) == undisturbed, outputs(run)
    assert started_twice(run) == []
    assert alive_of(run.root) == []
    return run


@pytest.mark.parametrize("point", [pytest.param(KILLED[0], marks=pytest.mark.slow), KILLED[1]], ids=str)
def test_who_dies_while_others_are_in_a_collective_is_lost_and_named(
    tmp_path: Path, task: Path, undisturbed: Remains, point: Point
) -> None:
    run = check(tmp_path, task, undisturbed, point)
    assert ending_of(run, 0).startswith("agent-1: " if point[4] == "agent-1" else "worker-1: killed by SIGKILL")


@pytest.mark.slow
@pytest.mark.parametrize("point", MORE, ids=str)
def test_who_dies_or_stops_in_any_phase_is_lost_and_the_run_ends_with_the_same_bits(
    tmp_path: Path, task: Path, undisturbed: Remains, point: Point
) -> None:
    check(tmp_path, task, undisturbed, point)


def test_a_connection_that_breaks_while_all_are_alive_begins_another_attempt(
    tmp_path: Path, task: Path, undisturbed: Remains
) -> None:
    run = two_nodes(tmp_path, task)
    cut = Cut(tmp_path, "cut", "worker-1", "reduce.begin", "CUT", nth=11)
    assert finish(run, Phased(cut), timeout_s=LONGEST_S, nodes=NODES) == [ExitCode.DONE], outputs(run)
    assert "PeerLostError: all-to-all, operation" in ending_of(run, 0)
    assert run.numbers() == [0, 1]
    assert remains(run) == undisturbed, outputs(run)


def test_what_breaks_again_while_all_are_alive_ends_the_run_and_is_named(tmp_path: Path, task: Path) -> None:
    run = two_nodes(tmp_path, task)
    cut = Cut(tmp_path, "cut", "worker-1", "optimizer.begin", "CUT", always=True)
    codes = begin(run, "first", Phased(cut), nodes=NODES).wait(LONGEST_S)
    assert set(codes.values()) == {ExitCode.INTERNAL}, outputs(run)
    # Actor and critic may take turns in breaking first.
    verdict = verdict_of(run, run.numbers()[-1])
    before = [broken.what for number in run.numbers()[:-1] for broken in broken_in(run, number)]
    assert len(run.numbers()) <= 3 and len(before) == len(run.numbers()) - 1
    assert verdict.state == "failed" and verdict.call in before, verdict
    assert "for the second time while all were alive: PeerLostError: all-gather, operation" in verdict.reason


def test_a_worker_that_raises_is_the_cause_of_what_it_breaks(tmp_path: Path, task: Path) -> None:
    run = two_nodes(tmp_path, task)
    cut = Cut(tmp_path, "cut", "worker-1", "reduce.begin", "RAISE", nth=2)
    codes = begin(run, "first", Phased(cut), nodes=NODES).wait(LONGEST_S)
    assert set(codes.values()) == {ExitCode.USER_CODE}, outputs(run)
    verdict = verdict_of(run, 0)
    assert (verdict.state, verdict.worker) == ("failed", "worker-1") and "divided by zero" in verdict.reason
    failed = [row for row in rows_of(run.events(0)) if row["event"] == "failed"]
    assert {row["rank"]: row.get("of_peer", False) for row in failed} == {0: True, 1: False}


@pytest.mark.slow
def test_who_is_stopped_while_a_connection_breaks_gives_no_sign_of_life_and_is_lost(
    tmp_path: Path, task: Path, undisturbed: Remains
) -> None:
    run = create_run(tmp_path / "run", tiny_ppo(task, nodes=NODES, workers=1, lost_after_s=24.0))
    cut = Cut(tmp_path, "cut", "worker-0", "reduce.begin", "STOP", "worker-1", nth=11)
    with waking(run, lambda: cut.hit):
        codes = finish(run, Phased(cut), timeout_s=LONGEST_S, nodes=NODES)
    assert codes == [ExitCode.DONE], outputs(run)
    assert ending_of(run, 0) == "worker-1: gave no sign of life within 8 s"
    assert remains(run) == undisturbed, outputs(run)
