"""A reference that follows the actor: killed anywhere, the run ends as if nothing had happened."""

import dataclasses
from operator import itemgetter
from pathlib import Path

import pytest
from support.chaos import (
    Remains,
    create_run,
    finish,
    kill_once,
    outputs,
    remains,
    started_twice,
    toy_experiment,
    whole_run,
)
from support.choosing import choosing_experiment
from support.cluster import alive_of
from support.covering import covering

from hpcrl.config.ema import EMAConfig
from hpcrl.durable.history import read_history
from hpcrl.durable.journal import Blended, Checkpointed, Closed, Trained
from hpcrl.durable.recovery import plan_next_attempt
from hpcrl.durable.rundir import RunDirectory
from hpcrl.placement.plan import plan_for
from hpcrl.recipes.toy import ToyExperiment

STEPS = 5
POINTS = [
    *(("master", "journal.before", nth) for nth in (4, 8, 12, 16)),
    *(("master", "journal.after", nth) for nth in (5, 9, 11, 13, 15, 17, 19, 21)),
    ("master", "master.sent", 11),
    ("master", "master.sent", 16),
    ("master", "manifest.write", 1),
    ("master", "manifest.published", 2),
    ("master", "prune.unlink", 1),
    *(("worker-0", "worker.executed", nth) for nth in (4, 5, 6, 7, 11)),
    ("worker-1", "worker.replied", 7),
    ("worker-0", "shard.write", 1),
    ("worker-1", "shard.synced", 2),
    ("worker-1", "shard.published", 4),
]


def following(decay: float | None = 0.9, every: int = 1, steps: int = STEPS) -> ToyExperiment:
    toy = toy_experiment(steps=steps)
    ema = EMAConfig(decay=decay, every=every)
    return dataclasses.replace(toy, toy=dataclasses.replace(toy.toy, reference_ema=ema))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return whole_run(tmp_path_factory.mktemp("whole"), following())


@pytest.fixture(scope="module")
def undisturbed(whole: RunDirectory) -> Remains:
    return remains(whole)


def blends(run: RunDirectory) -> list[Blended]:
    return [line.event for line in read_history(run).lines if isinstance(line.event, Blended)]


def test_a_blend_is_recorded_after_the_train_step_that_it_reads_and_saved_with_the_step(whole: RunDirectory) -> None:
    events = [line.event for line in read_history(whole).lines]
    for step in range(1, STEPS + 1):
        (at,) = (i for i, event in enumerate(events) if isinstance(event, Blended) and event.step == step)
        blended = events[at]
        assert isinstance(blended, Blended) and blended.record["decay"] == 0.9
        before = [event for event in events[:at] if isinstance(event, Trained) and event.step == step]
        assert blended.source in [event.record["digest"] for event in before if event.call == "actor_train"]
        assert not any(isinstance(event, Closed) and event.step == step for event in events[:at])
    assert any(isinstance(event, Checkpointed) for event in events)
    digests = [line.record["digest"] for line in blends(whole)]
    assert [line.before for line in blends(whole)] == ["", *digests[:-1]] and len(set(digests)) == STEPS
    recovery = plan_next_attempt(whole, plan_for(following(), 1).changes)
    assert recovery.checkpoint is not None and recovery.checkpoint.digests["reference"] == digests[-1]
    assert recovery.checkpoint.roles.keys() == {"actor", "critic", "reference"}


def test_a_reference_that_follows_gives_other_numbers_than_one_that_does_not(folder: Path, whole: RunDirectory) -> None:
    still, moved = remains(whole_run(folder, toy_experiment(steps=STEPS))).metrics, remains(whole).metrics
    assert still[1]["ref_inf/z"] == moved[1]["ref_inf/z"] and still[2]["ref_inf/z"] != moved[2]["ref_inf/z"]


def test_between_two_changes_the_reference_stays_as_it_is(folder: Path) -> None:
    run = whole_run(folder, following(decay=0.0, every=2))
    assert [line.record["decay"] for line in blends(run)] == [1.0, 0.0, 1.0, 0.0, 1.0]


def choosing() -> ToyExperiment:
    experiment = choosing_experiment()
    return dataclasses.replace(experiment, toy=dataclasses.replace(experiment.toy, reference_ema=EMAConfig(decay=0.5)))


@pytest.fixture(scope="module")
def chosen(tmp_path_factory: pytest.TempPathFactory) -> Remains:
    run = whole_run(tmp_path_factory.mktemp("chosen"), choosing())
    assert blends(run)
    return remains(run)


@pytest.mark.parametrize(
    ("point", "nth"),
    [
        ("journal.after", 13),
        *(pytest.param(*it, marks=pytest.mark.slow) for it in [("master.sent", 17), ("journal.before", 20)]),
    ],
)
def test_where_steps_choose_their_rows_it_ends_as_if_nothing_had_happened(
    folder: Path, chosen: Remains, point: str, nth: int
) -> None:
    run = create_run(folder / "run", choosing())
    kill_once(run, "master", point, nth)
    finish(run)
    assert remains(run) == chosen, outputs(run)
    assert started_twice(run) == []


@pytest.mark.parametrize(
    ("role", "point", "nth"), covering(POINTS, itemgetter(0), lambda point: point[1].partition(".")[0])
)
def test_killed_anywhere_it_ends_as_if_nothing_had_happened(
    folder: Path, undisturbed: Remains, role: str, point: str, nth: int
) -> None:
    run = create_run(folder / "run", following())
    kill_once(run, role, point, nth)
    recovery = plan_next_attempt(run, plan_for(following(), 1).changes)
    assert ("ref_blend" in recovery.describe()) == any(isinstance(line, Blended) for line in recovery.replay)
    finish(run)
    assert remains(run) == undisturbed, outputs(run)
    assert started_twice(run) == []
    assert alive_of(run.root) == []
