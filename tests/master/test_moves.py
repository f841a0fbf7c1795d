"""Calls elsewhere than their roles are trained, each in a layout of its own: whoever is killed, wherever."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.chaos import (
    Remains,
    begin,
    create_run,
    ends_alike,
    finish,
    kill_once,
    outputs,
    remains,
    started_twice,
    whole_run,
)
from support.cluster import alive_of
from support.elastic import Whole, assert_nearly_equal, drifts, finish_on
from support.elastic import whole as whole_of
from support.faults import InWorkers
from support.made_parts import made_in, moves_in
from support.replicas import alone, flip_a_bit, laid_out, otherwise
from support.struck_layouts import Blow

from hpcrl.durable.history import read_history
from hpcrl.durable.journal import Done, Trained
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ExitCode
from hpcrl.placement.plan import plan_for

STEPS = 5
PATIENT = {"lost_after_s": 60.0, "start_timeout_s": 60.0}
"""Nobody is missed only because the machine has much to do, where everybody is killed at once."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return whole_run(tmp_path_factory.mktemp("whole"), laid_out(**PATIENT))


@pytest.fixture(scope="module")
def undisturbed(whole: RunDirectory) -> Remains:
    return remains(whole)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """What a run on one worker leaves."""
    return whole_of(whole_run(tmp_path_factory.mktemp("alone"), alone()))


def test_in_layouts_of_their_own_calls_give_what_they_give_on_one_worker(whole: RunDirectory, reference: Whole) -> None:
    assert_nearly_equal(whole, reference)


def test_each_version_that_is_read_elsewhere_is_moved_there_once(whole: RunDirectory) -> None:
    # Each step reads what the one before has made; what the last one has made is evaluated with.
    assert Counter(moves_in(whole)) == {"actor@1": STEPS + 1, "critic@1": STEPS, "reference@1": STEPS}


def test_lines_have_the_version_that_was_read_or_made(whole: RunDirectory) -> None:
    lines = [line.event for line in read_history(whole).lines if isinstance(line.event, Done | Trained)]
    for line in lines:
        if isinstance(line, Trained) or line.call == "eval_gen":
            assert line.version == line.step
        else:
            assert line.version == (0 if line.call in ("rew_inf", "eval_rew") else line.step - 1), line


def test_a_move_is_sent_once_what_it_brings_is_made(whole: RunDirectory) -> None:
    order = {"actor@1": "actor_train", "critic@1": "critic_train", "reference@1": "ref_blend"}
    made = made_in(whole)
    for move, maker in order.items():
        ends = [it.span.ended_s for it in made if it.call == maker]
        sent = sorted(it.span.sent_s for it in made if it.call == move)
        # The first brings what the run began with.
        assert all(end <= begin for end, begin in zip(ends, sent[1:], strict=False)), move


TARGETS = ("self", "agent-0", "master", "all")
# Worker 1's fifth call of a step is the blend; worker 0 gives what it takes in. (role, point, passage, after what)
POINTS: list[tuple[str, str, int, tuple[str, str, int] | None]] = [
    ("worker-0", "move.begin", 1, None),
    ("worker-3", "move.begin", 3, None),
    ("worker-2", "move.end", 4, None),
    ("worker-0", "worker.call", 1, ("worker-0", "move.end", 3)),
    ("worker-1", "worker.executed", 1, ("worker-1", "move.end", 5)),
    ("master", "master.move", 4, None),
    ("master", "master.moving", 5, None),
    ("master", "master.send", 1, ("master", "master.moving", 6)),
    ("worker-0", "worker.call", 5, None),
    ("worker-1", "worker.call", 10, None),
    ("worker-1", "worker.executed", 5, None),
    ("worker-1", "worker.replied", 10, None),
    ("master", "journal.before", 1, ("worker-1", "worker.replied", 5)),
    ("master", "journal.after", 1, ("worker-1", "worker.replied", 10)),
]


QUICK = {0: "self", 3: "all", 6: "self", 10: "master"}
"""Of the points: one in a move, one between a move and who reads it, one where it is sent, one in a blend."""


def cases() -> Iterator[Any]:
    """Each point with each target; the others are slow."""
    for number, point in enumerate(POINTS):
        for target in TARGETS:
            yield pytest.param(*point, target, marks=() if QUICK.get(number) == target else pytest.mark.slow)


@pytest.mark.parametrize(("role", "point", "nth", "after", "target"), list(cases()))
def test_struck_in_a_move_or_a_blend_it_ends_as_if_nothing_had_happened(
    folder: Path, undisturbed: Remains, role: str, point: str, nth: int, after: tuple[str, str, int] | None, target: str
) -> None:
    run = create_run(folder / "run", laid_out())
    ends_alike(run, undisturbed, *Blow(role, point, nth, target, after).strikes(folder))


def test_a_new_attempt_moves_what_its_unrecorded_calls_read_and_nothing_else(folder: Path) -> None:
    run, at = create_run(folder / "run", laid_out(**PATIENT)), plan_for(laid_out(), 1).at
    kill_once(run, "worker-0", "worker.replied", 13)
    finish(run)
    lines = read_history(run).lines
    assert len(run.numbers()) == 2
    recorded = [line.event for line in lines if line.attempt == 1 and isinstance(line.event, Done)]
    read = {(str(at[done.call]), done.version) for done in recorded if at[done.call].replica}
    assert sorted(moves_in(run, 1)) == sorted(model for model, _ in read) and read


ELASTIC = [("worker-0", "move.end", 4), ("worker-1", "worker.executed", 8), ("master", "journal.after", 12)]


@pytest.mark.parametrize(
    ("role", "point", "nth"), [ELASTIC[0], *(pytest.param(*case, marks=pytest.mark.slow) for case in ELASTIC[1:])]
)
def test_stopped_in_a_step_it_goes_on_where_every_layout_and_replica_is_another(
    folder: Path, reference: Whole, role: str, point: str, nth: int
) -> None:
    run = create_run(folder / "run", laid_out(**PATIENT))
    kill_once(run, role, point, nth)
    finish_on(run, otherwise())
    assert_nearly_equal(run, reference)
    assert started_twice(run) == []
    assert all("recorded over" in drift["why"] or "already" in drift["why"] for drift in drifts(run))
    assert alive_of(run.root) == []


def test_a_bit_that_is_flipped_on_the_way_ends_the_run(folder: Path) -> None:
    run = create_run(folder / "run", laid_out(**PATIENT))
    jobs = begin(run, "flipped", InWorkers(flip_a_bit))
    assert jobs.wait_for("master", 90) == ExitCode.INTERNAL, outputs(run)
    jobs.kill_all()
    assert "version 2 of actor was moved to actor@1, which now has the parameters" in outputs(run)
    assert finish(run) == [0]
