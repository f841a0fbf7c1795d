"""PPO on a tiny qwen2: the torch host on real processes, a run in seconds."""

from pathlib import Path
from typing import Any

from hpcrl.config.cluster import ClusterConfig
from hpcrl.config.control import ControlConfig, Frequency
from hpcrl.config.data import DataConfig
from hpcrl.config.generation import GenerationConfig
from hpcrl.config.kl import KLConfig
from hpcrl.config.model import OptimizerConfig, ReferenceConfig, TrainedModelConfig
from hpcrl.config.reward import RewardConfig
from hpcrl.recipes.ppo import CriticConfig, PPOConfig, PPOExperiment


def tiny_ppo(task: Path, steps: int = 4, nodes: int = 2, workers: int = 2, **cluster: Any) -> PPOExperiment:
    """On what `write_task` has written to `task`: each mini-batch twice a step, checkpoints, evaluations, export."""
    fast = {"heartbeat_s": 0.2, "lost_after_s": 4.0, "orphan_timeout_s": 5.0, "replace_timeout_s": 0.5}
    path = str(task / "model")
    optimizer = OptimizerConfig(lr=0.01)
    return PPOExperiment(
        control=ControlConfig(
            steps=steps, checkpoint=Frequency(steps=2), evaluate=Frequency(steps=3), export=Frequency(steps=4)
        ),
        cluster=ClusterConfig(device="cpu", nodes=nodes, workers_per_node=workers, **(fast | cluster)),
        data=DataConfig(train=str(task / "rows.jsonl"), evaluate=str(task / "held_out.jsonl"), batch_size=8),
        actor=TrainedModelConfig(path=path, optimizer=optimizer),
        critic=CriticConfig(path=path, optimizer=optimizer),
        reference=ReferenceConfig(path=path),
        reward=RewardConfig(function=f"{task / 'reward.py'}:ones"),
        generation=GenerationConfig(max_new_tokens=6, temperature=0.9, slots=8),
        ppo=PPOConfig(minibatches=2, epochs=2, value_norm=True, kl=KLConfig(mode="reward", coef=0.1, adaptive=True)),
    )
