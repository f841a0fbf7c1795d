"""Graphs to test with: calls, and the keys that their data sets deliver."""

from dataclasses import dataclass

from hpcrl.config.data import DataConfig
from hpcrl.config.kl import KLConfig
from hpcrl.config.model import ReferenceConfig, TrainedModelConfig
from hpcrl.config.reward import RewardConfig
from hpcrl.dataflow.graph import MFC, Graph, build_graph
from hpcrl.recipes.ppo import CriticConfig, PPOConfig, PPOExperiment, recipe


@dataclass(frozen=True)
class Recipe:
    calls: tuple[MFC, ...]
    dataset_keys: tuple[str, ...]
    eval_keys: tuple[str, ...] = ()

    def graph(self) -> Graph:
        return build_graph(self.calls, self.dataset_keys, self.eval_keys)


CALLS = recipe(
    PPOExperiment(
        data=DataConfig(train="rows.jsonl", batch_size=8),
        actor=TrainedModelConfig(path="model"),
        critic=CriticConfig(path="model"),
        reference=ReferenceConfig(path="model"),
        reward=RewardConfig(function="exact"),
        ppo=PPOConfig(kl=KLConfig(mode="reward")),
    )
)
PPO = Recipe(CALLS, ("prompts",), ("eval_prompts",))

LOOKS = Recipe(
    (
        MFC("gen", "actor", "generate", ("x",), ("y",)),
        MFC("grade", "reward", "inference", ("y",), ("r",)),
        MFC("glance", "actor", "inference", ("x",), ("g",)),
        MFC("look", "actor", "inference", ("y",), ("l",)),
        MFC("value", "critic", "inference", ("x", "y"), ("v",)),
        MFC("learn", "actor", "train_step", ("y", "r", "g", "l", "v")),
        MFC("learn_values", "critic", "train_step", ("y", "r", "v")),
    ),
    ("x",),
)
"""A role with several calls."""


def ppo() -> Recipe:
    """Without evaluation."""
    return Recipe(tuple(call for call in CALLS if call.dataset == "train"), ("prompts",))
