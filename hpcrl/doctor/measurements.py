"""What `hpcrl doctor` has measured, as values: from the measure_* files to the check_* files.

Knows no thresholds and no advice. `hpcrl doctor --json` prints them; they can be checked again.
"""

import importlib.metadata
import os
import platform
import socket
import sys
import zlib
from pathlib import Path

import msgspec

import hpcrl
from hpcrl.agent.torch_build import TorchBuild
from hpcrl.launch.slurm.site import SlurmSite
from hpcrl.wire.address import InterfaceAddress

PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "h5py", "pyzmq", "msgspec")
"""Those whose versions change numbers, files or messages."""


class Software(msgspec.Struct, frozen=True):
    """A Python and what it would run. `code` is a checksum of hpcrl's own files."""

    python: str
    executable: str
    hpcrl: str
    folder: str
    code: str
    packages: dict[str, str]


class DiskMeasurements(msgspec.Struct, frozen=True, kw_only=True):
    """A filesystem, tried by one process in a folder inside `path`. `failed`: operation → what the system said."""

    path: str
    filesystem: str
    free_bytes: int
    failed: dict[str, str]
    link_exclusive: bool
    create_exclusive: bool
    mkdir_exclusive: bool
    rename_replaces: bool
    modes_kept: bool
    fsync_s: tuple[float, ...]
    """Of small files: write, fsync, rename, fsync of the directory."""
    clock_ahead_s: float | None
    """How far the file server's clock is ahead of this machine's."""


class Seen(msgspec.Struct, frozen=True):
    """How long after another node did it something was seen here; None: not within the deadline."""

    how: str
    """open (a name that was looked up before it existed), list, or append (to a file that was read before)."""
    seconds: tuple[float | None, ...]


class Race(msgspec.Struct, frozen=True):
    """Two nodes made the same name at once: how often one, none or both were told that it was theirs."""

    how: str
    """link, create (O_EXCL) or mkdir."""
    one: int
    none: int
    both: int
    failed: str = ""


class Replaced(msgspec.Struct, frozen=True):
    """What a reader met while another node replaced a file by renaming, again and again."""

    reads: int
    stale: int
    missing: int
    torn: int
    not_recovered: int
    """Of stale and missing: so often the next five tries by name failed too."""


class PairMeasurements(msgspec.Struct, frozen=True, kw_only=True):
    """What one node measured against another."""

    other: int
    connect_s: float | None
    """Until a TCP connection to the address that the other gave; None where there was none."""
    connect_error: str = ""
    clock_ahead_s: float | None = None
    """How far the other's clock is ahead of this one's; the error is at most half of round_trip_s."""
    round_trip_s: float | None = None
    seen: tuple[Seen, ...] = ()
    races: tuple[Race, ...] = ()
    replaced: Replaced | None = None
    error: str = ""
    """What ended the measurement early."""


class GpuMeasurements(msgspec.Struct, frozen=True):
    """The GPUs that a node shows. `links`: "0-1" → NV4, PIX, SYS … of nvidia-smi topo -m."""

    names: tuple[str, ...] = ()
    links: dict[str, str] = {}
    complaint: str = ""
    """Why the driver shows no more."""
    capabilities: tuple[tuple[int, int] | None, ...] = ()
    """CUDA's compute capability of each."""
    driver: str = ""
    cuda: tuple[int, int] | None = None
    """The newest CUDA that the driver knows."""
    torch: TorchBuild | None = None
    """None where there is no GPU."""


class NodeMeasurements(msgspec.Struct, frozen=True, kw_only=True):
    """One node, or one process that stands for a node."""

    index: int
    name: str
    host: str
    boot_id: str
    address: str
    """Where it listened."""
    interface: str = ""
    others: tuple[InterfaceAddress, ...] = ()
    """Where else it might; none where the user has chosen."""
    complaint: str = ""
    """Why it did not listen where cluster.interface and cluster.ports say."""
    cpus: int
    open_files: int
    """The hard limit of open files of a process."""
    software: Software
    disk: DiskMeasurements
    gpus: GpuMeasurements
    pairs: tuple[PairMeasurements, ...] = ()
    absent: tuple[int, ...] = ()
    """Those whose greeting never came."""


class SlurmMeasurements(msgspec.Struct, frozen=True):
    """The cluster, and what is missing in `SlurmSite` because only the doctor asks."""

    site: SlurmSite
    max_job_count: int
    min_job_age_s: float
    process_tracking: str
    rate_limit: bool
    sacct: bool
    """Whether it answered."""
    sacct_error: str = ""


class JobMeasurements(msgspec.Struct, frozen=True):
    """The job that asked the nodes. `said`: the end of its output, where nodes are missing."""

    wanted: int
    id: str = ""
    failed: str = ""
    waited_s: float = 0.0
    said: str = ""


class Measurements(msgspec.Struct, frozen=True, kw_only=True):
    """Everything. Without Slurm `slurm` is None and `no_slurm` says why."""

    here: Software
    host: str
    disk: DiskMeasurements
    slurm: SlurmMeasurements | None = None
    no_slurm: str = ""
    slurm_silent: bool = False
    """There is a Slurm here, and it does not answer."""
    partition: str | None = None
    """The one that the user asked about."""
    job: JobMeasurements | None = None
    """None where no nodes were to be asked."""
    nodes: tuple[NodeMeasurements, ...] = ()


def software_here() -> Software:
    """Of this process; imports none of the packages."""
    folder = Path(hpcrl.__file__).parent
    return Software(
        platform.python_version(), sys.executable, hpcrl.__version__, str(folder), code_checksum(folder), _packages()
    )


def _packages() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "missing"
    return found


def code_checksum(folder: Path) -> str:
    """Of the names and contents of all .py files below a folder."""
    checksum = 0
    for path in sorted(folder.rglob("*.py")):
        checksum = zlib.crc32(path.read_bytes(), zlib.crc32(path.relative_to(folder).as_posix().encode(), checksum))
    return f"{checksum:08x}"


def node_name() -> str:
    """As Slurm calls it, else the host's name."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()
