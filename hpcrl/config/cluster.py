"""Where a run's processes are, and how long they wait for each other."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    """Nodes, workers and deadlines. Knows nothing of models."""

    type: Literal["local", "slurm"] = "local"
    """Who starts the processes: this machine, or Slurm."""
    nodes: int = 1
    """Nodes, each with one agent. With type local, several agents on this machine."""
    workers_per_node: int = 2
    """Model workers per node: one per GPU, or CPU processes."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """What a worker computes on; auto takes GPUs where there are any."""
    threads_per_worker: int = 1
    """CPU threads of a worker's arithmetic."""
    start_timeout_s: float = 300.0
    """How long the master waits for all workers to be ready."""
    heartbeat_s: float = 1.0
    """How often each process shows that it is alive."""
    lost_after_s: float = 9.0
    """A process that has shown nothing for this long is lost, and a new attempt begins."""
    orphan_timeout_s: float = 30.0
    """An agent that has heard nothing of its master for this long kills its workers and leaves."""
    replace_timeout_s: float = 60.0
    """How long the master waits for another node in the place of a lost one before it gives up and can be resumed."""
    grace_s: float = 25.0
    """How long calls in flight may go on when the run was told to go; what is not done by then is done again."""
