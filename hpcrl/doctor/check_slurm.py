"""What Slurm's settings mean for a run, and what to set where they do not fit."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from hpcrl.doctor.findings import CLUSTER, Finding, Severity, count
from hpcrl.doctor.measurements import Measurements, SlurmMeasurements
from hpcrl.launch.slurm.site import (
    SPILL_MARGIN_S,
    Partition,
    PreemptMode,
    SlurmSite,
    describe_preemption,
    preempt_mode_of,
)

OLDEST_SLURM = (22, 5)


def check_slurm(measured: Measurements) -> Iterator[Finding]:
    if measured.slurm is None:
        yield _no_slurm(measured)
        return
    found, site = measured.slurm, measured.slurm.site
    yield _version(site)
    yield _accounting(found)
    partitions = _partitions(site, measured.partition)
    if measured.partition and not partitions:
        known = ", ".join(site.partitions)
        follows = f"set cluster.slurm.partition to one of {known}"
        yield Finding("Slurm", f"partition {measured.partition}", "does not exist", Severity.PROBLEM, follows)
    for partition in partitions:
        yield _partition(partition)
    yield from _preemption(site, partitions)
    yield _kill_wait(site, partitions)
    yield _signals(site)
    yield _hold(site)
    yield from _limits(found)


def _no_slurm(measured: Measurements) -> Finding:
    value = measured.no_slurm or "none"
    if measured.job is not None:
        follows = "compute nodes need not ask it; for its settings run hpcrl doctor --no-jobs on a login node"
        return Finding("Slurm", "Slurm", value, Severity.NOTE, follows)
    if measured.slurm_silent:
        follows = "nothing can be submitted now; what runs already keeps running. (Is SLURM_CONF set, if you need it?)"
        return Finding("Slurm", "Slurm", value, Severity.WARNING, follows)
    return Finding("Slurm", "Slurm", value, Severity.NOTE, "runs are started on this machine (cluster.type local)")


def _partitions(site: SlurmSite, name: str | None) -> list[Partition]:
    if name is None:
        return list(site.partitions.values())
    return [site.partitions[each] for each in name.split(",") if each in site.partitions]


def _version(site: SlurmSite) -> Finding:
    version = ".".join(f"{part:02}" for part in site.version[:2]) + "".join(f".{part}" for part in site.version[2:])
    value = f"{version or 'of unknown version'}, cluster {site.cluster or 'without a name'}"
    if site.version and site.version[:2] < OLDEST_SLURM:
        return Finding("Slurm", "version", value, Severity.NOTE, "hpcrl reads the output of 22.05 and later; untried")
    return Finding("Slurm", "version", value, Severity.OK)


def _accounting(found: SlurmMeasurements) -> Finding:
    site = found.site
    if not site.accounting:
        follows = (
            "how jobs ended is concluded from the run's own journal and from squeue, which forgets a job "
            f"{found.min_job_age_s:.0f} s after its end"
        )
        return Finding("Slurm", "accounting", "none", Severity.NOTE, follows)
    if not found.sacct:
        follows = "hpcrl works without it, as where there is none; tell the administrators"
        return Finding("Slurm", "accounting", f"does not answer: {found.sacct_error}", Severity.WARNING, follows)
    if not site.accounting_comments:
        follows = (
            "a job whose sbatch lost its answer is looked up by its comment in squeue, which forgets a job "
            f"{found.min_job_age_s:.0f} s after its end"
        )
        return Finding("Slurm", "accounting", "yes, without comments", Severity.OK, follows)
    return Finding("Slurm", "accounting", "yes", Severity.OK)


def _partition(partition: Partition) -> Finding:
    limit = "no time limit" if partition.max_time_s is None else f"at most {_duration(partition.max_time_s)}"
    gpus = "no GPUs counted" if partition.gpus is None else count(partition.gpus, "GPU")
    value = f"{count(partition.total_nodes, 'node')}, {gpus}, {limit}{', default' if partition.default else ''}"
    what = f"partition {partition.name}"
    lead_s = CLUSTER.slurm.signal_lead_s
    if partition.state and partition.state != "UP":
        return Finding("Slurm", what, f"{value}, {partition.state}", Severity.NOTE, "no job starts there now")
    if partition.max_time_s is not None and partition.max_time_s < 10 * lead_s:
        follows = f"of each job {lead_s} s are kept for its end: lower cluster.slurm.signal_lead_s"
        return Finding("Slurm", what, value, Severity.NOTE, follows)
    if partition.max_time_s is not None:
        return Finding("Slurm", what, value, Severity.OK, "at the limit a run is queued again and continues by itself")
    return Finding("Slurm", what, value, Severity.OK)


def _preemption(site: SlurmSite, partitions: Sequence[Partition]) -> Iterator[Finding]:
    """A line for all partitions that preempt alike."""
    alike: dict[tuple[PreemptMode, float], list[Partition]] = defaultdict(list)
    for partition in partitions:
        mode = preempt_mode_of(site, partition)
        alike[mode, 0.0 if mode in ("off", "suspend") else partition.grace_s].append(partition)
    for (mode, grace_s), members in alike.items():
        names = ", ".join(each.name for each in members)
        value = "never" if mode == "off" else f"{mode}, GraceTime {grace_s:.0f} s" if mode != "suspend" else mode
        said = describe_preemption(site, members[0].name)
        follows = said if mode != "off" else ""
        yield Finding(
            "Slurm", f"preemption on {names}", value, Severity.OK if mode == "off" else Severity.NOTE, follows
        )


def _kill_wait(site: SlurmSite, partitions: Sequence[Partition]) -> Finding:
    """What is left for calls in flight between the first signal and SIGKILL, on the partition that gives least."""
    value = f"{site.kill_wait_s:.0f} s"
    graces = [each.grace_s for each in partitions if preempt_mode_of(site, each) in ("requeue", "cancel")]
    if not graces:
        follows = f"matters for scancel only: at a time limit jobs hear {CLUSTER.slurm.signal_lead_s} s before"
        return Finding("Slurm", "KillWait", value, Severity.OK, follows)
    # The end of a GraceTime brings a KillWait of its own.
    left_s = site.kill_wait_s + (0.0 if site.preempt_type == "qos" else min(graces))
    fits_s = max(1.0, left_s - SPILL_MARGIN_S)
    if fits_s >= CLUSTER.grace_s:
        follows = f"cluster.grace_s may be up to {fits_s:.0f}; it is {CLUSTER.grace_s:.0f} unless you set it"
        return Finding("Slurm", "KillWait", value, Severity.OK, follows)
    follows = (
        f"set cluster.grace_s to at most {fits_s:.0f} (it is {CLUSTER.grace_s:.0f} unless you set it): calls that are "
        "not done by then are killed and made again"
    )
    return Finding("Slurm", "KillWait", value, Severity.NOTE, follows)


def _signals(site: SlurmSite) -> Finding:
    if site.preempt_type == "none":
        return Finding("Slurm", "signal at preemption", "none", Severity.OK)
    value = "USR2 where there is a GraceTime, else TERM" if site.send_user_signal else "TERM"
    return Finding("Slurm", "signal at preemption", value, Severity.OK, "hpcrl drains at either")


def _hold(site: SlurmSite) -> Finding:
    value = f"{site.requeue_hold_s:.0f} s"
    if site.requeue_hold_s > CLUSTER.replace_timeout_s / 2:
        follows = f"set cluster.replace_timeout_s to at least {3 * site.requeue_hold_s:.0f}"
        return Finding("Slurm", "hold of a requeued job", value, Severity.WARNING, follows)
    follows = (
        "so long a lost node is missing at least; cluster.replace_timeout_s is "
        f"{CLUSTER.replace_timeout_s:.0f} unless you set it"
    )
    return Finding("Slurm", "hold of a requeued job", value, Severity.OK, follows)


def _limits(found: SlurmMeasurements) -> Iterator[Finding]:
    site = found.site
    follows = f"cluster.nodes is at most {site.max_array_size} in topology array; the other topologies know no limit"
    yield Finding("Slurm", "MaxArraySize", str(site.max_array_size), Severity.OK, follows)
    few = found.max_job_count < 1000
    follows = "each element of an array counts: set cluster.topology to colocated for many nodes" if few else ""
    yield Finding("Slurm", "MaxJobCount", str(found.max_job_count), Severity.NOTE if few else Severity.OK, follows)
    if site.disable_hetjob_steps:
        follows = "set cluster.topology to array or colocated; hetjob is refused"
        yield Finding("Slurm", "steps of het jobs", "disabled", Severity.NOTE, follows)
    else:
        yield Finding("Slurm", "steps of het jobs", "allowed", Severity.OK)
    if found.rate_limit:
        follows = "hpcrl asks at most every 15 s for each run, and five times for a submission"
        yield Finding("Slurm", "limit of requests", "on (rl_enable)", Severity.OK, follows)
    if found.process_tracking and found.process_tracking != "cgroup":
        follows = "processes that leave their session outlive a job; hpcrl's own die with their agent"
        yield Finding("Slurm", "process tracking", found.process_tracking, Severity.NOTE, follows)


def _duration(seconds: float) -> str:
    days, rest = divmod(int(seconds), 86400)
    hours, rest = divmod(rest, 3600)
    parts = [(days, "d"), (hours, "h"), (rest // 60, "min")]
    return " ".join(f"{number} {unit}" for number, unit in parts if number) or f"{seconds:.0f} s"
