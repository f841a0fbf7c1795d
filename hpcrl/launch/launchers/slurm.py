"""Slurm: jobs that wait in a queue, end when their time is over, and are queued again or replaced."""

from hpcrl.config.cluster import Abilities, ClusterConfig
from hpcrl.launch.launcher import LauncherDeclaration


def abilities(cluster: ClusterConfig) -> Abilities:
    """Only elements of an array are replaced while the others stay: the other topologies are one job."""
    return Abilities(replaces_nodes=cluster.topology == "array", separates_gpus=True)


LAUNCHER = LauncherDeclaration(
    launcher="hpcrl.launch.slurm.launcher:SlurmLauncher",
    if_there="hpcrl.launch.slurm.launcher:find_slurm",
    abilities=abilities,
    allocation="hpcrl.launch.slurm.allocation:SlurmAllocation",
    queue="hpcrl.launch.slurm.queue:look",
    memory="hpcrl.launch.slurm.node_memory:memory",
)
