"""Where a run's processes are, and how long they wait for each other."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from hpcrl.config.bounds import Count, NodeCount, NonNegative, Positive, ends_of
from hpcrl.config.fields import ChangeClass, NameText, PathText
from hpcrl.config.slurm import SlurmConfig


@dataclass(frozen=True, kw_only=True)
class Abilities:
    """What whoever started a run's processes can do for them: its declaration says it, master and agents are told."""

    replaces_nodes: bool = False
    """Whether a lost node or master is started again while the others stay."""
    separates_gpus: bool = False
    """Whether agents on one machine see different GPUs; else each takes its own by the number of its node."""


@dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    """Nodes, workers and deadlines. Knows nothing of models."""

    changes: ClassVar[ChangeClass] = ChangeClass.PLACEMENT

    type: NameText = "auto"
    """Who starts the processes: local (this machine), slurm, or your own as file.py:NAME; auto takes Slurm where there
    is one."""
    topology: Literal["auto", "array", "hetjob", "colocated"] = "auto"
    """On Slurm, how jobs are cut: a master job and an array with an element per node (array: nodes are replaced one by
    one), one heterogeneous job (hetjob: all start together), or one job whose first node has the master (colocated)."""
    template: PathText | None = None
    """Your own sbatch script in place of hpcrl's; `hpcrl template` prints one to begin with."""
    snapshot: bool = False
    """On Slurm, copy hpcrl into the run directory at submission, and run this copy whatever is installed later."""
    nodes: NodeCount = 1
    """Nodes, each with one agent; with type local, several agents on this machine. A range, such as 2-8: the run takes
    what it can get, from the least number to the most."""
    workers_per_node: Annotated[int, Meta(ge=1, le=1024)] = 2
    """Model workers per node: one per GPU, or CPU processes."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """What a worker computes on; auto takes GPUs where there are any."""
    gpu_isolation: Literal["shared", "strict"] = "shared"
    """What a worker sees: all GPUs of its job, of which it takes its own, so that neighbours reach each other directly
    (shared), or its own only (strict). MIG instances are always strict."""
    bind_cpus: bool = True
    """Keep a GPU's worker on the CPU cores next to its GPU. CPU workers run where Slurm lets them."""
    threads_per_worker: Count = 1
    """CPU threads of a worker's arithmetic."""
    peak_tflops: Positive | None = None
    """What a worker's device can do, in TFLOP/s without sparsity and in the models' type of numbers, as `hpcrl inspect`
    compares with what it did; null takes what its maker says of a GPU that hpcrl knows, and what a CPU does in a
    trial."""
    interface: str | None = None
    """Where master and workers listen on each node: an interface (ib0) or a network (10.10.0.0/16); null is whatever
    the node's host name leads to."""
    ports: str | None = None
    """The ports where master and workers listen, e.g. 20000-20100; null is any. gloo and NCCL take theirs from the
    kernel's net.ipv4.ip_local_port_range."""
    start_timeout_s: Positive = 300.0
    """How long the master waits for nodes, and for workers that come no further with importing, compiling and loading;
    those that do have as long as they take. A server of responses may do nothing for half as long when it is asked."""
    heartbeat_s: Positive = 1.0
    """How often each process shows that it is alive."""
    lost_after_s: Positive = 9.0
    """A process that has shown nothing for this long is lost, and a new attempt begins."""
    stalled_after_s: Positive = 60.0
    """A call that takes longer than this, and three times as long as the longest of its last 20, is reported as
    stalled, with whom it waits for and their stacks. The first of its kind has ten times as long. Nothing is ended."""
    orphan_timeout_s: Positive = 30.0
    """An agent whose master has been silent for this long leaves (its workers end after lost_after_s), and the master
    waits as long for a lost agent that may still live; in a Slurm array replace_timeout_s counts for both."""
    replace_timeout_s: Positive = 900.0
    """On Slurm, how long the others wait for a lost node or master to come back before all are queued again; where
    nodes is a range and enough of them are left, before the run continues with those."""
    patience_s: NonNegative = 60.0
    """Where nodes is a range, how long the run waits for more of them, once it could begin with the least number."""
    grow_every_s: NonNegative = 600.0
    """Where nodes is a range, how long it is at least from one time that the run takes further nodes in to the next."""
    grace_s: NonNegative = 25.0
    """How long calls in flight may take when the run was told to go; what is not done by then is done again."""
    slurm: SlurmConfig = SlurmConfig()
    """What is asked of Slurm."""

    @property
    def least_nodes(self) -> int:
        return ends_of(self.nodes)[0]

    @property
    def most_nodes(self) -> int:
        return ends_of(self.nodes)[1]

    @property
    def is_elastic(self) -> bool:
        """Whether the run may have one number of nodes or another."""
        return self.least_nodes != self.most_nodes

    @property
    def node_counts(self) -> range:
        """Every number of nodes that the run may have."""
        return range(self.least_nodes, self.most_nodes + 1)


def first_and_last_port(ports: str) -> tuple[int, int]:
    """The ends of a range like 20000-20100; (0, 0) of anything else."""
    first, _, last = ports.partition("-")
    return (int(first), int(last)) if first.isdecimal() and last.isdecimal() else (0, 0)
