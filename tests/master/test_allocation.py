"""Nodes that do not come: who is waited for, how often, and when a run gives up."""

import math
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.allocations import Lacks
from support.chaos import create_run, outputs, rows_of, toy_experiment, wait_until
from support.cluster import start

from hpcrl.durable.records import Verdict
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ExitCode
from hpcrl.events import AllocationSilent, Event, NodesMissing
from hpcrl.master.allocation import Absence, AllocationWatch
from hpcrl.master.node_wait import FAILED_RENDEZVOUS_LIMIT


def made(tmp_path: Path, **cluster: object) -> RunDirectory:
    return create_run(tmp_path / "run", toy_experiment(steps=30 if "nodes" in cluster else 2, **cluster))


def meet(run: RunDirectory, absence: Absence, submission: str = "first") -> Verdict:
    """A master whose node never comes, to its end."""
    code = start(run.root, submission, nodes=0, allocation=Lacks(absence)).wait_for("master", 90)
    verdict = run.read_verdict(max(run.numbers()))
    assert verdict is not None and verdict.exit_code == code, outputs(run)
    return verdict


@pytest.mark.parametrize("standing", ["silent", "held"])
def test_a_run_whose_nodes_never_come_gives_up(tmp_path: Path, standing: str) -> None:
    run = made(tmp_path, start_timeout_s=0.8)
    absence = Absence(standing, "job 7_0 is so and so")  # type: ignore[arg-type]
    for _ in range(FAILED_RENDEZVOUS_LIMIT - 1):
        verdict = meet(run, absence)
        assert (verdict.state, verdict.exit_code) == ("incomplete", ExitCode.REQUEUE)
        assert "node 0: job 7_0 is so and so" in verdict.reason and "start_timeout_s" in verdict.reason
    verdict = meet(run, absence)
    assert (verdict.state, verdict.exit_code) == ("failed", ExitCode.NEVER_REQUEUE)
    assert f"for the {FAILED_RENDEZVOUS_LIMIT}th time in a row" in verdict.reason and "hpcrl resume" in verdict.reason
    assert meet(run, absence, "resumed").state == "incomplete", "somebody has put it right: it is counted anew"


def test_a_run_whose_nodes_wait_for_their_turn_never_gives_up(tmp_path: Path) -> None:
    run = made(tmp_path, start_timeout_s=0.8)
    for _ in range(FAILED_RENDEZVOUS_LIMIT + 2):
        verdict = meet(run, Absence("queued", "job 7_0 is pending (Priority)"))
        assert (verdict.state, verdict.exit_code) == ("queued", ExitCode.REQUEUE)


def test_a_node_that_is_gone_for_good_ends_the_run_long_before_the_deadline(tmp_path: Path) -> None:
    run = made(tmp_path, start_timeout_s=300.0)
    verdict = meet(run, Absence("gone", "job 7_0 was cancelled"))
    assert (verdict.state, verdict.exit_code) == ("failed", ExitCode.NEVER_REQUEUE)
    assert "node 0: job 7_0 was cancelled. `hpcrl resume" in verdict.reason


def test_an_agent_that_only_another_submission_starts_again_is_not_waited_for(tmp_path: Path) -> None:
    run = made(tmp_path, start_timeout_s=300.0)
    verdict = meet(run, Absence("ended", "agent-0 was killed"))
    assert (verdict.state, verdict.exit_code) == ("incomplete", ExitCode.REQUEUE)
    assert "agent-0 was killed. `hpcrl resume" in verdict.reason and "start_timeout_s" not in verdict.reason


@dataclass(frozen=True)
class Broken:
    """An allocation with a bug."""

    def ends(self) -> Mapping[int, float]:
        raise KeyError("ends")

    def replace_missing(self, missing: Mapping[int, tuple[int, int] | None]) -> Mapping[int, Absence]:
        raise ValueError("absences")


def test_whatever_goes_wrong_in_asking_does_not_end_the_run() -> None:
    noted: list[Event] = []
    watch = AllocationWatch(Broken(), noted.append)
    watch.ask_ends()
    watch.poll({3: None}, every_s=0.05)
    deadline, silent = time.monotonic() + 30, list[str]()
    while len(silent) < 2 and time.monotonic() < deadline:
        assert watch.time_left_s() == math.inf
        watch.poll({3: None}, every_s=0.05)
        time.sleep(0.01)
        silent = [event.error for event in noted if isinstance(event, AllocationSilent)]
    assert sorted(silent) == ["KeyError: 'ends'", "ValueError: absences"]


