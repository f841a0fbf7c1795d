"""PPO against a reward model that we have trained: scored as transformers scores, and killed to the same bits."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.chaos import Remains, create_run, finish, outputs, remains, started_twice
from support.cluster import alive_of
from support.faults import After, Strike, Strikes
from support.hosts import run_of, write_task
from support.judges import write_pairs
from support.phases import Phased
from support.tiny_ppo import tiny_ppo
from support.tiny_runs import tiny_control, tiny_data

from hpcrl.config.classifier import ClassifierConfig
from hpcrl.config.model import OptimizerConfig
from hpcrl.config.reward import RewardConfig
from hpcrl.recipes.ppo import PPOExperiment
from hpcrl.recipes.reward_model import RewardModelConfig, RewardModelExperiment

COMPONENTS = {"judge": {"role": "reward_model", "weight": 2.0}, "short": {"function": "length", "kwargs": {"most": 9}}}
POINTS: Mapping[str, tuple[str, int]] = {
    "judged": ("judge.begin", 1),
    "scored": ("judge.end", 1),
    "trained": ("reduce.begin", 2),
}
"""Phase → a point in it, and how often it is passed until the strike, counted from the strike before."""


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With judge/: what our algorithm has exported after a few steps over pairs of answers to the sums."""
    folder = tmp_path_factory.mktemp("task")
    write_task(folder)
    write_pairs(folder / "rows.jsonl", folder / "pairs.jsonl")
    trained = RewardModelConfig(path=str(folder / "model"), optimizer=OptimizerConfig(lr=0.01))
    data = tiny_data(folder, train=str(folder / "pairs.jsonl"), evaluate=None)
    with run_of(RewardModelExperiment(control=tiny_control(8), data=data, reward_model=trained)) as conductor:
        for step in range(1, 9):
            conductor.step(step)
        conductor.export("reward_model", folder / "judge")
    return folder


def experiment(task: Path) -> PPOExperiment:
    return replace(
        tiny_ppo(task, nodes=1),
        control=tiny_control(4),
        reward=RewardConfig(components=COMPONENTS),
        reward_model=ClassifierConfig(path=str(task / "judge"), micro_batch_tokens=32),
    )


@pytest.fixture(scope="module")
def undisturbed(task: Path, tmp_path_factory: pytest.TempPathFactory) -> Remains:
    run = create_run(tmp_path_factory.mktemp("whole") / "run", experiment(task))
    assert finish(run) == [0], outputs(run)
    return remains(run)


def test_its_scores_are_those_that_transformers_gives_to_the_folder(task: Path) -> None:
    from transformers import AutoModelForSequenceClassification

    theirs = AutoModelForSequenceClassification.from_pretrained(task / "judge").eval()
    with run_of(experiment(task)) as conductor:
        rows = conductor.step(1).rows
    found = rows.data["model_scores"]
    assert len(set(found.tolist())) > 4, "the model tells responses apart"
    for prompt, response, score in zip(rows.rows("prompts"), rows.rows("responses"), found.tolist(), strict=True):
        with torch.no_grad():
            (logits,) = theirs(input_ids=torch.tensor([[*prompt.tolist(), *response.tolist()]])).logits
        assert logits.tolist() == pytest.approx([score], abs=1e-5)


def struck(folder: Path, points: Mapping[str, tuple[str, int]], target: str) -> list[Strike]:
    """One after another, each in a worker."""
    found: list[Strike] = []
    for name, (point, nth) in points.items():
        words = (folder, name, "worker-1", point, "KILL", target, nth)
        found.append(After(*words, first=found[-1]) if found else Strike(*words))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("target", ["self", "all"])
def test_killed_while_it_judges_and_while_the_policy_learns_a_run_ends_with_the_same_bits(
    tmp_path: Path, task: Path, undisturbed: Remains, target: str
) -> None:
    strikes = struck(tmp_path, POINTS, target)
    run = create_run(tmp_path / "run", experiment(task))
    finish(run, Phased(Strikes(tuple(strikes))))
    assert [strike.name for strike in strikes if not strike.marker.exists()] == [], "a strike never came"
    assert remains(run) == undisturbed, outputs(run)
    assert started_twice(run) == []
    assert alive_of(run.root) == []
