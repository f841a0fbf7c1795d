"""A run that is killed anywhere and resumed with other workers ends as if nothing had happened, up to rounding.

No part that has a line is executed again, whoever executed it; steps that were open keep their parts.
"""

import dataclasses
import math
import random
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.chaos import (
    Remains,
    begin,
    create_run,
    outputs,
    remains,
    started_twice,
    toy_experiment,
    wait_until,
)
from support.cluster import alive_of
from support.elastic import (
    Shape,
    Whole,
    add_up_wrongly,
    assert_nearly_equal,
    begin_on,
    compute_on_b_and_a,
    drifts,
    finish_on,
    opened_parts,
    place,
    placed,
    tell_of_another_digest,
    whole,
)
from support.faults import InWorkers, Strike
from support.in_memory import FAST
from support.made_parts import made_in

from hpcrl.durable.history import read_history
from hpcrl.durable.journal import Checkpointed, Done, Trained
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ExitCode
from hpcrl.recipes.algorithm import experiment_from
from hpcrl.recipes.toy import ToyExperiment

TWO, ONE = (1, 2), (1, 1)
CHANGES: list[tuple[Shape, Shape]] = [
    (TWO, ONE),
    (ONE, TWO),
    ((2, 1), (3, 1)),
    ((3, 1), (2, 1)),
    ((1, 4), (2, 1)),
]
# Where everybody is killed: with part of a generation finished, between train steps, before and after a step closes,
# while a checkpoint is written, and before what is behind it is tidied.
POINTS = [
    ("master", "journal.before", 3),
    ("master", "journal.after", 4),
    ("master", "journal.after", 9),
    ("master", "journal.before", 14),
    ("master", "journal.after", 22),
    ("master", "master.sent", 12),
    ("master", "manifest.write", 1),
    ("master", "manifest.published", 1),
    ("housekeeper-0", "compact.published", 1),
    ("worker-0", "spill.published", 1),
    ("worker-0", "spill.published", 5),
    ("worker-0", "worker.executed", 9),
    ("worker-0", "shard.published", 1),
]


# Each point with each change; those are slow but for one change by turns of every other point.
CASES = [
    pytest.param(
        *point, *change, marks=() if (number % 2, (turn - number) % len(CHANGES)) == (0, 0) else pytest.mark.slow
    )
    for number, point in enumerate(POINTS)
    for turn, change in enumerate(CHANGES)
]
LONG = toy_experiment(steps=9)


@pytest.fixture(scope="module")
def reference() -> Whole:
    """What an undisturbed run on two workers leaves."""
    return undisturbed_on_two(toy_experiment())


@pytest.fixture(scope="module")
def long_reference() -> Whole:
    return undisturbed_on_two(LONG)


def undisturbed_on_two(experiment: ToyExperiment) -> Whole:
    with tempfile.TemporaryDirectory(dir=FAST) as name:
        run = create_run(Path(name, "run"), placed(experiment, TWO))
        finish_on(run, experiment_from(run.configuration()))
        return whole(run)


def killed(run: RunDirectory, strike: Strike, nonce: str = "first") -> None:
    """A submission of the run as it was placed last, with everybody killed where the strike says."""
    jobs = begin_on(run, nonce, experiment_from(run.configuration()), strike)
    jobs.wait_for("master", 90)
    jobs.kill_all()
    assert strike.marker.exists(), "the strike never came: the test tests nothing"


@pytest.mark.parametrize(("role", "point", "nth", "before", "after"), CASES)
def test_a_run_killed_anywhere_goes_on_with_other_workers_and_nothing_is_computed_twice(
    folder: Path, reference: Whole, role: str, point: str, nth: int, before: Shape, after: Shape
) -> None:
    run = create_run(folder / "run", placed(toy_experiment(), before))
    killed(run, Strike(folder, "kill", role, point, "KILL", "all", nth))
    finish_on(run, placed(toy_experiment(), after))
    assert_nearly_equal(run, reference)
    assert started_twice(run) == []
    assert alive_of(run.root) == []


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 8))])
def test_a_run_killed_and_moved_again_and_again_ends_as_if_nothing_had_happened(
    folder: Path, long_reference: Whole, seed: int
) -> None:
    dice = random.Random(seed)
    run = create_run(folder / "run", placed(LONG, TWO))
    for number in range(5):
        place(run, f"s{number}", placed(LONG, dice.choice([ONE, TWO, (3, 1)])))
        run.record_submission(f"s{number}", {})
        strike = Strike(folder, f"kill{number}", "master", "journal.after", "KILL", "all", dice.randint(4, 16))
        jobs = begin(run, f"s{number}", strike, nodes=experiment_from(run.configuration()).cluster.nodes)
        if jobs.wait_for("master", 90) == 0:
            break
        jobs.kill_all()
        assert strike.marker.exists(), outputs(run)
    finish_on(run, placed(LONG, TWO))
    assert number >= 2, "it was done before it was moved: the test tests nothing"
    assert_nearly_equal(run, long_reference)
    assert started_twice(run) == []
    assert alive_of(run.root) == []


