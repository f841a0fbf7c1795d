"""What is asked of Slurm: where the jobs go, what they get, and what a site needs besides."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from hpcrl.config.bounds import Count
from hpcrl.config.fields import ChangeClass, PathText

TimeLimit = Annotated[
    str,
    Meta(
        pattern=r"^(?i:\d+(:\d+){0,2}|\d+-\d+(:\d+){0,2}|UNLIMITED|INFINITE)\Z",
        description="a time as Slurm writes it: minutes, HH:MM:SS, D-HH, D-HH:MM:SS or UNLIMITED",
    ),
]


@dataclass(frozen=True, kw_only=True)
class SlurmConfig:
    """The site's options. What is null is left to Slurm. Defaults for all runs: ~/.config/hpcrl/site.yaml."""

    changes: ClassVar[ChangeClass] = ChangeClass.PLACEMENT

    account: str | None = None
    """The account that is charged (--account)."""
    partition: str | None = None
    """Where the workers run; null is Slurm's default partition."""
    master_partition: str | None = None
    """Where the master runs (one CPU task); null is the workers' partition."""
    qos: str | None = None
    """The workers' quality of service."""
    master_qos: str | None = None
    """The master's quality of service."""
    reservation: str | None = None
    """A reservation for all jobs."""
    constraint: str | None = None
    """Features that the workers' nodes must have, e.g. "a100&nvlink"."""
    nodelist: str | None = None
    """Nodes that the workers must be on."""
    exclude: str | None = None
    """Nodes that no job must be on."""
    time: TimeLimit | None = None
    """Time limit of each job as Slurm writes it, e.g. 1-12:00:00; the run continues in the next job when it is over."""
    gpus: Literal["gpus-per-node", "gres", "none"] = "gpus-per-node"
    """How the site wants GPUs asked for; none asks for no GPU (device cpu)."""
    gpu_type: str | None = None
    """The type of GPU, e.g. a100, where a partition has several."""
    cpus_per_worker: Count = 4
    """CPU cores for each worker, CPU workers included."""
    master_cpus: Count = 2
    """CPU cores for the master."""
    memory: str | None = None
    """Memory of a worker node as Slurm writes it, e.g. 200G, or 0 for all."""
    master_memory: str | None = "4G"
    """Memory of the master."""
    mail_user: str | None = None
    """Whom Slurm writes to."""
    mail_type: str | None = None
    """About what, e.g. END,FAIL."""
    comment: str | None = None
    """Added to the comment by which hpcrl finds its jobs again."""
    prologue: tuple[str, ...] = ()
    """Shell lines before each process, e.g. "module load cuda"."""
    export: tuple[str, ...] = ()
    """Environment variables of the submitting shell that the jobs get; empty is all of them."""
    container: Literal["none", "pyxis", "apptainer"] = "none"
    """What the processes run in."""
    container_image: str | None = None
    """The container's image: a .sif or .sqsh file, or a name that the runtime knows."""
    container_mounts: tuple[str, ...] = ()
    """Folders that the container sees besides the run directory, e.g. "/data:/data"."""
    wrap: tuple[str, ...] = ()
    """Words before Python in every process of a run, e.g. [apptainer, exec, --nv, image.sif]; they have to hand on
    signals and the exit code."""
    python: PathText | None = None
    """The Python that runs hpcrl in the jobs, in the container if there is one; null is the one that submits."""
    signal_lead_s: Annotated[int, Meta(gt=0)] = 120
    """How long before its time limit a job is warned, so that it can finish its calls and be queued again."""
    flags: tuple[str, ...] = ()
    """Further sbatch options for the workers, e.g. "--switches=1"."""
    master_flags: tuple[str, ...] = ()
    """Further sbatch options for the master."""
