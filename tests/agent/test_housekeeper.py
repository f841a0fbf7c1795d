"""A node's housekeeper: what it leaves when a chore is done, done again, cut short, or too late."""

import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from support.chaos import create_run, toy_experiment
from support.faults import Strike
from support.kills import KillAt, Recorder, in_child

from hpcrl.agent.housekeeper import Housekeeper, Housework, keep_house, patience_s
from hpcrl.agent.zygote import Work, Zygote
from hpcrl.data.samples import SequenceSample
from hpcrl.durable.exclusive import AlreadyPublishedError
from hpcrl.durable.files import is_temporary
from hpcrl.durable.rundir import RunDirectory
from hpcrl.durable.spills import SpillRef, group_name, read_spill, write_spill
from hpcrl.wire.chores import ChoreDone, ChoreFailed, ChoreReport, KeepStep, MadePart, RemoveParts

PATIENCE_S = 60.0
STEP = 3


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = create_run(tmp_path / "run", toy_experiment())
    run.claim_attempt("first")
    return run


def chore(run: RunDirectory, attempt: int = 0) -> KeepStep:
    """Two parts to merge; nothing of them stays."""
    parts = []
    for part in range(2):
        sample = SequenceSample.from_rows([f"r{part}"], {"y": [np.arange(part + 1)]})
        spill = write_spill(run.files, run.spill(STEP, "gen", part, attempt), sample)
        parts.append(MadePart("gen", part, SpillRef(spill)))
    return KeepStep(attempt, STEP, {}, tuple(parts), (), merges=True)


def test_a_chore_that_is_done_again_leaves_and_tells_what_it_did_the_first_time(run: RunDirectory) -> None:
    keep, work = chore(run), Housework(run, 0)
    first = work.do(keep)
    assert isinstance(first, ChoreDone) and first.merged is not None and first.archive is None
    assert work.do(keep) == first
    assert read_spill(run.files.path(first.merged), group_name("gen", 1)).ids == ("r1",)
    assert work.do(RemoveParts(0, STEP)) == work.do(RemoveParts(0, STEP)) == ChoreDone(0, STEP)
    assert run.files.listing(run.spills) == [run.compacted(STEP, 0).name]


def test_a_chore_killed_at_any_point_is_done_by_the_next(run: RunDirectory) -> None:
    recorder = Recorder()
    keep = chore(run, attempt=0)
    expected = Housework(RunDirectory(run.root, recorder), 0).do(keep)
    for number in range(len(recorder.points)):
        run.compacted(STEP, 0).unlink()
        struck = Housework(RunDirectory(run.root, KillAt(number)), 0)
        assert in_child(partial(struck.do, keep)) == -signal.SIGKILL
        assert Housework(run, 0).do(keep) == expected
        assert [name for name in run.files.listing(run.spills) if is_temporary(name)] == []


def test_another_content_under_the_name_is_told_and_not_taken(run: RunDirectory) -> None:
    keep = chore(run)
    run.files.publish(run.compacted(STEP, 0), b"another", "x")
    told = Housework(run, 0).do(keep)
    assert isinstance(told, ChoreFailed) and "already published" in told.error and not told.elsewhere
    with pytest.raises(AlreadyPublishedError):
        run.files.publish_alike(run.compacted(STEP, 0), [b"a third"], "x")


def test_a_part_that_is_damaged_is_named(run: RunDirectory) -> None:
    keep = chore(run)
    run.files.path(keep.parts[1].spill.file).unlink()
    told = Housework(run, 0).do(keep)
    assert isinstance(told, ChoreFailed) and told.damage == f"{keep.parts[1].spill.path} is missing"


def test_once_superseded_it_makes_no_archive(run: RunDirectory) -> None:
    keep = chore(run)
    run.claim_attempt("second")
    run.files.publish(run.adopted(1), b"", "adopted")
    told = Housework(run, 0).do(keep)
    assert isinstance(told, ChoreFailed) and "superseded" in told.error
    assert not run.compacted(STEP, 0).exists()


# ── its process ───────────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.fixture
def started(run: RunDirectory, tmp_path: Path) -> Iterator[Callable[[str], Housekeeper]]:
    """A housekeeper whose process is sent a signal as it begins its first chore."""
    zygotes: list[Zygote] = []

    def start(what: str) -> Housekeeper:
        strike = Strike(tmp_path, "strike", "housekeeper-0", "chore.begin", what)
        work = Work(lambda _: 1, lambda args, channel: keep_house(args, channel, strike))
        zygotes.append(Zygote(("hpcrl.workers.toy:ToyHost",), work))
        return Housekeeper(zygotes[-1], run, 0, heartbeat_s=0.05, patience_s=0.5)

    yield start
    for zygote in zygotes:
        zygote.close()


def next_report(keeper: Housekeeper) -> ChoreReport:
    """As an agent waits for it."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        select.select([keeper, keeper._zygote], [], [], 0.1)
        ended = [report for exited in keeper._zygote.exits() if (report := keeper.ended(exited)) is not None]
        if reports := [*ended, *keeper.reports()]:
            return reports[0]
    raise AssertionError("nothing was told")


@pytest.mark.parametrize(("what", "how"), [("KILL", "killed by SIGKILL"), ("STOP", "killed by SIGKILL")])
def test_one_that_ends_or_gives_no_sign_of_life_is_told_of_and_the_next_process_does_it(
    run: RunDirectory, started: Callable[[str], Housekeeper], what: str, how: str
) -> None:
    keep, keeper = chore(run), started(what)
    keeper.order(keep)
    told = next_report(keeper)
    assert told == ChoreFailed(0, STEP, f"its housekeeper ended: {how}", 75, elsewhere=True)
    keeper.order(keep)
    done = next_report(keeper)
    assert isinstance(done, ChoreDone) and done.merged is not None
    keeper.order(RemoveParts(0, STEP))
    assert next_report(keeper) == ChoreDone(0, STEP)
    [own] = keeper._zygote.alive.values()
    assert os.getpriority(os.PRIO_PROCESS, own.pid) > os.getpriority(os.PRIO_PROCESS, 0)
    assert keeper._zygote.pids() == {}, "it is no worker"
    keeper.close()


def test_one_that_gets_no_cpu_for_longer_than_others_may_be_silent_is_not_taken_to_hang() -> None:
    assert patience_s(0.8) == 30.0 and patience_s(9.0) == 90.0


def test_of_an_older_attempt_nothing_is_told(run: RunDirectory, started: Callable[[str], Housekeeper]) -> None:
    keeper = started("NOTHING")
    run.claim_attempt("second")
    keeper.order(chore(run, attempt=0))
    keeper.order(newer := chore(run, attempt=1))
    assert next_report(keeper).attempt == newer.attempt
    keeper.close()
