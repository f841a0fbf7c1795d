"""What train steps show of the samples that stay: the advantages that they learn from. Torch host, real processes."""

import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.archives import archives, kept_rows
from support.chaos import Remains, create_run, ends_alike, remains, whole_run
from support.faults import Strike
from support.hosts import write_task
from support.tiny_ppo import tiny_ppo
from support.tiny_runs import tiny_cluster, tiny_control, tiny_data

from hpcrl.config.generation import GenerationConfig
from hpcrl.config.kl import KLConfig
from hpcrl.config.model import OptimizerConfig, ReferenceConfig, TrainedModelConfig
from hpcrl.config.reward import RewardConfig
from hpcrl.config.samples import SamplesConfig
from hpcrl.durable.rundir import RunDirectory
from hpcrl.recipes.grpo import GRPOConfig, GRPOExperiment
from hpcrl.recipes.ppo import PPOConfig, PPOExperiment

POINTS = {
    "shown: published": ("worker-1", "shown.published", 2, "self"),
    "shown: published, all": ("worker-0", "shown.published", 3, "all"),
    "shown: write": ("worker-0", "shown.write", 1, "master"),
    "trained, before": ("master", "journal.before", 9, "self"),
    "archive: write": ("housekeeper-0", "archive.write", 2, "all"),
    "archive: published": ("housekeeper-0", "archive.published", 1, "self"),
    "line of the archive": ("master", "journal.after", 12, "all"),
    "prune": ("master", "prune.unlink", 2, "all"),
}


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("task")
    write_task(folder)
    (folder / "judge.py").write_text(JUDGE)
    return folder


JUDGE = """
def judge(response, row):
    if response.startswith("7"):
        raise ValueError(f"no answer begins with 7, as {response!r} does")
    return {"score": response.count("1") - 0.1 * len(response), "ones": response.count("1")}
"""


def grpo(task: Path) -> GRPOExperiment:
    path = str(task / "model")
    return GRPOExperiment(
        control=tiny_control(2),
        cluster=tiny_cluster(),
        data=tiny_data(task, samples_per_prompt=4),  # type: ignore[arg-type]
        actor=TrainedModelConfig(path=path, optimizer=OptimizerConfig(lr=0.001)),
        reference=ReferenceConfig(path=path),
        reward=RewardConfig(function=f"{task / 'judge.py'}:judge", on_error="drop", max_dropped=0.9),
        generation=GenerationConfig(max_new_tokens=6, slots=8),
        samples=SamplesConfig(per_step=8),
        grpo=GRPOConfig(minibatches=2),
    )


@pytest.fixture(scope="module")
def grouped(task: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return whole_run(tmp_path_factory.mktemp("grpo"), grpo(task))


def test_advantages_are_those_of_the_rewards_beside_them(grouped: RunDirectory) -> None:
    """Of whole groups, so that they can be computed again: distances to the mean of the group, in deviations."""
    groups: dict[tuple[int, str], list[dict[str, Any]]] = defaultdict(list)
    for step, sample, columns in kept_rows(grouped):
        groups[step, sample.partition("#")[0]].append(columns)
    assert len(groups) == 4 and all(len(group) == 4 for group in groups.values())
    for group in groups.values():
        rewards = np.array([columns["rewards"][0][0] for columns in group])
        counted = ~np.isnan(rewards)
        deviation = rewards[counted].std(ddof=1) if counted.sum() > 1 else 0.0
        expected = (rewards - rewards[counted].mean()) / (deviation + 1e-6)
        for columns, one, counts in zip(group, expected, counted, strict=True):
            (advantages,), (tokens,) = columns["advantages"], columns["responses"]
            assert len(advantages) == len(tokens)
            if counts:
                assert advantages == pytest.approx([one] * len(tokens), rel=1e-4, abs=1e-5)


def test_other_numbers_of_a_reward_and_why_a_response_was_dropped_are_kept(grouped: RunDirectory) -> None:
    dropped = 0
    for _, _, columns in kept_rows(grouped):
        text, details = columns["responses.text"][0], json.loads(columns["reward_details"][0] or "{}")
        if text.startswith("7"):
            dropped += 1
            assert np.isnan(columns["rewards"][0][0]) and "no answer begins with 7" in details["error"]
        else:
            assert details == {"numbers": {"reward_ones": float(text.count("1"))}}
    assert dropped, "no response of these began with 7: the test tests nothing"


def ppo(task: Path) -> PPOExperiment:
    """Of 8 samples, or 4 at the end of an epoch, 5 stay at most."""
    made = tiny_ppo(task, nodes=1)
    return replace(made, samples=SamplesConfig(per_step=5, per_evaluation=2))


@pytest.fixture(scope="module")
def undisturbed(task: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return whole_run(tmp_path_factory.mktemp("ppo"), ppo(task))


@pytest.fixture(scope="module")
def expected(undisturbed: RunDirectory) -> Remains:
    return remains(undisturbed)


def test_returns_are_the_rewards_that_are_still_to_come(task: Path, tmp_path: Path) -> None:
    """Where nothing is discounted and no KL is in the rewards: the score, for each token of a response."""
    plain = PPOConfig(minibatches=2, kl=KLConfig(mode="none"))
    run = whole_run(tmp_path, replace(ppo(task), ppo=plain, control=tiny_control(1)))
    rows = kept_rows(run)
    assert len(rows) == 5
    for _, _, columns in rows:
        (returns,), (values,) = columns["returns"], columns["values"]
        assert returns == pytest.approx(columns["rewards"][0] * len(values), rel=1e-4, abs=1e-5)
        assert len(columns["advantages"][0]) == len(values)


def test_a_step_shows_those_that_stay_whoever_trains_on_them(undisturbed: RunDirectory) -> None:
    rows = kept_rows(undisturbed)
    assert [sum(step == each for step, *_ in rows) for each in range(1, 5)] == [5, 4, 5, 4]
    for _, _, columns in rows:
        count = len(columns["responses"][0])
        assert all(len(columns[key][0]) == count for key in ("advantages", "returns", "values", "ref_logprobs"))
    assert {step for step, *_ in kept_rows(undisturbed, "eval")} == {0, 3, 4}


@pytest.mark.slow
@pytest.mark.parametrize("name", POINTS)
def test_killed_around_what_it_shows_or_archives_a_run_keeps_the_same_bytes(
    name: str, task: Path, expected: Remains, undisturbed: RunDirectory, tmp_path: Path
) -> None:
    who, point, nth, target = POINTS[name]
    assert expected.archives == archives(undisturbed) and len(expected.archives) == 5
    run = create_run(tmp_path / "run", ppo(task))
    ends_alike(run, expected, Strike(tmp_path, "kill", who, point, "KILL", target, nth))
