"""PPO on a tiny qwen2 whose calls are made elsewhere than where roles are trained: with moves, releases and blends."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from support.tiny_runs import tiny_cluster, tiny_control, tiny_data

from hpcrl.config.control import Frequency
from hpcrl.config.ema import EMAConfig
from hpcrl.config.generation import GenerationConfig
from hpcrl.config.kl import KLConfig
from hpcrl.config.model import OptimizerConfig, ReferenceConfig, TrainedBetweenConfig, TrainedModelConfig
from hpcrl.config.reward import RewardConfig
from hpcrl.placement.plan import ModelName, ReplicaPlan
from hpcrl.recipes.ppo import CriticConfig, PPOConfig, PPOExperiment
from hpcrl.workers.host import Arrived

STEPS = 3
Home = dict[str, Any]
STAGES: dict[str, Home] = {
    "actor": {"layout": "p2"},
    "critic": {"layout": "d2"},
    "reference": {"layout": "d1", "mesh": "1"},
    "actor_gen": {"layout": "d2", "mesh": "0-1"},
    "critic_inf": {"layout": "d1", "mesh": 1, "between": "host"},
}
"""The actor, of which each of two workers trains half of the layers, generates from two whole copies. A call has an
entry as a role has: those of calls are the ones with an underscore."""
COPIES: dict[str, Home] = {
    "actor": {"layout": "d2"},
    "critic": {"layout": "p2"},
    "reference": {"layout": "t2"},
    "actor_gen": {"layout": "t2"},
    "critic_inf": {"layout": "d1", "mesh": 0},
}
HALVES: dict[str, Home] = {
    "actor": {"layout": "t2"},
    "critic": {"layout": "t2"},
    "reference": {"layout": "d1", "mesh": "0"},
    "actor_gen": {"layout": "p2"},
    "critic_inf": {"layout": "d2"},
}
"""Every home, and every call that is elsewhere, is in other layouts, or on other workers, than in the other two."""
ALONE: dict[str, Home] = {}


def tiny_layouts(task: Path, workers: int, places: dict[str, Home], **cluster: Any) -> PPOExperiment:
    """On what `write_task` has written to `task`, in these homes and calls; the actor leaves the device between
    calls, the reference follows the actor, and both trained roles are exported."""
    homes = {name: place for name, place in places.items() if "_" not in name}
    calls = {name: place for name, place in places.items() if "_" in name}
    model: dict[str, Any] = {"path": str(task / "model"), "dtype": "fp64"}
    trained = model | {"optimizer": OptimizerConfig(lr=1e-3, schedule="cosine", warmup_steps=2)}
    away = TrainedBetweenConfig(parameters="host", gradients="drop", optimizer="host")
    kl = KLConfig(mode="reward", coef=0.1, adaptive=True, reference_ema=EMAConfig(decay=0.75))
    return PPOExperiment(
        control=replace(tiny_control(STEPS), export=Frequency(steps=2)),
        cluster=tiny_cluster(workers=workers, **cluster),
        data=tiny_data(task, samples_per_prompt=2),
        actor=TrainedModelConfig(**trained, **homes.get("actor", {}), between=away),
        critic=CriticConfig(**trained, **homes.get("critic", {})),
        reference=ReferenceConfig(**model, **homes.get("reference", {})),
        reward=RewardConfig(function=f"{task / 'reward.py'}:ones"),
        generation=GenerationConfig(max_new_tokens=6, temperature=0.9, slots=4),
        ppo=PPOConfig(minibatches=2, epochs=2, value_norm=True, kl=kl),
        calls=calls,
    )


def flip_a_bit(rank: int) -> None:
    """In a worker: of version 1 of the actor rank 0 receives another bit than it was sent."""
    import torch

    from hpcrl.algos.host import TorchHost

    move, brings = TorchHost.move, TorchHost._move_parameters

    def flipped(self: TorchHost, home: ReplicaPlan, target: ReplicaPlan) -> None:
        brings(self, home, target)
        received = self._state(target.model).flat()[1].view(torch.uint8)
        received[len(received) * 3 // 4] ^= 1

    def moved(self: TorchHost, replica: ModelName, version: int) -> Arrived:
        spoil = (rank, replica.role, version) == (0, "actor", 1)
        setattr(TorchHost, "_move_parameters", flipped if spoil else brings)  # noqa: B010
        return move(self, replica, version)

    TorchHost.move = moved  # type: ignore[method-assign]
