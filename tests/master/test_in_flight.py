"""Rows in flight: a step trains on those that end first, others go on in the next; killed anywhere, bit for bit so."""

import hashlib
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from support.chaos import Remains, begin, create_run, ends_alike, finish, outputs, remains, started_twice
from support.choosing import after_deciding, decisions, events_of, struck_cases
from support.elastic import Shape, Whole, assert_nearly_equal, begin_on, finish_on, placed, whole
from support.faults import After, Strike, Strikes
from support.in_flight import flying_experiment
from support.in_memory import FAST

from hpcrl.config.control import Frequency
from hpcrl.data.order import group_of
from hpcrl.data.samples import sample_seed
from hpcrl.durable.archives import read_archive
from hpcrl.durable.checkpoints import read_shard
from hpcrl.durable.cuts import manifests_of
from hpcrl.durable.history import read_history
from hpcrl.durable.recovery import plan_next_attempt
from hpcrl.durable.rundir import RunDirectory
from hpcrl.durable.step_lines import StepLines, steps_in
from hpcrl.inspect.reader import merged_metrics
from hpcrl.launch.fork import make_fork, plan_fork
from hpcrl.placement.plan import plan_for
from hpcrl.recipes.algorithm import experiment_from
from hpcrl.recipes.toy import ToyExperiment

DECISIONS = ["E1", "E1", "C1", "E2", "C2", "C3", "C4", "E5", "C5", "E6", "C6"]

# Of these decisions, the points before the line, between it and what it causes, and behind that.
STRUCK = {"second round": 0, "third round": 1, "chosen": 2, "round of what is carried": 3, "chosen at once": 5}
POINTS = [
    ("master", "journal.before"),
    ("master", "journal.after"),
    ("master", "master.send"),
    ("master", "manifest.published"),
    ("worker-0", "worker.call"),
    ("worker-1", "worker.executed"),
    ("worker-1", "spill.write"),
    ("worker-0", "spill.published"),
    ("housekeeper-0", "archive.published"),
]


def is_quick(number: int, turn: int, target: str) -> bool:
    """One of each decision."""
    return number == turn and target == ("self" if number % 2 else "all")


@pytest.fixture(scope="module")
def undisturbed() -> Iterator[Remains]:
    with tempfile.TemporaryDirectory(dir=FAST) as name:
        run = create_run(Path(name, "run"), flying_experiment())
        assert finish(run) == [0], outputs(run)
        assert decisions(run) == DECISIONS
        yield remains(run)


@pytest.mark.parametrize(("role", "point", "decision", "target"), [*struck_cases(POINTS, STRUCK, is_quick)])
def test_a_run_struck_in_any_round_ends_as_if_nothing_had_happened(
    folder: Path, undisturbed: Remains, role: str, point: str, decision: int, target: str
) -> None:
    strikes = after_deciding(folder, decision, role, point, target=target)
    run = create_run(folder / "run", flying_experiment())
    ends_alike(run, undisturbed, *strikes)
    assert decisions(run) == DECISIONS


@pytest.mark.parametrize("decision", [pytest.param(n, marks=() if n == 2 else pytest.mark.slow) for n in range(9)])
def test_a_master_killed_while_it_decides_decides_the_same_again(
    folder: Path, undisturbed: Remains, decision: int
) -> None:
    strike = Strike(folder, "kill", "master", "master.choose", "KILL", nth=decision + 1)
    run = create_run(folder / "run", flying_experiment())
    ends_alike(run, undisturbed, strike)
    assert decisions(run) == DECISIONS


def steps_of(run: RunDirectory) -> dict[int, StepLines]:
    return {step: lines for step, lines in steps_in(events_of(run)).items() if step}


def drawn_in(lines: StepLines) -> list[tuple[str, ...]]:
    return [*lines.in_rounds("actor_gen").values()]


def often(experiment: ToyExperiment) -> ToyExperiment:
    """A checkpoint a step, all of which are kept."""
    control = replace(experiment.control, checkpoint=Frequency(steps=1), keep_checkpoints=20)
    return replace(experiment, control=control)


def rounds_of(sample: str) -> int:
    return int(np.random.default_rng(sample_seed(1, 0, "rounds", sample)).integers(1, 4))


