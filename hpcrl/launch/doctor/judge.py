"""What follows from what `hpcrl doctor` has measured: facts → findings. Pure; each subject has a file."""

from hpcrl.launch.doctor.facts import Facts
from hpcrl.launch.doctor.findings import Finding
from hpcrl.launch.doctor.judge_disk import judge_disk
from hpcrl.launch.doctor.judge_gpus import judge_gpus
from hpcrl.launch.doctor.judge_nodes import judge_job, judge_network, judge_nodes, judge_software
from hpcrl.launch.doctor.judge_slurm import judge_slurm


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
