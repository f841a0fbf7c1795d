"""What the cluster is: Slurm's own description of itself, and whether it answers."""

from collections.abc import Sequence

from hpcrl.doctor.measurements import SlurmMeasurements
from hpcrl.launch.slurm.commands import Slurm, SlurmError
from hpcrl.launch.slurm.site import parse_config, read_site

MAX_JOB_COUNT = 10000
MIN_JOB_AGE_S = 300.0
"""Slurm's defaults."""


def ask_slurm(slurm: Slurm) -> SlurmMeasurements:
    """Raises SlurmError or SlurmUnavailableError where there is no Slurm that answers."""
    config = slurm.show_config()
    values = parse_config(config)
    return SlurmMeasurements(
        site=read_site(config, slurm.show_partition()),
        max_job_count=_integer(values.get("MaxJobCount", ""), MAX_JOB_COUNT),
        min_job_age_s=float(_integer(values.get("MinJobAge", ""), int(MIN_JOB_AGE_S))),
        process_tracking=values.get("ProctrackType", "").removeprefix("proctrack/"),
        rate_limit="rl_enable" in values.get("SlurmctldParameters", "").lower(),
        sacct=(said := _ask_accounting(slurm)) == "",
        sacct_error=said,
    )


def _ask_accounting(slurm: Slurm) -> str:
    """What is wrong with sacct, or nothing."""
    try:
        slurm.sacct(days=1)
    except SlurmError as error:
        return error.stderr.splitlines()[0] if error.stderr else str(error).splitlines()[0]
    return ""


def _integer(text: str, default: int) -> int:
    word: Sequence[str] = text.split()
    return int(word[0]) if word and word[0].isdecimal() else default