def learn(watch: AllocationWatch, *looks: Absence) -> dict[int, str]:
    for absence in looks:
        watch._learn({3: absence})
    return watch.gone


def test_one_look_does_not_make_a_node_gone() -> None:
    noted: list[Event] = []
    watch = AllocationWatch(None, noted.append)
    gone, queued = Absence("gone", "was cancelled"), Absence("queued", "is pending")
    assert learn(watch, gone) == {}
    assert learn(watch, queued, gone) == {}
    assert learn(watch, gone) == {3: "was cancelled"}
    watch.found_all()
    assert learn(watch, gone) == {}
    assert noted[0] == NodesMissing({3: "was cancelled"})


def test_a_node_that_was_asked_about_rarely_is_asked_about_as_soon_as_it_is_waited_for() -> None:
    asked, noted, now = list[float](), list[Event](), [1000.0]

    class Slurm:
        def replace_missing(self, missing: Collection[int]) -> dict[int, Absence]:
            asked.append(now[0])
            return {node: Absence("queued", "job 8_3 is pending") for node in missing}

    watch = AllocationWatch(Slurm(), noted.append, lambda: now[0], lambda: now[0], at_once)  # type: ignore[arg-type]
    for second in range(70):
        now[0] = 1000.0 + second
        watch.poll({3: None}, **({"every_s": 60.0} if second < 40 else {"waits_s": 900.0}))
    assert asked == [1000.0, 1040.0, 1055.0]
    watch.found_all()
    for second in (70, 71):
        now[0] = 1000.0 + second
        watch.poll({3: None}, waits_s=870.0)
    assert [event.until for event in noted if isinstance(event, NodesMissing)] == [None, 1941.0]


def at_once(call: Callable[[], Any]) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(call())
    return future


def test_a_node_that_comes_while_it_is_asked_about_is_not_said_to_be_missing() -> None:
    class Slurm:
        def replace_missing(self, missing: Collection[int]) -> dict[int, Absence]:
            return {node: Absence("queued", f"job 8_{node} is running") for node in missing}

    noted: list[Event] = []
    watch = AllocationWatch(Slurm(), noted.append, ask=at_once)  # type: ignore[arg-type]
    watch.poll({1: None, 3: None})
    watch.poll({3: None})
    assert noted == [NodesMissing({3: "job 8_3 is running"})] and list(watch.absences) == [3]


def test_nodes_of_which_nothing_is_known_do_not_only_queue() -> None:
    watch = AllocationWatch(None, lambda event: None)
    learn(watch, Absence("queued", "is pending"))
    assert watch.only_queue([3])
    assert not watch.only_queue([3, 4])


def test_a_second_master_of_a_submission_takes_the_agents_over(tmp_path: Path) -> None:
    """Split brain: the node of the master is given up by Slurm, its process lives on, and its job is started again."""
    here = {"type": "slurm", "topology": "array", "nodes": 2, "workers_per_node": 1}
    run = made(tmp_path, **here, start_timeout_s=30.0, replace_timeout_s=20.0)
    jobs = start(run.root, "first", nodes=2)
    try:
        wait_until(lambda: any(run.has_adopted(n) for n in run.numbers()), 90, "the first attempt")
        second = start(run.root, "first", nodes=0)
        assert second.wait_for("master", 90) == ExitCode.DONE, outputs(run)
        codes = jobs.wait(90)
        assert codes["agent-0"] == codes["agent-1"] == ExitCode.DONE
        assert codes["master"] == ExitCode.NEVER_REQUEUE
        verdicts = [run.read_verdict(number) for number in run.numbers()]
        assert [verdict and verdict.state for verdict in verdicts][-1] == "done"
        assert "superseded" in [verdict and verdict.state for verdict in verdicts][:-1]
    finally:
        jobs.kill_all()


def test_an_agent_goes_over_to_a_second_master_before_its_attempt_has_a_plan(tmp_path: Path) -> None:
    here = {"type": "slurm", "topology": "array", "nodes": 2, "workers_per_node": 1}
    run = made(tmp_path, **here, start_timeout_s=60.0, replace_timeout_s=60.0)

    def met(attempt: int) -> bool:
        return any(row["event"] == "node" for row in rows_of(run.events(attempt)))

    first = start(run.root, "first", nodes=1)
    second = None
    try:
        wait_until(lambda: run.numbers() and met(0), 90, "the agent in the first attempt")
        assert not run.plan(0).exists()
        second = start(run.root, "first", nodes=0)
        wait_until(lambda: len(run.numbers()) > 1 and met(1), 60, "the agent in the second attempt")
    finally:
        for jobs in filter(None, (first, second)):
            jobs.kill_all()
