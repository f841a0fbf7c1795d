"""What follows from what `hpcrl doctor` has measured: measurements → findings. Pure; each subject has a file."""

from hpcrl.doctor.check_backends import check_backends
from hpcrl.doctor.check_disk import check_disk
from hpcrl.doctor.check_gpus import check_gpus
from hpcrl.doctor.check_nodes import check_job, check_network, check_nodes, check_software
from hpcrl.doctor.check_slurm import check_slurm
from hpcrl.doctor.findings import Finding
from hpcrl.doctor.measurements import Measurements


def check(measured: Measurements) -> tuple[Finding, ...]:
    """All findings, in the order in which they are shown."""
    return (
        *check_slurm(measured),
        *check_software(measured.here),
        *check_backends(measured.nodes),
        *check_disk("disk, from here", measured.disk),
        *check_job(measured.job, measured.nodes),
        *check_nodes(measured.here, measured.nodes),
        *check_network(measured.nodes),
        *check_gpus(measured.nodes),
    )
