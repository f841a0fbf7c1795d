"""Steps that choose the rows that they train on: killed anywhere, they draw and choose as if nothing had happened."""

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.chaos import Remains, begin, create_run, finish, outputs, remains, started_twice
from support.choosing import DECISIONS, after_deciding, choosing_experiment, decisions, events_of, struck_cases
from support.cluster import alive_of
from support.elastic import Shape, Whole, assert_nearly_equal, begin_on, finish_on, placed, whole
from support.faults import Ordering, Strike, Strikes
from support.in_memory import FAST

from hpcrl.config.ema import EMAConfig
from hpcrl.data.order import group_of
from hpcrl.durable.journal import Closed, Done, encode_line, parse
from hpcrl.durable.records import Command
from hpcrl.durable.rundir import RunDirectory
from hpcrl.durable.step_lines import steps_in
from hpcrl.errors import ExitCode
from hpcrl.inspect.reader import RunReader, merged_metrics
from hpcrl.inspect.status_text import status_text
from hpcrl.inspect.views.status import read_status
from hpcrl.inspect.views.steps import steps
from hpcrl.launch.fork import make_fork, plan_fork
from hpcrl.launch.submit import describe_recovery
from hpcrl.recipes.algorithm import experiment_from

# Of these decisions, the points before the line, between it and what it causes, and behind that.
STRUCK = {"first round": 0, "second round": 1, "chosen": 2, "chosen, then evaluated": 6}
POINTS = [
    ("master", "journal.before"),
    ("master", "journal.after"),
    ("master", "master.send"),
    ("master", "master.sent"),
    ("worker-0", "worker.call"),
    ("worker-1", "worker.executed"),
    ("worker-0", "spill.published"),
]


