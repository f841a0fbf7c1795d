"""Runs of a tiny qwen2 on the torch host and real processes, in seconds, of any algorithm over texts."""

from pathlib import Path
from typing import Any

from hpcrl.config.cluster import ClusterConfig
from hpcrl.config.control import ControlConfig, Frequency
from hpcrl.config.data import DataConfig


def tiny_cluster(nodes: int = 1, workers: int = 2, **cluster: Any) -> ClusterConfig:
    """One whose lost processes are noticed at once."""
    fast = {"heartbeat_s": 0.2, "lost_after_s": 4.0, "orphan_timeout_s": 5.0, "replace_timeout_s": 0.5}
    return ClusterConfig(device="cpu", nodes=nodes, workers_per_node=workers, **(fast | cluster))


def tiny_control(steps: int) -> ControlConfig:
    """A checkpoint every two steps, an evaluation every three."""
    return ControlConfig(steps=steps, checkpoint=Frequency(steps=2), evaluate=Frequency(steps=3))


def tiny_data(task: Path, **data: Any) -> DataConfig:
    """What `write_task` has written to `task`."""
    files = {"train": str(task / "rows.jsonl"), "evaluate": str(task / "held_out.jsonl")}
    return DataConfig(**(files | {"batch_size": 4} | data))
