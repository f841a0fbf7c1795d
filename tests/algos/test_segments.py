"""Responses that are drawn a segment at a time, each by a call of its own: those that are drawn at once, and a kill
costs a segment."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from support import ppo_script
from support.chaos import Remains, create_run, finish, outputs, remains, whole_run
from support.choosing import events_of
from support.faults import Dawdles
from support.hosts import write_task
from support.struck_layouts import Blow, check_struck, exported
from support.tiny_runs import tiny_cluster, tiny_control, tiny_data

from hpcrl.config.filter_groups import FilterGroupsConfig
from hpcrl.config.generation import EvaluationConfig, GenerationConfig
from hpcrl.durable.journal import Done
from hpcrl.durable.rundir import RunDirectory
from hpcrl.recipes.algorithm import experiment_from
from hpcrl.recipes.policy import section_of

SEGMENT = 3
AHEAD, NEWER = "drawn ahead by another worker", "by newer actors"
CALLS = ("actor_gen_s01", "actor_gen_s02", "actor_gen")
CASES: dict[str, dict[str, Any]] = {
    "drawn ahead by another worker": {
        "algorithm": "ppo", "lag": 1, "actor": {"mesh": "1", "layout": "d1"}, "critic": {"mesh": "1", "layout": "d1"},
        "calls": {"actor_gen": {"mesh": "0", "layout": "d1"}},
    },
    "by newer actors": {
        "algorithm": "ppo", "lag": 2, "actor": {"mesh": "1", "layout": "d1"}, "critic": {"mesh": "1", "layout": "d1"},
        "calls": {"actor_gen": {"mesh": "0", "layout": "d1"}}, "refresh": 1, "steps": 5,
    },
    "by newer actors, on one worker": {
        "algorithm": "ppo", "lag": 2, "actor": {"layout": "d1"}, "critic": {"layout": "d1"}, "refresh": 1, "steps": 5,
    },
    "a greedy baseline, tensor ranks": {"algorithm": "remax", "actor": {"layout": "t2"}},
    "steps that choose, stages": {"algorithm": "rloo", "actor": {"layout": "p2"}},
    "sharded": {"algorithm": "reinforce_plus_plus", "actor": {"layout": "d2", "backend": "fsdp"}},
}  # fmt: skip


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("task")
    write_task(folder)
    return folder


def experiment_of(task: Path, case: str, segment: int | None) -> Any:
    """Two responses to each prompt, also in an evaluation; in float64."""
    own = dict(CASES[case])
    model = {"path": str(task / "model"), "dtype": "fp64"}
    values = {
        "algorithm": own["algorithm"],
        "data": {**vars(tiny_data(task)), "samples_per_prompt": 2},
        "actor": {**model, "optimizer": {"lr": 3e-3}, **own["actor"]},
        "reference": model,
        "reward": {"function": f"{task / 'reward.py'}:ones", "right_at": 0.0},
        "generation": {"max_new_tokens": 8, "slots": 6, "segment": segment, "refresh": own.get("refresh")},
        "calls": own.get("calls", {}),
        **({"lag": own["lag"]} if "lag" in own else {}),
        **({"critic": {**model, **own["critic"]}} if "critic" in own else {}),
    }
    made = experiment_from(values)
    name, section = section_of(made)
    section = replace(section, minibatches=2)
    if name == "rloo":
        section = replace(section, filter_groups=FilterGroupsConfig(metric="accuracy", max_rounds=20))
    evaluation = EvaluationConfig(temperature=0.8, samples_per_prompt=2)
    generation: GenerationConfig = replace(made.generation, evaluation=evaluation)
    control = tiny_control(steps=own.get("steps", 3))
    workers = 1 if case.endswith("one worker") else 2
    return replace(
        made, control=control, cluster=tiny_cluster(workers=workers), generation=generation, **{name: section}
    )


@pytest.fixture(scope="module")
def undisturbed(task: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int | None], RunDirectory]:
    """Runs by case and segment, each made when it is first asked for."""
    return cache(lambda *of: whole_run(tmp_path_factory.mktemp("whole"), experiment_of(task, *of)))


def alike(ours: Remains, theirs: Remains) -> None:
    """But for rounding, and for what segments report."""
    assert (ours.ids, ours.trained) == (theirs.ids, theirs.trained)
    for row, expected in zip(ours.metrics, theirs.metrics, strict=True):
        own, of_whole = (
            {name: number for name, number in of.items() if not name.endswith("/open")} for of in (row, expected)
        )
        assert own == pytest.approx(of_whole, rel=1e-9, abs=1e-11)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=() if case == AHEAD else pytest.mark.slow)
        for case in CASES
        if not case.startswith(NEWER)
    ],
)
def test_segments_change_no_response(case: str, undisturbed: Callable[[str, int | None], RunDirectory]) -> None:
    run = undisturbed(case, SEGMENT)
    alike(remains(run), remains(undisturbed(case, None)))
    made = {event.call for event in events_of(run) if isinstance(event, Done)}
    assert made.issuperset(CALLS) and made.issuperset({"eval_gen_s01", "eval_gen_s02", "eval_gen"})
    opened = [row[f"{call}/open"] for row in remains(run).metrics if row["step"] for call in CALLS]
    assert opened[::3] == [1.0] * 3 and 0 < min(opened) < 1


BLOWS = {
    "in the second segment": Blow("worker-0", "generate.end", 5),
    "at its spill": Blow("worker-0", "spill.published", 5),
    "at a segment's line": Blow("master", "journal.after", 8),
}


@pytest.mark.parametrize(
    "name", [pytest.param(it, marks=() if it == "at its spill" else pytest.mark.slow) for it in BLOWS]
)
def test_killed_within_a_segment_a_run_ends_with_the_same_bits_and_draws_no_earlier_one_again(
    name: str, task: Path, tmp_path: Path, undisturbed: Callable[[str, int | None], RunDirectory]
) -> None:
    check_struck(tmp_path, experiment_of(task, AHEAD, SEGMENT), BLOWS[name], undisturbed(AHEAD, SEGMENT))


def scripted(of: Any) -> Any:
    return replace(of, algorithm=f"{ppo_script.__file__}:BEHIND")


@pytest.mark.slow
def test_a_script_draws_segments_as_the_graph_does_killed_or_not(
    task: Path, tmp_path: Path, undisturbed: Callable[[str, int | None], RunDirectory]
) -> None:
    graph, script = undisturbed(AHEAD, SEGMENT), scripted(experiment_of(task, AHEAD, SEGMENT))
    (tmp_path / "whole").mkdir()
    ours = whole_run(tmp_path / "whole", script)
    assert remains(ours).parameters == remains(graph).parameters
    assert remains(ours).metrics == tuple(row for row in remains(graph).metrics if row["step"])
    assert exported(ours) == exported(graph)
    check_struck(tmp_path, script, Blow("worker-0", "generate.end", 8), ours)


def test_after_each_segment_a_response_comes_from_a_newer_actor(
    task: Path, tmp_path: Path, undisturbed: Callable[[str, int | None], RunDirectory]
) -> None:
    run = undisturbed(NEWER, SEGMENT)
    read = {(event.step, event.call): event.version for event in events_of(run) if isinstance(event, Done)}
    for step in range(1, 6):
        found = [read[step, call] for call in CALLS]
        assert found == [max(0, min(step - 1 - 2 + segment, step - 1)) for segment in range(3)], step
    alike(remains(undisturbed(f"{NEWER}, on one worker", SEGMENT)), remains(run))
    dawdling = create_run(tmp_path / "run", experiment_of(task, NEWER, SEGMENT))
    assert finish(dawdling, Dawdles(5)) == [0], outputs(dawdling)
    assert remains(dawdling) == remains(run)


NEWER_BLOWS = {
    "in a segment of a newer actor": Blow("worker-0", "generate.end", 14),
    "in training": Blow("worker-1", "minibatch.end", 7),
    "a move": Blow("worker-0", "move.end", 3, "all"),
    "the master, between lines": Blow("master", "journal.after", 26),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NEWER_BLOWS)
def test_killed_a_run_of_newer_actors_ends_with_the_same_bits(
    name: str, task: Path, tmp_path: Path, undisturbed: Callable[[str, int | None], RunDirectory]
) -> None:
    check_struck(tmp_path, experiment_of(task, NEWER, SEGMENT), NEWER_BLOWS[name], undisturbed(NEWER, SEGMENT))