def is_quick(number: int, turn: int, target: str) -> bool:
    """One or two of each decision, or of each point."""
    return number % 2 == 0 and (turn, target) == (number // 2, "self" if number % 4 else "all")


@pytest.fixture(scope="module")
def undisturbed() -> Iterator[Remains]:
    with tempfile.TemporaryDirectory(dir=FAST) as name:
        run = create_run(Path(name, "run"), choosing_experiment())
        assert finish(run) == [0], outputs(run)
        assert decisions(run) == DECISIONS
        yield remains(run)


def check(run: RunDirectory, undisturbed: Remains, damaged: bool = False) -> None:
    assert remains(run, damaged) == undisturbed, outputs(run)
    assert decisions(run) == DECISIONS
    assert alive_of(run.root) == []


def test_steps_choose_the_first_groups_that_differ_of_all_that_they_draw(undisturbed: Remains) -> None:
    order = list(chain(*undisturbed.ids.values()))
    assert len(order) == len(set(order)), "nothing is drawn twice"
    epochs = [int(group_of(sample).rpartition("@")[2]) for sample in order]
    assert epochs == sorted(epochs) and len(set(epochs)) > 2, "rounds go on into the next epochs"
    assert any(len({group_of(sample).rpartition("@")[2] for sample in ids}) == 2 for ids in undisturbed.ids.values())
    for step, trained in undisturbed.trained.items():
        assert list(trained) == [sample for sample in undisturbed.ids[step] if sample in set(trained)]
        assert len(trained) == (12 if step else 0)
    for row in undisturbed.metrics[1:]:
        assert row["samples"] == 12 and row["drawn"] == len(undisturbed.ids[row["step"]]) and row["rounds"] >= 2


@pytest.mark.parametrize("decision", [pytest.param(n, marks=() if n == 1 else pytest.mark.slow) for n in range(8)])
def test_a_master_killed_while_it_decides_decides_the_same_again(
    folder: Path, undisturbed: Remains, decision: int
) -> None:
    strike = Strike(folder, "kill", "master", "master.choose", "KILL", nth=decision + 1)
    run = create_run(folder / "run", choosing_experiment())
    finish(run, strike)
    assert strike.marker.exists()
    check(run, undisturbed)


@pytest.mark.parametrize(("role", "point", "decision", "target"), [*struck_cases(POINTS, STRUCK, is_quick)])
def test_a_run_struck_before_between_and_after_the_lines_ends_as_if_nothing_had_happened(
    folder: Path, undisturbed: Remains, role: str, point: str, decision: int, target: str
) -> None:
    strikes = after_deciding(folder, decision, role, point, target=target)
    run = create_run(folder / "run", choosing_experiment())
    finish(run, Strikes(strikes))
    assert strikes[1].marker.exists(), "the strike never came: the test tests nothing"
    check(run, undisturbed)
    assert started_twice(run) == []


def stopped_after(folder: Path, decision: int, run: RunDirectory) -> None:
    """Everybody is killed when the line of a decision is written, before anything comes of it."""
    decided, strike = after_deciding(folder, decision, "master", "master.send", target="all")
    jobs = begin(run, "first", Strikes((decided, strike)))
    jobs.wait_for("master", 90)
    jobs.kill_all()
    assert strike.marker.exists()


def test_a_logged_choice_is_followed_where_all_that_it_was_decided_from_is_damaged(
    folder: Path, undisturbed: Remains
) -> None:
    run = create_run(folder / "run", choosing_experiment())
    stopped_after(folder, 4, run)
    for spill in run.step_spills(2).iterdir():
        spill.write_bytes(spill.read_bytes()[:-3])
    finish(run)
    check(run, undisturbed, damaged=True)


def test_a_logged_choice_is_never_decided_anew(folder: Path, undisturbed: Remains) -> None:
    """Whatever the lines before it say."""
    run = create_run(folder / "run", choosing_experiment())
    stopped_after(folder, 4, run)
    journal = run.journal(0)
    events = [event for _, event in parse(journal.read_bytes()) if event is not None]
    untrue = [
        msgspec.structs.replace(event, scores=(0.0,) * len(event.scores)) if isinstance(event, Done) else event
        for event in events
    ]
    assert untrue != events
    journal.write_bytes(b"".join(map(encode_line, untrue)))
    finish(run)
    check(run, undisturbed)


@pytest.mark.parametrize("command", ["finish", pytest.param("stop", marks=pytest.mark.slow)])
def test_a_run_that_is_told_to_end_among_its_rounds_ends_in_good_order(
    folder: Path, undisturbed: Remains, command: Any
) -> None:
    """Whoever is to finish ends the rounds, and the step."""
    run = create_run(folder / "run", choosing_experiment())
    strike = Strike(folder, "order", "master", "master.choose", "ORDER", nth=1)
    jobs = begin(run, "first", Ordering(run, strike, Command(command, "first")))  # type: ignore[arg-type]
    assert jobs.wait_for("master", 90) == ExitCode.NEVER_REQUEUE, outputs(run)
    jobs.wait(90)
    lines, closed = steps_in(events_of(run)), {event.step for event in events_of(run) if isinstance(event, Closed)}
    assert max(lines) < 5, "it came too late to be seen"
    if command == "finish":
        assert all(of_step.is_whole for of_step in lines.values()) and closed == set(lines)
    finish(run)
    check(run, undisturbed)


@pytest.mark.slow
def test_a_reference_that_follows_the_actor_waits_for_the_choice(folder: Path) -> None:
    experiment = choosing_experiment(steps=3)
    experiment = replace(experiment, toy=replace(experiment.toy, reference_ema=EMAConfig(decay=0.9)))
    undisturbed = create_run(folder / "undisturbed" / "run", experiment)
    assert finish(undisturbed) == [0], outputs(undisturbed)
    strikes = after_deciding(folder / "killed", 2, "worker-0", "worker.call", target="all")
    run = create_run(folder / "killed" / "run", experiment)
    finish(run, Strikes(strikes))
    assert strikes[1].marker.exists()
    assert remains(run) == remains(undisturbed)
    events = events_of(run)
    for step in (1, 2, 3):
        of_step = [event for event in events if getattr(event, "step", None) == step]
        names = [type(event).__name__ for event in of_step]
        assert names.index("Chosen") < names.index("Trained") < names.index("Blended")


def test_a_dry_run_says_of_a_step_in_the_middle_of_its_rounds_what_it_has_drawn(folder: Path) -> None:
    run = create_run(folder / "run", choosing_experiment())
    stopped_after(folder, 3, run)
    said = "\n".join(describe_recovery(run.root))
    assert "continues with step 2 (which has not chosen yet among 16 samples of 2 rounds), step 3" in said
    said = "\n".join(describe_recovery(run.root, (), ("cluster.workers_per_node=3",)))
    assert "step 2, open, keeps the 4 parts of actor_gen" in said


def same_rows(found: Remains, expected: Remains, after: int = 0) -> bool:
    """Whether what comes after a step drew and chose the same, and made the same of it."""
    rows = [{step: ids for step, ids in each.ids.items() if step > after} for each in (found, expected)]
    trained = [{step: ids for step, ids in each.trained.items() if step > after} for each in (found, expected)]
    return rows[0] == rows[1] and trained[0] == trained[1] and found.parameters == expected.parameters


def test_a_run_that_is_extended_draws_on_behind_the_rounds_of_its_last_step(folder: Path, undisturbed: Remains) -> None:
    run = create_run(folder / "run", choosing_experiment(steps=2))
    assert finish(run) == [0], outputs(run)
    finish_on(run, choosing_experiment())
    assert same_rows(remains(run), undisturbed)


def test_a_fork_draws_on_behind_the_rounds_of_the_step_that_it_begins_from(folder: Path, undisturbed: Remains) -> None:
    parent = create_run(folder / "run", choosing_experiment())
    assert finish(parent) == [0], outputs(parent)
    run = make_fork(plan_fork(parent.root, 4, (), folder / "fork"))
    assert finish(run) == [0], outputs(run)
    assert same_rows(remains(run), undisturbed, after=4)


TWO, ONE, THREE = (1, 2), (1, 1), (1, 3)
OTHERS = [(TWO, ONE), (THREE, TWO)]


@pytest.fixture(scope="module")
def on_two() -> Whole:
    with tempfile.TemporaryDirectory(dir=FAST) as name:
        run = create_run(Path(name, "run"), placed(choosing_experiment(), TWO))
        finish_on(run, experiment_from(run.configuration()))
        return whole(run)


@pytest.mark.parametrize("decision", [0, 2], ids=["extended", "chosen"])
@pytest.mark.parametrize(
    ("before", "after"), [(TWO, THREE), *(pytest.param(*case, marks=pytest.mark.slow) for case in OTHERS)]
)
def test_rounds_go_on_with_another_number_of_workers(
    folder: Path, on_two: Whole, decision: int, before: Shape, after: Shape
) -> None:
    run = create_run(folder / "run", placed(choosing_experiment(), before))
    decided, strike = after_deciding(folder, decision, "worker-0", "worker.replied", target="all")
    jobs = begin_on(run, "first", experiment_from(run.configuration()), Strikes((decided, strike)))
    jobs.wait_for("master", 90)
    jobs.kill_all()
    assert strike.marker.exists()
    finish_on(run, placed(choosing_experiment(), after))
    assert_nearly_equal(run, on_two)
    assert started_twice(run) == []
    lines = steps_in(events_of(run))
    counts = [[line.calls.get("actor_gen") for line in of_step.all] for of_step in lines.values()]
    assert counts[1][0] == before[1] and counts[-1][0] == after[1], counts


def ended(run: RunDirectory, nonce: str, experiment: Any) -> int:
    jobs = begin_on(run, nonce, experiment)
    code = jobs.wait_for("master", 90)
    jobs.kill_all()
    return code


def test_a_shortage_ends_the_run_with_the_scores_and_it_goes_on_when_it_may_draw_more_or_train_on_fewer(
    folder: Path, undisturbed: Remains
) -> None:
    run = create_run(folder / "run", choosing_experiment(max_rounds=2))
    assert ended(run, "first", choosing_experiment(max_rounds=2)) == ExitCode.DATA
    verdict = run.read_verdict(0)
    assert verdict is not None and verdict.exit_code == ExitCode.DATA
    assert "step 1: after toy.filter_groups.max_rounds = 2, " in verdict.reason
    assert "of 12 groups have samples of different scores, and a step trains on 6. Scores: 0 ×" in verdict.reason
    assert verdict.reason.endswith(
        "Raise toy.filter_groups.max_rounds, set toy.filter_groups.on_shortage to smaller, or submit a new run with "
        "rows that are neither too hard nor too easy."
    )
    assert ended(run, "again", choosing_experiment(max_rounds=2)) == ExitCode.DATA, "it is decided the same"
    other = RunDirectory.open(shutil.copytree(run.root, folder / "other"))
    assert ended(other, "smaller", choosing_experiment(max_rounds=2, on_shortage="smaller")) == ExitCode.DONE
    finish_on(run, choosing_experiment())
    found = remains(run)
    assert (found.parameters, found.ids, found.trained) == (
        undisturbed.parameters, undisturbed.ids, undisturbed.trained,
    )  # fmt: skip


def test_what_was_drawn_and_chosen_is_shown(folder: Path) -> None:
    run = create_run(folder / "run", choosing_experiment(steps=2))
    assert finish(run) == [0], outputs(run)
    lines = steps_in(events_of(run))
    assert "chosen   12 of 16 samples, drawn in 2 rounds" in status_text(read_status(run.root))
    assert {step.step: step.samples for step in steps(RunReader(run)).steps if step.step} == {1: 36, 2: 16}
    assert len(lines[1].ids) == 36


def test_after_a_shortage_a_step_may_train_on_the_groups_that_there_are(folder: Path) -> None:
    run = create_run(folder / "run", choosing_experiment(steps=2, max_rounds=1, on_shortage="smaller"))
    assert finish(run) == [0], outputs(run)
    lines = steps_in(events_of(run))
    sizes = [len(lines[step].trained) for step in (1, 2)]
    assert all(0 < size < 12 for size in sizes)
    rows = [(row["samples"], row["drawn"], row["rounds"]) for row in merged_metrics(run)[1:]]
    assert rows == [(size, 12, 1) for size in sizes]
    for of_step in list(lines.values())[1:]:
        assert of_step.chosen is not None
        kept = {group_of(sample) for sample in of_step.trained}
        assert kept | set(of_step.chosen.dropped) == {group_of(sample) for sample in of_step.ids}