def actors(run: RunDirectory) -> dict[int, np.ndarray]:
    """Step → the actor as it has left it; 0: as it began."""
    first = int.from_bytes(hashlib.blake2b(b"actor", digest_size=8).digest(), "little")
    found = {0: np.random.default_rng(first).standard_normal(16)}
    for step, manifest in manifests_of(run, read_history(run))[1].items():
        pieces = [read_shard(run.root / shard.name) for shard in manifest.roles["actor"]]
        found[step] = np.concatenate([arrays["w"] for arrays, _ in sorted(pieces, key=lambda it: it[1]["offset"])])
    return found


@pytest.mark.parametrize("max_age", [None, 0])
def test_each_round_of_a_row_is_made_once_by_the_actor_of_its_step(folder: Path, max_age: int | None) -> None:
    """Against the sum by hand, over the rounds in which a row was drawn; those too old are begun anew."""
    run = create_run(folder / "run", often(flying_experiment(max_age=max_age)))
    assert finish(run) == [0], outputs(run)
    seed, w = experiment_from(run.configuration()).seed, actors(run)
    assert seed == 1
    made: dict[str, list[int]] = {}  # the steps of the rounds that a row has so far
    anew = 0
    for step, lines in steps_of(run).items():
        for sample in lines.opened.ids:
            anew += sample in made and sample not in lines.opened.begun
            made[sample] = made.get(sample, []) if sample in lines.opened.begun else []
        for drawn in drawn_in(lines):
            for sample in drawn:
                if len(made.setdefault(sample, [])) < rounds_of(sample):
                    made[sample].append(step)
        ends = {sample for sample, rounds in made.items() if len(rounds) == rounds_of(sample)}
        assert ends.issuperset(lines.trained) and len(lines.trained) == 12
        assert {sample for each in lines.carried for sample in each.ids} == set(lines.ids) - set(lines.trained)
        _, archive = read_archive(archive_of(run, step))
        data = dict(zip(archive["train"].ids, archive["train"].rows("y"), strict=True))
        x = dict(zip(archive["train"].ids, archive["train"].rows("x"), strict=True))
        for sample in lines.trained:
            y, left = np.resize(x[sample], 16), rounds_of(sample)
            for number, of_step in enumerate(made[sample]):
                noise = np.random.default_rng(sample_seed(1, left - number, "drawn", sample)).standard_normal(16)
                y = y + w[of_step - 1] + noise
            np.testing.assert_array_equal(data[sample], y)
    assert (anew > 0) == (max_age == 0)
    long = [rounds for rounds in made.values() if len(set(rounds)) > 1]
    assert bool(long) == (max_age is None), "some are of several actors, unless none may be that old"


def archive_of(run: RunDirectory, step: int) -> Path:
    [found] = (path for path in run.samples.rglob("*.h5") if f"step-{step:08d}" in str(path))
    return found


def test_rows_are_in_flight_until_they_end_and_the_first_to_end_are_trained_on(undisturbed: Remains) -> None:
    order = list(dict.fromkeys(chain(*undisturbed.ids.values())))
    epochs = [int(group_of(sample).rpartition("@")[2]) for sample in order]
    assert epochs == sorted(epochs) and epochs[-1] > 0
    trained = list(chain(*undisturbed.trained.values()))
    assert len(trained) == len(set(trained)) == 6 * 12, "none is trained on twice"
    for row in undisturbed.metrics[1:]:
        assert row["samples"] == 12 and row["drawn"] == 12 + row["carried"]


def test_so_many_groups_are_in_flight_in_each_round(folder: Path) -> None:
    run = create_run(folder / "run", flying_experiment(in_flight=11))
    assert finish(run) == [0], outputs(run)
    whole = 0
    for lines in steps_of(run).values():
        for number, drawn in enumerate(drawn_in(lines)):
            groups = len(set(map(group_of, drawn)))
            assert groups == 11 + (0 if number else whole) or (whole >= 6 and not number), "none is begun for nothing"
        assert lines.chosen is not None
        whole = lines.chosen.whole


