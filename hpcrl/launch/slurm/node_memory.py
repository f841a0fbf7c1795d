"""What memory the workers of a run on Slurm will have, as far as its options say it. Asks nobody."""

import re

from hpcrl.config.cluster import ClusterConfig
from hpcrl.placement.capacity import Capacity


def memory(cluster: ClusterConfig) -> Capacity:
    slurm = cluster.slurm
    if cluster.device != "cpu" and slurm.gpus != "none":
        return Capacity(None, "worker", "what the GPUs of the nodes have is not known here")
    asked = re.fullmatch(r"(\d+)([KMGT]?)B?", slurm.memory or "", re.IGNORECASE)
    if asked is None or int(asked[1]) == 0:
        return Capacity(None, "node", "what it gets is the partition's to say, unless cluster.slurm.memory is set")
    size = int(asked[1]) << {"K": 10, "M": 20, "G": 30, "T": 40}[asked[2].upper() or "M"]
    return Capacity(size, "node", "cluster.slurm.memory gives it")
