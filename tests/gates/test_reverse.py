"""Every algorithm with a policy learns to write eight letters backwards: from nothing right to nearly all.

Whole runs of `hpcrl submit`, so that dynamic sampling and evaluation are the master's own.
"""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.learning import Found, Gate, curve, found, keep, submit, write_config
from support.reverse import ACCURACY, LENGTH, RIGHT, grouped, settings, write

from hpcrl.plugins import names
from hpcrl.recipes.algorithm import ALGORITHMS, algorithm_of
from hpcrl.recipes.policy import PolicyExperiment

pytestmark = pytest.mark.timeout(900)

GATES: Mapping[str, tuple[str, Mapping[str, Any], int]] = {
    "ppo": ("ppo", {"gae_lambda": 0.95}, 150),
    "grpo": ("grpo", {}, 150),
    "dr-grpo": ("grpo", {"std": "none", "aggregation": "seq-mean-token-sum-norm"}, 150),
    "gspo": ("grpo", {"ratio": "sequence", "aggregation": "seq-mean-token-mean"}, 150),
    "cispo": ("grpo", {"objective": "cispo"}, 150),
    "dapo": ("grpo", {"clip_high": 0.28, "filter_groups": {"metric": "reward", "max_rounds": 4}}, 150),
    "rloo": ("rloo", {}, 150),
    "reinforce++": ("reinforce_plus_plus", {}, 150),
    "reinforce++-baseline": ("reinforce_plus_plus", {"baseline": True}, 150),
    "remax": ("remax", {}, 300),
}
"""By name: the algorithm, what its section says, and the number of steps in which it has to learn the task."""
KEPT = 0.98
TASK = "eight letters backwards: share of held-out texts that are wholly right"
SEEDS = (1, 2, 3)


@pytest.fixture(scope="session")
def folders() -> dict[int, Path]:
    return {}


@pytest.fixture
def folder(folders: dict[int, Path], tmp_path_factory: pytest.TempPathFactory, seed: int) -> Path:
    """The task and a model that has been fine-tuned a little, one for all gates of a seed."""
    if seed not in folders:
        made = tmp_path_factory.mktemp(f"reverse-{seed}")
        write(made, seed)
        folders[seed] = made
    return folders[seed]


def run(folder: Path, name: str, seed: int, values: Mapping[str, Any]) -> Path:
    submit(write_config(folder / f"{name}.yaml", values), folder / name)
    return folder / name


def configuration(folder: Path, name: str, seed: int) -> dict[str, Any]:
    algorithm, own, steps = GATES[name]
    values = settings(folder, seed, algorithm, steps)
    values[algorithm] |= own
    alone = algorithm in ("ppo", "remax") or name == "reinforce++"
    return values if alone else grouped(values)


def test_every_algorithm_with_a_policy_has_a_gate() -> None:
    policies = [name for name in names(ALGORITHMS) if issubclass(algorithm_of(name).experiment, PolicyExperiment)]
    assert {algorithm for algorithm, _, _ in GATES.values()} == set(policies)


@pytest.mark.slow
@pytest.mark.parametrize(("gate", "seed"), [*itertools.product(GATES, SEEDS)])
def test_a_policy_learns_to_write_backwards(gate: str, seed: int, folder: Path) -> None:
    algorithm, _, steps = GATES[gate]
    learnt = found(run(folder, gate, seed, configuration(folder, gate, seed)), ACCURACY, seed, RIGHT)
    keep(Gate(gate=gate, algorithm=algorithm, task=TASK, goal=f"0 → ≥ {RIGHT:.0%} in {steps} steps"), learnt)
    assert learnt.before <= 0.02
    assert learnt.after >= RIGHT, curve(folder / gate, ACCURACY)


@pytest.mark.parametrize(("gate", "seed"), [pytest.param("cut", seed, marks=pytest.mark.slow) for seed in SEEDS])
def test_responses_go_on_ending_by_themselves_where_scores_are_negative(gate: str, seed: int, folder: Path) -> None:
    """With a score of 0 for a cut response, never to end would be better than to be wrong."""
    values = configuration(folder, "ppo", seed)
    values["reward"] = {"function": f"{folder / 'reward.py'}:wrong_places", "right_at": 0.0}
    values["generation"]["max_new_tokens"] = LENGTH + 4
    del values["control"]["stop_when"]
    shares = curve(run(folder, gate, seed, values), "actor_gen/finished")
    steps = sorted(shares)
    early, late = (sum(shares[step] for step in part) / 5 for part in (steps[:5], steps[-5:]))
    text = "the same with scores of -1 to 0: share of responses that end by themselves"
    steps_run = max(shares)
    keep(
        Gate(gate=gate, algorithm="ppo", task=text, goal=f"≥ {KEPT:.0%} of what it was"),
        Found(seed=seed, before=early, after=late, steps=steps_run),
    )
    assert late >= KEPT * early
    assert curve(folder / gate, ACCURACY)[steps_run] >= RIGHT
