"""PPO whose responses come from older actors, drawn by one worker while another trains: one result in all cases."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import ppo_script
from support.chaos import create_run, finish, outputs, remains, whole_run
from support.choosing import events_of
from support.faults import Dawdles
from support.hosts import write_task
from support.struck_layouts import Blow, check_struck, exported
from support.tiny_runs import tiny_cluster, tiny_control, tiny_data

from hpcrl.config.generation import GenerationConfig
from hpcrl.config.model import OptimizerConfig, ReferenceConfig, TrainedModelConfig
from hpcrl.config.reward import RewardConfig
from hpcrl.durable.journal import Done
from hpcrl.durable.rundir import RunDirectory
from hpcrl.recipes.ppo import CriticConfig, PPOConfig, PPOExperiment

STEPS = 5
APART: dict[str, Any] = {"mesh": "1", "layout": "d1"}
"""Where actor and critic are trained; worker 0 draws the responses."""


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("task")
    write_task(folder)
    return folder


def lagging(task: Path, lag: int, apart: bool = True, **ppo: Any) -> PPOExperiment:
    """Decoupled PPO: clipped around what the newest actor says, weighed by how far that is from who has drawn."""
    model: dict[str, Any] = {
        "path": str(task / "model"), "dtype": "fp64", "optimizer": OptimizerConfig(lr=3e-3), **(APART if apart else {})
    }  # fmt: skip
    settings = {"minibatches": 2, "epochs": 2, "importance_cap": 2.0, **({} if lag else {"old_logprobs": "recomputed"})}
    return PPOExperiment(
        control=tiny_control(steps=STEPS),
        cluster=tiny_cluster(workers=2 if apart else 1),
        data=replace(tiny_data(task), samples_per_prompt=2),
        actor=TrainedModelConfig(**model),
        critic=CriticConfig(**model),
        reference=ReferenceConfig(path=str(task / "model")),  # nothing is held to it
        reward=RewardConfig(function=f"{task / 'reward.py'}:ones"),
        generation=GenerationConfig(max_new_tokens=6, temperature=0.9, slots=4),
        calls={"actor_gen": {"mesh": "0", "layout": "d1"}} if apart else {},
        ppo=PPOConfig(**settings | ppo),
        lag=lag,
    )


@pytest.fixture(scope="module")
def undisturbed(task: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], RunDirectory]:
    """By lag; each runs when it is first asked for."""
    found: dict[int, RunDirectory] = {}

    def of(lag: int) -> RunDirectory:
        if lag not in found:
            found[lag] = whole_run(tmp_path_factory.mktemp(f"lag{lag}"), lagging(task, lag))
        return found[lag]

    return of


def versions(run: RunDirectory, call: str) -> list[int]:
    """Which one each step has read."""
    lines = [event for event in events_of(run) if isinstance(event, Done) and event.call == call]
    return [line.version for line in sorted(lines, key=lambda line: line.step) if line.step]


@pytest.mark.parametrize("lag", [0, pytest.param(1, marks=pytest.mark.slow), 3])
def test_responses_come_from_the_actor_of_so_many_steps_before(
    lag: int, undisturbed: Callable[[int], RunDirectory]
) -> None:
    run = undisturbed(lag)
    assert versions(run, "actor_gen") == [max(0, step - 1 - lag) for step in range(1, STEPS + 1)]
    assert versions(run, "actor_inf") == list(range(STEPS)), "clipped around the newest"
    rows = remains(run).metrics
    assert (rows[-1]["actor_train/logprob_gap"] > 1e-6) == bool(lag), "of what was drawn, and what the newest says"


@pytest.mark.slow
def test_on_one_worker_the_same_is_computed(
    task: Path, tmp_path: Path, undisturbed: Callable[[int], RunDirectory]
) -> None:
    ours, theirs = remains(undisturbed(2)), remains(whole_run(tmp_path, lagging(task, 2, apart=False)))
    assert (ours.ids, ours.trained) == (theirs.ids, theirs.trained)
    for row, reference in zip(ours.metrics, theirs.metrics, strict=True):
        assert list(row) == list(reference)
        np.testing.assert_allclose(list(row.values()), list(reference.values()), rtol=1e-9, atol=1e-11)


BLOWS = {
    "in a generation that is ahead": Blow("worker-0", "generate.end", 3),
    "in training, while others generate": Blow("worker-1", "minibatch.end", 6, "agent-0"),
    "a move of what is read later": Blow("worker-0", "move.end", 3, "all"),
    "the master, between lines": Blow("master", "journal.after", 20),
}


FAST = ("in training, while others generate",)


@pytest.mark.parametrize("name", [pytest.param(it, marks=() if it in FAST else pytest.mark.slow) for it in BLOWS])
def test_killed_a_run_that_is_behind_ends_with_the_same_bits(
    name: str, task: Path, tmp_path: Path, undisturbed: Callable[[int], RunDirectory]
) -> None:
    check_struck(tmp_path, lagging(task, 2), BLOWS[name], undisturbed(2))


def test_however_long_calls_take_there_is_one_result(
    task: Path, tmp_path: Path, undisturbed: Callable[[int], RunDirectory]
) -> None:
    run = create_run(tmp_path / "run", lagging(task, 1))
    assert finish(run, Dawdles(5)) == [0], outputs(run)
    assert remains(run) == remains(undisturbed(1))


def test_a_step_of_one_update_is_weighed_too(task: Path, tmp_path: Path) -> None:
    """What it is clipped around are its own log-probabilities, without an inference."""
    run = whole_run(tmp_path, lagging(task, 1, apart=False, minibatches=1, epochs=1))
    assert versions(run, "actor_inf") == []
    assert remains(run).metrics[-1]["actor_train/logprob_gap"] > 1e-6


def scripted(of: PPOExperiment) -> Any:
    return replace(of, algorithm=f"{ppo_script.__file__}:BEHIND")


@pytest.fixture(scope="module")
def behind(task: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A script's run that nothing has disturbed, with a lag of 2."""
    return whole_run(tmp_path_factory.mktemp("behind"), scripted(lagging(task, 2)))


def test_a_script_that_prepares_its_steps_computes_what_the_graph_does(
    behind: RunDirectory, undisturbed: Callable[[int], RunDirectory]
) -> None:
    graph = undisturbed(2)
    ours, theirs = remains(behind), remains(graph)
    assert (ours.parameters, ours.state) == (theirs.parameters, theirs.state)
    assert ours.metrics == tuple(row for row in theirs.metrics if row["step"])
    assert ours.ids == {step: ids for step, ids in theirs.ids.items() if step}
    assert exported(behind) == exported(graph)
    assert versions(behind, "actor_gen") == versions(graph, "actor_gen")


SCRIPT_BLOWS = {
    "in a generation that is ahead": Blow("worker-0", "generate.end", 3),
    "the script": Blow("worker-2", "script.ask", 14),
    "the master, between lines": Blow("master", "journal.after", 20),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPT_BLOWS)
def test_killed_a_script_that_is_behind_ends_with_the_same_bits(
    name: str, task: Path, tmp_path: Path, behind: RunDirectory
) -> None:
    check_struck(tmp_path, scripted(lagging(task, 2)), SCRIPT_BLOWS[name], behind)
