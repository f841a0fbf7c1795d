"""Where a run's time went adds up to its wall time, and each attempt says what its end has cost."""

import random
from pathlib import Path

import msgspec
import pytest
from support.chaos import begin, create_run, patient_experiment
from support.faults import Strike
from support.made_run import MadeRun
from support.slurm_made import made_on_slurm, reclaim

from hpcrl.events import (
    AgentConnected,
    AttemptEnded,
    CommandHeard,
    StepOpened,
    WorkerConnected,
    WorkersReady,
)
from hpcrl.inspect.reader import RunReader
from hpcrl.inspect.view_tables import ACCOUNTS
from hpcrl.inspect.views.attempts import Ledger, attempts, covered, ledger
from hpcrl.progress import PartExecuted, PartSent


def together(view: Ledger) -> float:
    return sum(getattr(view, name) for name in ACCOUNTS)


def claimed(made: MadeRun) -> float:
    """As if the newest attempt had been claimed now, by the clock of what is made."""
    reclaim(made, time=made.time)
    return made.time


def call(made: MadeRun, step: int, seconds: float, replay: bool = False) -> None:
    made.follow(PartSent(step, "actor_train", 0, (0, 1), replay), 0.0)
    made.follow(PartExecuted(step, "actor_train", 0, (0, 1), seconds, seconds, replay), seconds)


def two_attempts(folder: Path) -> tuple[MadeRun, float]:
    """Work, a pause, a loss in the middle of a call, and a second attempt that makes a step again."""
    made = MadeRun(folder / "run")
    made.begin(ready=False)
    start = claimed(made)
    made.write(AgentConnected(1, "n001", 2, welcome=True), 2.0)
    made.write(WorkerConnected(0, 3), 3.0)
    made.write(WorkersReady(2), 4.0)
    made.write(StepOpened(1, 0, 4), 0.0)
    call(made, 1, 5.0)
    made.close(1, {"step": 1, "epoch": 0, "samples": 4})
    made.write(CommandHeard("pause", "a"), 0.0)
    made.write(CommandHeard("continue", "b"), 6.0)
    made.write(StepOpened(2, 0, 4), 0.0)
    made.follow(PartSent(2, "actor_train", 0, (0, 1)), 1.0)
    made.write(AttemptEnded("lost", "worker-1: killed", 75, "worker-1"), 7.0)
    made.begin(ready=False)
    claimed(made)
    made.write(WorkerConnected(0, 3), 1.0)
    made.write(WorkersReady(2), 1.0)
    call(made, 1, 5.0, replay=True)
    made.write(StepOpened(2, 0, 4), 0.0)
    call(made, 2, 8.0)
    made.close(2, {"step": 2, "epoch": 0, "samples": 4})
    made.write(AttemptEnded("done", "step 2 was the last"), 0.5)
    return made, start


def test_each_second_has_one_account(tmp_path: Path) -> None:
    made, start = two_attempts(tmp_path)
    view = ledger(RunReader(made.run))
    assert together(view) == pytest.approx(view.wall, abs=0.01) and view.wall == pytest.approx(
        made.time - start, abs=0.1
    )
    assert (view.useful, view.recomputed, view.imports, view.load) == pytest.approx((13, 12, 4, 5), abs=0.1)
    assert view.hold == pytest.approx(8.0, abs=0.1), "the first node waited 2 s for the second, and 6 s were a pause"
    assert msgspec.to_builtins(view)["import"] == view.imports


def test_an_attempt_says_who_ended_it_and_what_that_has_cost(tmp_path: Path) -> None:
    first, second = attempts(RunReader(two_attempts(tmp_path)[0].run))
    assert (first.verdict, first.who) == ("hang in starting", "worker-1") and (second.verdict, second.who) == ("", "")
    assert (first.first_step, first.last_step, second.last_step) == (1, 1, 2)
    assert first.lost_s == pytest.approx(12.0, abs=0.1) and first.replayed == 1, "7 s under way, and 5 s again"
    assert first.resumed_s == pytest.approx(7.0, abs=0.1) and second.resumed_s is None
    assert first.nodes == ["n000", "n001"]


@pytest.mark.parametrize("seed", range(12))
def test_the_ledger_adds_up_whatever_is_missing(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    made = made_on_slurm(tmp_path / "run") if seed % 2 else MadeRun(tmp_path / "run")
    for _ in range(rng.randint(1, 4)):
        made.begin(ready=rng.random() < 0.7, paused=rng.random() < 0.3)
        reclaim(made, time=made.time + rng.uniform(-5, 5), pid=rng.randint(1, 2))
        for step in range(rng.randint(0, 3)):
            made.write(StepOpened(step, 0, 4), rng.random())
            call(made, step, rng.random() * 3, replay=rng.random() < 0.5)
            if rng.random() < 0.7:
                made.close(step, {"step": step, "epoch": 0, "samples": 4})
            if rng.random() < 0.5:
                made.write(CommandHeard(rng.choice(("pause", "continue")), "x"), rng.random())
        if rng.random() < 0.7:
            made.write(AttemptEnded("lost", "worker-1", 75, "worker-1"), rng.random())
        made.time += rng.random() * 20
    view = ledger(RunReader(made.run))
    assert together(view) == pytest.approx(view.wall, abs=0.01) and view.wall >= 0
    assert all(getattr(view, name) >= -0.002 for name in ACCOUNTS)


def test_the_time_of_a_real_run_that_lost_a_worker_adds_up(tmp_path: Path) -> None:
    run = create_run(tmp_path / "run", patient_experiment())
    strike = Strike(tmp_path, "kill", "worker-1", "worker.call", "KILL", nth=9)
    assert begin(run, "first", strike).wait(90)["master"] == 0
    reader = RunReader(run)
    view, first = ledger(reader), run.read_claim(0)
    assert first is not None and reader.newest is not None and reader.newest.last is not None
    assert together(view) == pytest.approx(view.wall, abs=0.01)
    assert view.wall == pytest.approx(reader.newest.last - first.time, abs=0.05)
    assert view.useful > 0 and view.imports + view.load > 0
    lost, done = attempts(reader)
    assert (lost.verdict, lost.who, done.verdict) == ("node failure", "worker-1", "")
    assert lost.resumed_s is not None and lost.lost_s > 0


def test_what_several_cover_counts_once() -> None:
    assert covered([(0, 2), (1, 3), (5, 6)]) == 4 and covered([(0, 2), (1, 3), (5, 6)], (1.5, 5.5)) == 2
    assert covered([]) == 0