def test_a_lost_file_of_what_is_carried_costs_the_checkpoint_and_nothing_else(
    folder: Path, undisturbed: Remains
) -> None:
    run = create_run(folder / "run", flying_experiment())
    kept = Strike(folder, "kept", "master", "manifest.published", "NOTHING", "self", 2)
    kill = After(folder, "kill", "master", "master.choose", "KILL", "all", first=kept)
    jobs = begin(run, "first", Strikes((kept, kill)))
    jobs.wait_for("master", 90)
    jobs.kill_all()
    assert [*manifests_of(run, read_history(run))[0]] == [4, 2]
    lost = steps_of(run)[4].carried[-1]
    [spill] = run.step_spills(4).glob(f"{lost.call}.dp{lost.part:02d}.*")
    spill.write_bytes(spill.read_bytes()[:-3])
    damage = plan_next_attempt(run, plan_for(flying_experiment()).changes)
    assert damage.checkpoint is not None and damage.checkpoint.step == 2
    assert f"step 4 {lost.call}, part {lost.part}, which step 5 goes on from, is lost" in damage.damage
    finish(run)
    assert remains(run, damaged=True) == undisturbed, outputs(run)


@pytest.mark.parametrize("step", [2, 5])
def test_lost_files_of_rounds_are_made_again_from_what_was_carried_into_them(
    folder: Path, undisturbed: Remains, step: int
) -> None:
    """Of step 2 no checkpoint is there yet, so that step 1 is read; step 5 follows one."""
    run = create_run(folder / "run", flying_experiment())
    strike = Strike(folder, "kill", "master", "master.choose", "KILL", "all", nth=5 if step == 2 else 9)
    jobs = begin(run, "first", strike)
    jobs.wait_for("master", 90)
    jobs.kill_all()
    lost = [*run.step_spills(step).iterdir()]
    assert len(lost) >= 4 and strike.marker.exists()
    for spill in lost:
        spill.write_bytes(spill.read_bytes()[:-3])
    finish(run)
    assert remains(run, damaged=True) == undisturbed, outputs(run)
    assert decisions(run) == DECISIONS


def test_a_fork_begins_anew_what_its_parent_has_in_flight(folder: Path) -> None:
    parent = create_run(folder / "run", flying_experiment())
    assert finish(parent) == [0], outputs(parent)
    run = make_fork(plan_fork(parent.root, 4, (), folder / "fork"))
    assert finish(run) == [0], outputs(run)
    theirs, own = steps_of(parent), steps_of(run)
    assert own[5].opened.begun == {} and theirs[5].opened.begun
    carried = [sample for each in theirs[4].carried for sample in each.ids]
    assert list(own[5].opened.ids[: len(carried)]) == carried, "nobody's prompt is left out"


def test_a_run_that_is_extended_goes_on_with_what_its_last_step_left(folder: Path, undisturbed: Remains) -> None:
    run = create_run(folder / "run", flying_experiment(steps=4))
    assert finish(run) == [0], outputs(run)
    finish_on(run, flying_experiment())
    found = remains(run)
    assert (found.ids, found.trained, found.parameters) == (
        undisturbed.ids, undisturbed.trained, undisturbed.parameters,
    )  # fmt: skip


TWO, ONE, THREE = (1, 2), (1, 1), (1, 3)


@pytest.fixture(scope="module")
def on_two() -> Whole:
    with tempfile.TemporaryDirectory(dir=FAST) as name:
        run = create_run(Path(name, "run"), placed(flying_experiment(), TWO))
        finish_on(run, experiment_from(run.configuration()))
        return whole(run)


@pytest.mark.parametrize("decision", [1, 4], ids=["in a round", "carried"])
@pytest.mark.parametrize(("before", "after"), [(TWO, THREE), pytest.param(TWO, ONE, marks=pytest.mark.slow)])
def test_rounds_go_on_with_another_number_of_workers(
    folder: Path, on_two: Whole, decision: int, before: Shape, after: Shape
) -> None:
    run = create_run(folder / "run", placed(flying_experiment(), before))
    decided, strike = after_deciding(folder, decision, "worker-0", "worker.replied", target="all")
    jobs = begin_on(run, "first", experiment_from(run.configuration()), Strikes((decided, strike)))
    jobs.wait_for("master", 90)
    jobs.kill_all()
    assert strike.marker.exists()
    finish_on(run, placed(flying_experiment(), after))
    assert_nearly_equal(run, on_two)
    assert started_twice(run) == []


def test_the_metrics_of_a_call_are_of_all_its_rounds(folder: Path) -> None:
    run = create_run(folder / "run", flying_experiment(steps=2))
    assert finish(run) == [0], outputs(run)
    names = {name for row in merged_metrics(run) for name in row}
    assert "actor_gen/norm" in names and not any(name.startswith("actor_gen_") for name in names)
