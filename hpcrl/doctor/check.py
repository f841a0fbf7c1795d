"""What follows from what `hpcrl doctor` has measured: facts → findings. Pure; each subject has a file."""

from hpcrl.doctor.check_disk import judge_disk
from hpcrl.doctor.check_gpus import judge_gpus
from hpcrl.doctor.check_nodes import judge_job, judge_network, judge_nodes, judge_software
from hpcrl.doctor.check_slurm import judge_slurm
from hpcrl.doctor.findings import Finding
from hpcrl.doctor.measurements import Facts


def judge(facts: Facts) -> tuple[Finding, ...]:
    """All findings, in the order in which they are shown."""
    return (
        *judge_slurm(facts),
        *judge_software(facts.here),
        *judge_disk("disk, from here", facts.disk),
        *judge_job(facts.job, facts.nodes),
        *judge_nodes(facts.here, facts.nodes),
        *judge_network(facts.nodes),
        *judge_gpus(facts.nodes),
    )