@pytest.mark.parametrize("after", [ONE, (3, 1), (1, 5)])
def test_a_step_that_was_open_keeps_its_parts_and_those_that_open_later_have_new_ones(
    folder: Path, reference: Whole, after: Shape
) -> None:
    run = create_run(folder / "run", placed(toy_experiment(lost_after_s=20.0, orphan_timeout_s=20.0), (1, 4)))
    # The last worker stops in its part of the first generation: the other three parts are finished.
    jobs = begin_on(
        run,
        "first",
        experiment_from(run.configuration()),
        Strike(folder, "sleep", "worker-3", "worker.call", "STOP", nth=2),
    )
    wait_until(lambda: finished_parts(run, step=1) == {0, 1, 2}, 90, "three of four parts")
    jobs.kill_all()
    before = set(opened_parts(run))
    finish_on(run, placed(toy_experiment(), after))
    workers = after[0] * after[1]
    assert {step: parts for step, parts in opened_parts(run).items() if step in before} == dict.fromkeys(before, 4)
    assert {parts for step, parts in opened_parts(run).items() if step not in before} == {workers}
    again = {it.span.part: it.ranks for it in made_in(run, 1) if (it.step, it.call) == (1, "actor_gen")}
    assert again == {3: (3 % workers,)}
    assert_nearly_equal(run, reference)
    assert started_twice(run) == []


def finished_parts(run: RunDirectory, step: int) -> set[int]:
    """Of the step's generation, those that have a line."""
    events = [line.event for line in read_history(run).lines]
    return {e.part for e in events if isinstance(e, Done) and (e.step, e.call) == (step, "actor_gen")}


def test_a_replay_over_other_workers_may_differ_in_rounding_and_says_so(folder: Path, reference: Whole) -> None:
    run = create_run(folder / "run", placed(toy_experiment(), TWO))
    killed(run, Strike(folder, "kill", "master", "manifest.write", "KILL", "all", 1))
    finish_on(run, placed(toy_experiment(), (3, 1)))
    assert experiment_from(run.configuration()).deterministic
    found = drifts(run)
    assert found and {row["role"] for row in found} == {"actor"}, "the critic has one worker in both"
    assert found[0]["why"].startswith("recorded over 2 workers of 1 thread (")
    assert "), replayed over 3 workers of 1 thread (" in found[0]["why"]
    assert f"; numpy {np.__version__}; d2t1p1)" in found[0]["why"]
    assert {row["unlike"] for row in found} == {""}
    assert_nearly_equal(run, reference)


def test_a_replay_over_as_many_workers_must_give_the_recorded_bits(folder: Path) -> None:
    """The journal is made to tell of another digest: on as many workers that is an error, on others it is not."""
    run = create_run(folder / "run", placed(toy_experiment(), TWO))
    killed(run, Strike(folder, "kill", "master", "manifest.write", "KILL", "all", 1))
    tell_of_another_digest(run, "actor_train")
    jobs = begin_on(run, "same", experiment_from(run.configuration()))
    assert jobs.wait_for("master", 90) == ExitCode.INTERNAL, outputs(run)
    jobs.kill_all()
    [drift] = drifts(run)
    assert drift["why"] == "not explained" and drift["recorded"] == "forged"
    assert "With `hpcrl resume RUN --deterministic false` the run may" in outputs(run)
    finish_on(run, dataclasses.replace(placed(toy_experiment(), TWO), deterministic=False))
    assert drifts(run)[1]["why"].endswith("deterministic: false)")


@pytest.mark.parametrize("factor", [2.0, math.nan])
def test_a_replay_that_gives_other_numbers_is_refused_whatever_explains_other_bits(
    folder: Path, reference: Whole, factor: float
) -> None:
    run = create_run(folder / "run", placed(toy_experiment(), TWO))
    killed(run, Strike(folder, "kill", "master", "manifest.write", "KILL", "all", 1))
    wrong = InWorkers(partial(add_up_wrongly, factor, of="actor"))
    jobs = begin_on(run, "wrong", placed(toy_experiment(), ONE), wrong)
    assert jobs.wait_for("master", 90) == ExitCode.INTERNAL, outputs(run)
    jobs.kill_all()
    (drift,) = (it for it in drifts(run) if it["unlike"])
    assert drift["why"].startswith("recorded over 2 workers") and drift["unlike"].startswith("loss = ")
    assert f"{drift['unlike']}, which is no rounding (recorded over 2 workers" in outputs(run)
    assert "With `hpcrl resume RUN --deterministic false` the run may" in outputs(run)
    finish_on(run, placed(toy_experiment(), ONE))
    assert_nearly_equal(run, reference)


