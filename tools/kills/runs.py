"""The runs that are struck: tiny models on the torch host, two nodes with two model workers each, real processes."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from support.archives import archives
from support.chaos import Remains, remains
from support.choosing import decisions
from support.hosts import write_task
from support.tiny_layouts import Home, tiny_layouts
from support.tiny_ppo import tiny_ppo
from support.tiny_runs import tiny_cluster, tiny_control, tiny_data

from hpcrl.config.cluster import ClusterConfig
from hpcrl.config.control import Frequency
from hpcrl.config.ema import EMAConfig
from hpcrl.config.experiment import ExperimentConfig
from hpcrl.config.filter_groups import FilterGroupsConfig
from hpcrl.config.generation import EvaluationConfig, GenerationConfig
from hpcrl.config.kl import KLConfig
from hpcrl.config.model import ModelConfig, OptimizerConfig, ReferenceConfig, TrainedModelConfig
from hpcrl.config.reward import RewardConfig
from hpcrl.durable.rundir import RunDirectory
from hpcrl.recipes.evaluate import EvaluateExperiment
from hpcrl.recipes.generate import GenerateExperiment
from hpcrl.recipes.grpo import GRPOConfig, GRPOExperiment
from kills.points import CHOOSING, EVALUATE, EXTENDED_FIRST, GENERATE, LAYOUTS, PPO

NODES = 2
STEPS = 4
LAID_OUT: dict[str, Home] = {
    "actor": {"layout": "d2p2"},
    "critic": {"layout": "t2", "mesh": "2-3"},
    "reference": {"layout": "p2", "mesh": "1-2"},
    "actor_gen": {"layout": "d4"},
    "critic_inf": {"layout": "d1", "mesh": "3", "between": "host"},
}
"""The actor's stages are on a node each, and so are those of the reference that follows it."""
SCARCE = """
def scarce(response):
    return float("7" in response)
"""


def write_tasks(folder: Path) -> None:
    """What the runs need."""
    write_task(folder)
    (folder / "scarce.py").write_text(SCARCE)


def experiment(name: str, task: Path, **cluster: Any) -> ExperimentConfig:
    """The run of this name, on what `write_tasks` has written; `cluster` are settings of its own."""
    if name == PPO:
        return tiny_ppo(task, nodes=NODES, **cluster)
    if name == LAYOUTS:
        return tiny_layouts(task, 2, LAID_OUT, nodes=NODES, **cluster)
    made = MAKERS[name](task, tiny_cluster(NODES, **cluster))
    control = tiny_control(STEPS)
    if isinstance(made, GRPOExperiment):
        return replace(made, control=replace(control, export=Frequency(steps=STEPS)))
    return replace(made, control=replace(control, evaluate=Frequency()))


def choosing(task: Path, cluster: ClusterConfig) -> GRPOExperiment:
    """GRPO that draws until a batch is full, is held to a reference that follows it, and scores on CPU workers."""
    path = str(task / "model")
    return GRPOExperiment(
        cluster=cluster,
        data=tiny_data(task, samples_per_prompt=4),  # type: ignore[arg-type]
        actor=TrainedModelConfig(path=path, optimizer=OptimizerConfig(lr=0.001)),
        reference=ReferenceConfig(path=path),
        reward=RewardConfig(function=f"{task / 'scarce.py'}:scarce", workers=1),
        generation=GenerationConfig(max_new_tokens=6, slots=8),
        grpo=GRPOConfig(
            minibatches=2,
            kl=KLConfig(mode="loss", coef=0.01, reference_ema=EMAConfig(decay=0.75)),
            filter_groups=FilterGroupsConfig(metric="accuracy", max_rounds=20),
        ),
    )


def generate(task: Path, cluster: ClusterConfig) -> GenerateExperiment:
    return GenerateExperiment(
        cluster=cluster,
        data=tiny_data(task, evaluate=None, samples_per_prompt=2),
        actor=ModelConfig(path=str(task / "model")),
        generation=GenerationConfig(max_new_tokens=6, slots=8),
    )


def evaluate(task: Path, cluster: ClusterConfig) -> EvaluateExperiment:
    return EvaluateExperiment(
        cluster=cluster,
        data=tiny_data(task, evaluate=None),
        actor=ModelConfig(path=str(task / "model")),
        reward=RewardConfig(function=f"{task / 'reward.py'}:ones"),
        generation=GenerationConfig(
            max_new_tokens=6, slots=8, evaluation=EvaluationConfig(samples_per_prompt=2, temperature=1.0)
        ),
    )


MAKERS: Mapping[str, Callable[[Path, ClusterConfig], Any]] = {
    CHOOSING: choosing,
    GENERATE: generate,
    EVALUATE: evaluate,
}

Left = tuple[Remains, dict[int, bytes]]
"""What a run leaves: its state, and its archives by step."""


def left(name: str, run: RunDirectory) -> Left:
    """What is compared; of a run that chooses, that it decides in the order in which it is struck."""
    if name == CHOOSING:
        decided = decisions(run)
        assert decided[: len(EXTENDED_FIRST)] == list(EXTENDED_FIRST), decided
    return remains(run), archives(run)
