"""Runs that train low-rank adapters, and where they are struck."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from support.layout_runs import ppo
from support.struck_layouts import Blow

from hpcrl.config.control import Frequency
from hpcrl.config.model import LoraConfig, ReferenceConfig
from hpcrl.recipes.ppo import PPOExperiment

LORA = LoraConfig(rank=4, alpha=8.0)
BLOWS = {
    "in generation": Blow("worker-1", "decode.begin", 3),
    "in a forward pass": Blow("worker-1", "worker.call", 6),
    "in a backward pass": Blow("worker-0", "backward.begin", 5),
    "before its reply": Blow("worker-1", "worker.executed", 6),
    "in a snapshot": Blow("worker-0", "shard.synced", 2),
    "in an export": Blow("worker-0", "export.write", 2),
    "the agent": Blow("worker-0", "worker.executed", 7, "agent-0"),
    "all": Blow("master", "journal.after", 14, "all"),
}


def adapted(task: Path, layout: str = "t2", **changes: Any) -> PPOExperiment:
    """Actor and critic have adapters, and lie as `layout` says on two workers; the reference is the actor without
    its own."""
    whole = ppo(task, layout, 2)
    optimizer = replace(whole.actor.optimizer, lr=0.02)
    return replace(
        whole,
        control=replace(whole.control, export=Frequency(steps=2)),
        actor=replace(whole.actor, lora=LORA, optimizer=optimizer, recompute=True),
        critic=replace(whole.critic, lora=replace(LORA, targets=("q_proj", "down_proj")), optimizer=optimizer),
        reference=ReferenceConfig(path=whole.reference.path, of="actor", dtype="fp64"),
        **changes,
    )