def test_a_step_whose_inputs_were_damaged_is_not_compared(folder: Path) -> None:
    """Other workers make them again with other bits, and may sample another token."""
    run = create_run(folder / "run", placed(toy_experiment(), TWO))
    killed(run, Strike(folder, "kill", "master", "manifest.write", "KILL", "all", 1))
    spills = [path for path in run.spills.rglob("*.h5") if "step-00000001" in str(path)]
    assert spills
    for path in spills:
        path.write_bytes(b"damaged")
    jobs = begin_on(run, "other", placed(toy_experiment(), ONE), InWorkers(partial(add_up_wrongly, 2.0)))
    assert jobs.wait_for("master", 90) == ExitCode.DONE, outputs(run)
    jobs.kill_all()
    why = {row["role"]: (row["why"], row["unlike"]) for row in drifts(run) if row["step"] == 1}
    assert why["critic"] == ("what it consumed was damaged, and computed again", "")
    assert why["actor"][0].startswith("recorded over 2 workers") and not why["actor"][1]


def test_a_run_that_need_not_be_deterministic_goes_on_with_other_numbers(folder: Path) -> None:
    experiment = dataclasses.replace(toy_experiment(), deterministic=False)
    run = create_run(folder / "run", placed(experiment, TWO))
    killed(run, Strike(folder, "kill", "master", "manifest.write", "KILL", "all", 1))
    jobs = begin_on(run, "wrong", placed(experiment, ONE), InWorkers(partial(add_up_wrongly, 2.0)))
    assert jobs.wait_for("master", 90) == ExitCode.DONE, outputs(run)
    jobs.kill_all()
    assert drifts(run)[0]["unlike"].startswith("loss = ")


@pytest.mark.parametrize(
    ("recorded", "code"),
    [({}, ExitCode.INTERNAL), ({"hardware": ("A", "B")}, ExitCode.DONE), ({"software": ("1", "2")}, ExitCode.DONE)],
)
def test_the_same_kinds_of_hardware_at_other_ranks_or_other_software_may_give_other_bits(
    folder: Path, recorded: dict[str, Any], code: ExitCode
) -> None:
    run = create_run(folder / "run", placed(toy_experiment(), TWO))
    killed(run, Strike(folder, "kill", "master", "manifest.write", "KILL", "all", 1))
    numpy = f"numpy {np.__version__}"
    tell_of_another_digest(run, "actor_train", **({"hardware": ("B", "A"), "software": (numpy, numpy)} | recorded))
    jobs = begin_on(run, "again", experiment_from(run.configuration()), InWorkers(compute_on_b_and_a))
    assert jobs.wait_for("master", 90) == code, outputs(run)
    jobs.kill_all()
    assert (drifts(run)[0]["why"] == "not explained") == (code is ExitCode.INTERNAL)


def but_for_settings(left: Remains) -> Remains:
    """Without the version of the settings that each step was made under."""
    return dataclasses.replace(
        left, metrics=tuple({key: row[key] for key in row if key != "settings"} for row in left.metrics)
    )


def test_other_timeouts_on_the_same_workers_keep_every_bit(folder: Path, undisturbed: Remains) -> None:
    run = create_run(folder / "run", toy_experiment())
    killed(run, Strike(folder, "kill", "master", "manifest.write", "KILL", "all", 1))
    finish_on(run, toy_experiment(grace_s=6.0, lost_after_s=2.0))
    assert experiment_from(run.configuration()).cluster.grace_s == 6.0
    assert {row["settings"] for row in remains(run).metrics} == {0, 1}
    assert but_for_settings(remains(run)) == but_for_settings(undisturbed)
    assert drifts(run) == [] and started_twice(run) == []


def test_a_replay_from_a_checkpoint_that_other_workers_replayed_may_differ_too(
    folder: Path, long_reference: Whole
) -> None:
    """Two workers train step 3, one replays steps 1 and 2 and saves them, two replay step 3 from there."""
    run = create_run(folder / "run", placed(LONG, TWO))
    jobs = begin_on(
        run,
        "two",
        experiment_from(run.configuration()),
        Strike(folder, "slow disk", "worker-0", "shard.write", "SLEEP"),
    )
    wait_until(lambda: ("actor_train", 3) in trained(run), 90, "step 3")
    jobs.kill_all()
    assert not checkpointed(run)
    jobs = begin_on(run, "one", placed(LONG, ONE), Strike(folder, "slow", "worker-0", "shard.synced", "SLEEP", nth=3))
    wait_until(lambda: checkpointed(run), 90, "a checkpoint")
    jobs.kill_all()
    assert checkpointed(run) == [2]
    drifted = len(drifts(run))
    finish_on(run, placed(LONG, TWO))
    [drift, *_] = drifts(run)[drifted:]
    assert (drift["step"], drift["role"]) == (3, "actor")
    assert drift["why"] == "the parameters that it began with had other bits already"
    assert_nearly_equal(run, long_reference)
    assert started_twice(run) == []


def trained(run: RunDirectory) -> set[tuple[str, int]]:
    events = [line.event for line in read_history(run).lines]
    return {(event.call, event.step) for event in events if isinstance(event, Trained)}


def checkpointed(run: RunDirectory) -> list[int]:
    events = [line.event for line in read_history(run).lines]
    return [event.step for event in events if isinstance(event, Checkpointed)]
