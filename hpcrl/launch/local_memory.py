"""What memory the workers of a run on this machine will have. Reads texts of the kernel, and asks NVML for GPUs."""

import os
import re
from pathlib import Path

from hpcrl.agent.gpus import seen_devices
from hpcrl.config.cluster import ClusterConfig
from hpcrl.placement.capacity import Capacity

LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""What a container may take, by version of cgroups."""
_TOTAL = re.compile(r"^MemTotal:\s+(\d+) kB$", re.MULTILINE)


def memory(cluster: ClusterConfig, *_: object) -> Capacity:
    """The smallest GPU's, where workers compute on GPUs; else this machine's, which all simulated nodes share."""
    gpus = () if cluster.device == "cpu" else seen_devices(os.environ)
    if not gpus and cluster.device != "cuda":
        return _of_node(cluster)
    sized = [gpu for gpu in gpus if gpu.memory is not None]
    smallest = min(sized, key=lambda gpu: gpu.memory or 0, default=gpus[0] if gpus else None)
    return Capacity(
        None if smallest is None else smallest.memory,
        "worker",
        "the smallest GPU here has" if sized else "what the GPUs here have is not known",
        host=lambda: _of_node(cluster),
        gpu="" if smallest is None else smallest.name,
    )


def _of_node(cluster: ClusterConfig) -> Capacity:
    return Capacity(machine_bytes() / cluster.most_nodes, "node", "this machine has for it")


def machine_bytes(meminfo: Path = Path("/proc/meminfo"), limits: tuple[Path, ...] = LIMITS) -> int:
    """The machine's memory, or the container's where that is less."""
    found = _TOTAL.search(meminfo.read_text())
    assert found is not None, meminfo
    said = [path.read_text().strip() for path in limits if path.is_file()]
    return min([int(found[1]) * 1024, *(int(text) for text in said if text.isdecimal())])
