"""Every algorithm with a policy, on the torch host and real processes, killed in each phase of its steps."""

import itertools
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from support.archives import archives
from support.chaos import Remains, create_run, finish, outputs, remains, started_twice
from support.choosing import decisions
from support.cluster import alive_of
from support.faults import After, Strike, Strikes
from support.hosts import LETTERS, write_task
from support.phases import Phased
from support.tiny_models import gemma3_config, qwen3_config
from support.tiny_runs import tiny_cluster, tiny_control, tiny_data

from hpcrl.config.filter_groups import FilterGroupsConfig
from hpcrl.config.kl import KLConfig
from hpcrl.durable.rundir import RunDirectory
from hpcrl.models.pretrained import write_random_pretrained
from hpcrl.plugins import names
from hpcrl.recipes.algorithm import ALGORITHMS, algorithm_of, experiment_from
from hpcrl.recipes.policy import PolicyExperiment, section_of

pytestmark = pytest.mark.slow
POLICIES = [name for name in names(ALGORITHMS) if issubclass(algorithm_of(name).experiment, PolicyExperiment)]
CHOOSES = FilterGroupsConfig(metric="accuracy", max_rounds=20)
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in POLICIES},
    "rloo": ("rloo", {"filter_groups": CHOOSES}),
    "reinforce_plus_plus_baseline": ("reinforce_plus_plus", {"baseline": True, "filter_groups": CHOOSES}),
}
"""Name of a case → algorithm and what its own section says. GRPO's choice has a test of its own."""
MODELS = {"reinforce_plus_plus": ("qwen3", qwen3_config), "remax": ("gemma3", gemma3_config)}
"""Cases with a model that is no qwen2."""
SIZES = {"vocabulary_size": len(LETTERS) + 1, "hidden_size": 16, "intermediate_size": 24, "heads": 4, "head_dim": 4}

PHASES = {
    "generate": ("generate.end", 1),
    "reward": ("reward.begin", 1),
    "inference": ("inference.begin", 2),
    "train": ("reduce.begin", 2),
}
"""Phase → a point in it, and how often it is passed until the strike; in the order of a step."""


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("task")
    write_task(folder)
    for name, config in MODELS.values():
        sized = config(**SIZES, max_positions=64, initializer_range=0.3)
        write_random_pretrained(folder / name, sized, seed=1, tokenizer_from=folder / "model")
    return folder


def experiment_of(case: str, task: Path) -> Any:
    """Four prompts of two responses a step; right is about every second response."""
    name, section = VARIANTS[case]
    model = str(task / MODELS[case][0] if case in MODELS else task / "model")
    trained = {"path": model, "optimizer": {"lr": 0.001}}
    values = {
        "data": {**vars(tiny_data(task)), "samples_per_prompt": 2},
        "actor": trained,
        "critic": trained,
        "reference": {"path": model},
        "reward": {"function": f"{task / 'reward.py'}:ones", "right_at": 0.0},
        "generation": {"max_new_tokens": 6, "slots": 8},
    }
    known = {field.name for field in fields(algorithm_of(name).experiment)}
    made = experiment_from({"algorithm": name} | {key: value for key, value in values.items() if key in known})
    kl = KLConfig(mode="reward", coef=0.1, adaptive=True)
    own = replace(section_of(made)[1], minibatches=2, kl=kl, **section)
    return replace(made, control=tiny_control(steps=4), cluster=tiny_cluster(), **{name: own})


@pytest.fixture(scope="module")
def undisturbed(task: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Remains]:
    """By case; each runs when it is first asked for."""
    found: dict[str, Remains] = {}

    def of(case: str) -> Remains:
        if case not in found:
            run = create_run(tmp_path_factory.mktemp(case) / "run", experiment_of(case, task))
            assert finish(run) == [0], outputs(run)
            extended = any(decision.startswith("E") for decision in decisions(run))
            assert extended == ("filter_groups" in VARIANTS[case][1]), "a step that chooses draws more than once"
            found[case] = remains(run)
        return found[case]

    return of


def check(run: RunDirectory, struck: list[Strike], expected: Remains) -> None:
    assert [strike.name for strike in struck if not strike.marker.exists()] == [], "a strike never came"
    assert remains(run) == expected, outputs(run)
    assert archives(run) == expected.archives, outputs(run)
    assert started_twice(run) == []
    assert alive_of(run.root) == []


@pytest.mark.parametrize("case", VARIANTS)
def test_killed_once_in_every_phase_a_run_ends_with_the_same_bits(
    case: str, task: Path, undisturbed: Callable[[str], Remains], tmp_path: Path
) -> None:
    """Worker 1 in all of them, one after another: each strike counts from the one before."""
    expected, struck = undisturbed(case), list[Strike]()
    for phase, (point, nth) in PHASES.items():
        words = (tmp_path, phase, "worker-1", point, "KILL", "self", nth)
        struck.append(After(*words, first=struck[-1]) if struck else Strike(*words))
    run = create_run(tmp_path / "run", experiment_of(case, task))
    finish(run, Phased(Strikes(tuple(struck))))
    assert len(run.numbers()) > len(PHASES)
    check(run, struck, expected)


@pytest.mark.parametrize(
    ("case", "phase", "target"), [*itertools.product(VARIANTS, PHASES, ("master", "agent-0", "all"))]
)
def test_whoever_is_killed_in_a_phase_the_run_ends_with_the_same_bits(
    case: str, phase: str, target: str, task: Path, undisturbed: Callable[[str], Remains], tmp_path: Path
) -> None:
    expected, (point, nth) = undisturbed(case), PHASES[phase]
    strike = Strike(tmp_path, phase, "worker-0", point, "KILL", target, nth)
    run = create_run(tmp_path / "run", experiment_of(case, task))
    finish(run, Phased(strike))
    check(run, [strike], expected)
