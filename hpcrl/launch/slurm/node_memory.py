"""What memory the workers of a run on Slurm will have, as far as its options and Slurm say it."""

import re
from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Protocol

from hpcrl.config.cluster import ClusterConfig
from hpcrl.launch.slurm.commands import SlurmError
from hpcrl.launch.slurm.render import node_cpus
from hpcrl.launch.slurm.site import NodeKind, Partition, SlurmSite
from hpcrl.placement.capacity import Capacity
from hpcrl.placement.sizes import GIB

LARGEST_GIB = MappingProxyType(
    {
        **dict.fromkeys(("t4", "p100", "a2"), 16),
        **dict.fromkeys(("a10", "a10g", "a30", "l4"), 24),
        **dict.fromkeys(("v100", "v100s"), 32),
        **dict.fromkeys(("a40", "l40", "l40s"), 48),
        **dict.fromkeys(("a100", "a800", "h800"), 80),
        **dict.fromkeys(("h100",), 96),
        **dict.fromkeys(("gh200", "h200"), 144),
        **dict.fromkeys(("b200", "gb200"), 192),
    }
)
"""Names that sites give their types of GPU, in lower case → the memory of the largest that is sold under the name."""
_SIZE = re.compile(r"(\d+)([KMGT]?)B?", re.IGNORECASE)
UNKNOWN = "Slurm does not say what it gets"
MORE = "Or ask for more of a node: cluster.slurm.memory."


class Asking(Protocol):
    """Whom the launcher asks; what it has been told once it knows."""

    def site(self) -> SlurmSite: ...

    def nodes(self, partitions: str) -> list[NodeKind]: ...


def memory(cluster: ClusterConfig, asking: Asking, cpu_workers: int = 0) -> Capacity:
    """Slurm is asked only for what the options leave open; where it gives no answer, nobody knows."""

    def of_node() -> Capacity:
        return _of_node(cluster, asking, cpu_workers)

    if cluster.device == "cpu" or cluster.slurm.gpus == "none":
        return of_node()
    try:
        return replace(_of_gpus(cluster, asking), host=of_node)
    except SlurmError:
        return Capacity(None, "worker", UNKNOWN, host=of_node)


def _of_node(cluster: ClusterConfig, asking: Asking, cpu_workers: int) -> Capacity:
    slurm = cluster.slurm
    if any(flag.startswith("--mem") for flag in slurm.flags):
        return Capacity(None, "node", "cluster.slurm.flags say what it gets")
    asked = _SIZE.fullmatch(slurm.memory or "")
    if asked is not None and int(asked[1]):
        size = int(asked[1]) << {"K": 10, "M": 20, "G": 30, "T": 40}[asked[2].upper() or "M"]
        return Capacity(size, "node", "cluster.slurm.memory gives it", MORE)
    try:
        return _of_nodes(cluster, asking, node_cpus(cluster, cpu_workers))
    except SlurmError:
        return Capacity(None, "node", UNKNOWN)


def _of_nodes(cluster: ClusterConfig, asking: Asking, cpus: int) -> Capacity:
    """What a job gets of a node that asks for so many CPUs, and for no memory, or for all."""
    slurm, site = cluster.slurm, asking.site()
    found = site.partitions_of(slurm.partition)
    names = ",".join(each.name for each in found)
    takes_all = slurm.memory is not None or "--exclusive" in slurm.flags or not site.limits_memory
    given = None if takes_all else _largest([_given(each, cpus) for each in found])
    if given is not None:
        return Capacity(given, "node", f"without cluster.slurm.memory a job gets, on partition {names},", MORE)
    sizes = [kind.memory_bytes for kind in asking.nodes(names)] if found else []
    most, allowed = _largest(sizes), _largest([each.most_node_bytes for each in found])
    if most is None:
        return Capacity(None, "node", "Slurm does not say what the nodes have")
    if allowed is not None and site.limits_memory:
        most = min(most, allowed)
    return Capacity(most, "node", f"{'the largest' if len(set(sizes)) > 1 else 'a'} node of partition {names} has")


def _given(partition: Partition, cpus: int) -> int | None:
    if partition.node_bytes is not None or partition.cpu_bytes is None:
        return partition.node_bytes
    return partition.cpu_bytes * cpus


def _of_gpus(cluster: ClusterConfig, asking: Asking) -> Capacity:
    """By the names of their types; of several the largest, for a job may get nothing else."""
    types = {cluster.slurm.gpu_type} if cluster.slurm.gpu_type else _gpu_types(cluster, asking)
    most = _largest([gpu_bytes(kind) for kind in types])
    source = f"a GPU of type {' or '.join(sorted(types))} has at most"
    return Capacity(most, "worker", source if most else "what the GPUs of the nodes have is not known here")


def _gpu_types(cluster: ClusterConfig, asking: Asking) -> set[str]:
    found = asking.site().partitions_of(cluster.slurm.partition)
    nodes = asking.nodes(",".join(each.name for each in found)) if found else []
    return {kind for node in nodes for kind in node.gpu_types}


def _largest(sizes: Sequence[int | None]) -> int | None:
    """None where one of them is not known, or there is none."""
    known = [size for size in sizes if size is not None]
    return max(known) if known and len(known) == len(sizes) else None


def gpu_bytes(kind: str) -> int | None:
    """What the name of a type says: `nvidia_a100_80gb_pcie`, `a100-40g`, `v100`; of a MIG instance its own part."""
    name = kind.lower()
    sizes = re.findall(r"(\d+)gi?b(?![a-z])", name) or re.findall(r"[_-](\d{2,3})g$", name)
    if sizes:
        return int(sizes[-1]) * GIB
    named = [LARGEST_GIB[word] for word in re.split(r"[^a-z0-9]+", name) if word in LARGEST_GIB]
    return named[0] * GIB if len(named) == 1 else None
