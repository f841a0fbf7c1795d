"""What follows from what `hpcrl doctor` has measured: facts → findings. Pure; all thresholds and advice are here."""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType

import msgspec

from hpcrl.config.cluster import ClusterConfig
from hpcrl.launch.doctor_facts import (
    DiskFacts,
    Facts,
    JobFacts,
    NodeFacts,
    PairFacts,
    Race,
    Replaced,
    SlurmFacts,
    Software,
)
from hpcrl.launch.slurm.site import Partition, PreemptMode, Site, describe_preemption
from hpcrl.workers.address import LOOPBACK

CLUSTER = ClusterConfig()
"""Advice is given where a default does not fit."""

OLDEST_SLURM = (22, 5)
GIB = 2**30
LAST_WRITES_S = 5.0
"""What a drain needs after the calls in flight have ended."""
SKEW_S = 1.0
FILES_PER_AGENT = 16
"""Sockets that the master has with an agent and its workers, roughly."""
BAD_LINKS = frozenset({"SYS", "NODE", "PHB"})
"""Through a CPU, not over NVLink or a PCIe switch."""


class Verdict(StrEnum):
    """How much a finding matters, the least first."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    PROBLEM = "problem"


SEVERITY: Mapping[Verdict, int] = MappingProxyType(
    {Verdict.OK: 0, Verdict.NOTE: 0, Verdict.WARNING: 1, Verdict.PROBLEM: 2}
)


class Finding(msgspec.Struct, frozen=True):
    """One line of the table. `follows` says what to set, or what hpcrl does about it."""

    area: str
    what: str
    value: str
    verdict: Verdict
    follows: str = ""


def judge(facts: Facts) -> tuple[Finding, ...]:
    """All findings, in the order in which they are shown."""
    return (
        *_slurm(facts),
        *_software(facts),
        *_disk("disk, from here", facts.disk),
        *_job(facts.job, facts.nodes),
        *_nodes(facts.here, facts.nodes),
        *_between(facts.nodes),
        *_gpus(facts.nodes),
    )


def exit_status(findings: Iterable[Finding]) -> int:
    """0: fine, 1: warnings, 2: problems."""
    return max((SEVERITY[finding.verdict] for finding in findings), default=0)


# Slurm


def _slurm(facts: Facts) -> Iterator[Finding]:
    if facts.slurm is None:
        yield _no_slurm(facts)
        return
    found, site = facts.slurm, facts.slurm.site
    yield _version(site)
    yield _accounting(found)
    partitions = _partitions(site, facts.partition)
    if facts.partition and not partitions:
        known = ", ".join(site.partitions)
        follows = f"set cluster.slurm.partition to one of {known}"
        yield Finding("Slurm", f"partition {facts.partition}", "does not exist", Verdict.PROBLEM, follows)
    for partition in partitions:
        yield _partition(partition)
    yield from _preemption(site, partitions)
    yield _kill_wait(site, partitions)
    yield _signals(site)
    yield _requeue(site)
    yield _hold(site)
    yield from _limits(found)


def _no_slurm(facts: Facts) -> Finding:
    value = facts.no_slurm or "none"
    if facts.job is not None:
        follows = "compute nodes need not ask it; for its settings run hpcrl doctor --no-jobs on a login node"
        return Finding("Slurm", "Slurm", value, Verdict.NOTE, follows)
    if facts.slurm_silent:
        follows = "nothing can be submitted now; what runs already goes on. (Is SLURM_CONF set, if you need it?)"
        return Finding("Slurm", "Slurm", value, Verdict.WARNING, follows)
    return Finding("Slurm", "Slurm", value, Verdict.NOTE, "runs are started on this machine (cluster.type local)")


def _partitions(site: Site, name: str | None) -> list[Partition]:
    if name is None:
        return list(site.partitions.values())
    return [site.partitions[each] for each in name.split(",") if each in site.partitions]


def _version(site: Site) -> Finding:
    version = ".".join(f"{part:02}" for part in site.version[:2]) + "".join(f".{part}" for part in site.version[2:])
    value = f"{version or 'of unknown version'}, cluster {site.cluster or 'without a name'}"
    if site.version and site.version[:2] < OLDEST_SLURM:
        return Finding("Slurm", "version", value, Verdict.NOTE, "hpcrl reads the output of 22.05 and later; untried")
    return Finding("Slurm", "version", value, Verdict.OK)


def _accounting(found: SlurmFacts) -> Finding:
    site = found.site
    if not site.accounting:
        follows = (
            "how jobs ended is judged from the run's own journal and from squeue, which forgets a job "
            f"{found.min_job_age_s:.0f} s after its end"
        )
        return Finding("Slurm", "accounting", "none", Verdict.NOTE, follows)
    if not found.sacct:
        follows = "hpcrl goes on without it, as where there is none; tell the administrators"
        return Finding("Slurm", "accounting", f"does not answer: {found.sacct_error}", Verdict.WARNING, follows)
    if not site.accounting_comments:
        follows = (
            "a job whose sbatch lost its answer is looked up by its comment in squeue, and after "
            f"{found.min_job_age_s:.0f} s by name and folder"
        )
        return Finding("Slurm", "accounting", "yes, without comments", Verdict.OK, follows)
    return Finding("Slurm", "accounting", "yes", Verdict.OK)


def _partition(partition: Partition) -> Finding:
    limit = "no time limit" if partition.max_time_s is None else f"at most {_duration(partition.max_time_s)}"
    gpus = "no GPUs counted" if partition.gpus is None else _count(partition.gpus, "GPU")
    value = f"{_count(partition.total_nodes, 'node')}, {gpus}, {limit}{', default' if partition.default else ''}"
    what = f"partition {partition.name}"
    lead_s = CLUSTER.slurm.signal_lead_s
    if partition.state and partition.state != "UP":
        return Finding("Slurm", what, f"{value}, {partition.state}", Verdict.NOTE, "no job starts there now")
    if partition.max_time_s is not None and partition.max_time_s < 10 * lead_s:
        follows = f"of each job {lead_s} s are kept for its end: lower cluster.slurm.signal_lead_s"
        return Finding("Slurm", what, value, Verdict.NOTE, follows)
    if partition.max_time_s is not None:
        return Finding("Slurm", what, value, Verdict.OK, "at the limit a run is queued again and goes on by itself")
    return Finding("Slurm", what, value, Verdict.OK)


def _preemption(site: Site, partitions: Sequence[Partition]) -> Iterator[Finding]:
    """A line for all partitions that preempt alike."""
    alike: dict[tuple[PreemptMode, float], list[Partition]] = defaultdict(list)
    for partition in partitions:
        mode = _mode(site, partition)
        alike[mode, 0.0 if mode in ("off", "suspend") else partition.grace_s].append(partition)
    for (mode, grace_s), members in alike.items():
        names = ", ".join(each.name for each in members)
        value = "never" if mode == "off" else f"{mode}, GraceTime {grace_s:.0f} s" if mode != "suspend" else mode
        said = describe_preemption(site, members[0].name)
        follows = f"{said} {_of_mode(mode)}".strip() if mode != "off" else ""
        yield Finding("Slurm", f"preemption on {names}", value, Verdict.OK if mode == "off" else Verdict.NOTE, follows)


def _of_mode(mode: str) -> str:
    if mode == "suspend":
        return (
            f"Nodes that are suspended one by one look lost after cluster.lost_after_s = {CLUSTER.lost_after_s:.0f} s: "
            "set cluster.topology to colocated, so that all stop together."
        )
    return ""


def _kill_wait(site: Site, partitions: Sequence[Partition]) -> Finding:
    """What is left for calls in flight between the first signal and SIGKILL, on the partition that gives least."""
    value = f"{site.kill_wait_s:.0f} s"
    graces = [each.grace_s for each in partitions if _mode(site, each) in ("requeue", "cancel")]
    if not graces:
        follows = f"matters for scancel only: at a time limit jobs hear {CLUSTER.slurm.signal_lead_s} s before"
        return Finding("Slurm", "KillWait", value, Verdict.OK, follows)
    # The end of a GraceTime brings a KillWait of its own.
    left_s = site.kill_wait_s + (0.0 if site.preempt_type == "qos" else min(graces))
    fits_s = max(1.0, left_s - LAST_WRITES_S)
    if fits_s >= CLUSTER.grace_s:
        follows = f"cluster.grace_s may be up to {fits_s:.0f}; it is {CLUSTER.grace_s:.0f} unless you set it"
        return Finding("Slurm", "KillWait", value, Verdict.OK, follows)
    follows = (
        f"set cluster.grace_s to at most {fits_s:.0f} (it is {CLUSTER.grace_s:.0f} unless you set it): calls that are "
        "not done by then are killed and made again"
    )
    return Finding("Slurm", "KillWait", value, Verdict.NOTE, follows)


def _mode(site: Site, partition: Partition) -> PreemptMode:
    if site.preempt_type == "none":
        return "off"
    return site.preempt_mode if site.preempt_type == "qos" else partition.preempt_mode


def _signals(site: Site) -> Finding:
    if site.preempt_type == "none":
        return Finding("Slurm", "signal at preemption", "none", Verdict.OK)
    value = "USR2 where there is a GraceTime, else TERM" if site.send_user_signal else "TERM"
    return Finding("Slurm", "signal at preemption", value, Verdict.OK, "hpcrl drains at either")


def _requeue(site: Site) -> Finding:
    if site.requeue_allowed:
        return Finding("Slurm", "requeue", "allowed", Verdict.OK)
    follows = "hpcrl submits a successor in the place of each job that is to go on; it queues anew"
    return Finding("Slurm", "requeue", "forbidden (JobRequeue=0)", Verdict.NOTE, follows)


def _hold(site: Site) -> Finding:
    value = f"{site.requeue_hold_s:.0f} s"
    if site.requeue_hold_s > CLUSTER.replace_timeout_s / 2:
        follows = f"set cluster.replace_timeout_s to at least {3 * site.requeue_hold_s:.0f}"
        return Finding("Slurm", "hold of a requeued job", value, Verdict.WARNING, follows)
    follows = (
        "so long a lost node is missing at least; cluster.replace_timeout_s is "
        f"{CLUSTER.replace_timeout_s:.0f} unless you set it"
    )
    return Finding("Slurm", "hold of a requeued job", value, Verdict.OK, follows)


def _limits(found: SlurmFacts) -> Iterator[Finding]:
    site = found.site
    follows = f"cluster.nodes is at most {site.max_array_size} in topology array; the other topologies know no limit"
    yield Finding("Slurm", "MaxArraySize", str(site.max_array_size), Verdict.OK, follows)
    few = found.max_job_count < 1000
    follows = "each element of an array counts: set cluster.topology to colocated for many nodes" if few else ""
    yield Finding("Slurm", "MaxJobCount", str(found.max_job_count), Verdict.NOTE if few else Verdict.OK, follows)
    if site.disable_hetjob_steps:
        follows = "set cluster.topology to array or colocated; hetjob is refused"
        yield Finding("Slurm", "steps of het jobs", "disabled", Verdict.NOTE, follows)
    else:
        yield Finding("Slurm", "steps of het jobs", "allowed", Verdict.OK)
    if found.rate_limit:
        follows = "hpcrl asks at most every 15 s for each run, and five times for a submission"
        yield Finding("Slurm", "limit of requests", "on (rl_enable)", Verdict.OK, follows)
    if found.process_tracking and found.process_tracking != "cgroup":
        follows = "processes that leave their session outlive a job; hpcrl's own die with their agent"
        yield Finding("Slurm", "process tracking", found.process_tracking, Verdict.NOTE, follows)


# Here


def _software(facts: Facts) -> Iterator[Finding]:
    here = facts.here
    yield Finding("Python", "here", f"{here.python}, hpcrl {here.hpcrl} in {here.folder}", Verdict.OK)
    missing = [name for name, version in here.packages.items() if version == "missing"]
    if missing:
        follows = f"install them for {here.executable}"
        yield Finding("Python", "packages", f"missing: {', '.join(missing)}", Verdict.PROBLEM, follows)


def _disk(area: str, disk: DiskFacts) -> Iterator[Finding]:
    volatile = disk.filesystem in ("tmpfs", "ramfs")
    yield Finding(
        area,
        "filesystem",
        f"{disk.filesystem} at {disk.path}",
        Verdict.WARNING if volatile else Verdict.OK,
        "gone after a reboot, and it is memory: set run_root to a disk" if volatile else "",
    )
    yield _free(area, disk)
    yield from _operations(area, disk)
    yield _fsync(area, disk)
    if disk.clock_ahead_s is not None and abs(disk.clock_ahead_s) > SKEW_S:
        value = f"{disk.clock_ahead_s:+.1f} s against this machine"
        follows = "nothing of hpcrl's depends on times of files; other tools on this disk may"
        yield Finding(area, "the file server's clock", value, Verdict.NOTE, follows)


def _free(area: str, disk: DiskFacts) -> Finding:
    gib = disk.free_bytes / GIB
    follows = "free some, set run_root elsewhere, or lower control.keep_checkpoints" if gib < 20 else ""
    verdict = Verdict.PROBLEM if gib < 1 else Verdict.WARNING if gib < 20 else Verdict.OK
    return Finding(area, "free space", f"{gib:.1f} GiB", verdict, follows)


def _operations(area: str, disk: DiskFacts) -> Iterator[Finding]:
    needed = "set run_root to a filesystem that can do it: two masters could both believe that a run is theirs"
    works = {
        "link": (disk.link_exclusive, needed),
        "O_EXCL": (disk.create_exclusive, needed),
        "mkdir": (disk.mkdir_exclusive, needed),
        "rename": (disk.rename_replaces, "set run_root to a filesystem that can do it: files could appear in parts"),
        "chmod": (disk.modes_kept, "others may read the run's key: set run_root to a filesystem that keeps modes"),
        "fsync": ("fsync" not in disk.failed, "what counts as done may be lost in a crash: set run_root elsewhere"),
    }
    broken = [name for name, (fine, _) in works.items() if not fine]
    fine = ", ".join(name for name in works if name not in broken)
    if fine:
        yield Finding(area, "operations", f"{fine} as they should be", Verdict.OK)
    for name in broken:
        said = disk.failed.get(name, "not exclusive" if name in ("link", "O_EXCL", "mkdir") else "without effect")
        yield Finding(area, name, said, Verdict.WARNING if name == "chmod" else Verdict.PROBLEM, works[name][1])


def _fsync(area: str, disk: DiskFacts) -> Finding:
    if not disk.fsync_s:
        return Finding(area, "a durable file", "not measured", Verdict.NOTE)
    median, longest = statistics.median(disk.fsync_s), max(disk.fsync_s)
    value = f"{_short(median)}, at worst {_short(longest)}"
    if median < 0.05:
        return Finding(area, "a durable file", value, Verdict.OK)
    follows = (
        "each finished call waits for two or three of these: larger parts (data.batch_size, fewer workers) make fewer "
        "calls; or set run_root to a quicker disk"
    )
    return Finding(area, "a durable file", value, Verdict.NOTE if median < 0.5 else Verdict.WARNING, follows)


# Nodes


def _job(job: JobFacts | None, nodes: Sequence[NodeFacts]) -> Iterator[Finding]:
    if job is None:
        return
    value = f"{len(nodes)} of {job.wanted} answered" + (f" (job {job.id}, {job.waited_s:.0f} s)" if job.id else "")
    said = "; ".join(filter(None, [job.failed, job.said.replace("\n", " | ")]))
    if len(nodes) >= job.wanted:
        yield Finding("nodes", "asked", value, Verdict.OK)
    elif not nodes and "not started" in job.failed:
        follows = f"{said}. Nothing is known of the nodes: try --partition, --wait, or --in-job inside a job"
        yield Finding("nodes", "asked", value, Verdict.WARNING, follows)
    else:
        follows = f"{said}. Is {'the folder' if nodes else 'run_root'} on all nodes, and Python too?"
        yield Finding("nodes", "asked", value, Verdict.PROBLEM, follows)


def _nodes(here: Software, nodes: Sequence[NodeFacts]) -> Iterator[Finding]:
    if not nodes:
        return
    yield _same_software(nodes)
    if any(node.software.code != here.code for node in nodes):
        value = f"of nodes in {nodes[0].software.folder}, here in {here.folder}: different files"
        follows = "jobs would run another hpcrl than this command is: set cluster.slurm.python, or install it anew"
        yield Finding("nodes", "hpcrl", value, Verdict.WARNING, follows)
    for node in nodes:
        yield Finding("nodes", node.name, f"{node.address}, {_count(node.cpus, 'CPU core')} given", Verdict.OK)
    if len({node.boot_id for node in nodes}) < len(nodes):
        follows = "what was measured between them says nothing about two machines"
        yield Finding("nodes", "machines", "several nodes are one machine", Verdict.NOTE, follows)
    files = min(node.open_files for node in nodes)
    if files < 4096:
        follows = f"enough for about {files // FILES_PER_AGENT} nodes: have the hard limit of open files raised"
        yield Finding("nodes", "open files", str(files), Verdict.NOTE, follows)
    for node in nodes:
        bad = [finding for finding in _disk(f"disk, on {node.name}", node.disk) if finding.verdict is not Verdict.OK]
        yield from bad
    slowest = max(nodes, key=lambda node: statistics.median(node.disk.fsync_s or (0.0,)))
    yield _fsync("nodes", slowest.disk)


def _same_software(nodes: Sequence[NodeFacts]) -> Finding:
    first, *others = nodes
    differ = [
        f"{what} is {one} on {first.name}, {two} on {node.name}"
        for node in others
        for what, one, two in _differences(first, node)
    ]
    if differ:
        follows = "all nodes need the same: set cluster.slurm.python, cluster.slurm.prologue, or a container"
        return Finding("nodes", "Python", "; ".join(differ), Verdict.PROBLEM, follows)
    missing = [name for name, version in first.software.packages.items() if version == "missing"]
    if missing:
        follows = f"install them for {first.software.executable}, or set cluster.slurm.python"
        return Finding("nodes", "Python", f"missing: {', '.join(missing)}", Verdict.PROBLEM, follows)
    torch = first.software.packages.get("torch", "?")
    same = "; the same on all" if others else ""
    value = f"{first.software.python}, torch {torch}, hpcrl {first.software.hpcrl}{same}"
    return Finding("nodes", "Python", value, Verdict.OK)


def _differences(first: NodeFacts, second: NodeFacts) -> Iterator[tuple[str, str, str]]:
    one, two = first.software, second.software
    if one.python != two.python:
        yield "Python", one.python, two.python
    if (one.hpcrl, one.code) != (two.hpcrl, two.code):
        yield "hpcrl", f"{one.hpcrl} ({one.code})", f"{two.hpcrl} ({two.code})"
    for name in sorted({*one.packages, *two.packages}):
        versions = one.packages.get(name, "missing"), two.packages.get(name, "missing")
        if versions[0] != versions[1]:
            yield name, *versions


# Between nodes


def _between(nodes: Sequence[NodeFacts]) -> Iterator[Finding]:
    if len(nodes) < 2:
        return
    names = {node.index: node.name for node in nodes}
    pairs = [(node.name, names.get(pair.other, f"task {pair.other}"), pair) for node in nodes for pair in node.pairs]
    yield from _ports(nodes, pairs)
    yield from _absent(nodes, names)
    for reader, other, pair in pairs:
        if pair.error:
            follows = f"{reader} could not finish its measurements with {other}"
            yield Finding("between nodes", "broken off", pair.error, Verdict.WARNING, follows)
    whole = [pair for _, _, pair in pairs]
    yield from _visibility(whole)
    yield from _races(whole)
    yield from _replacing([pair.replaced for pair in whole if pair.replaced is not None])
    yield from _skew([pair.clock_ahead_s for pair in whole if pair.clock_ahead_s is not None])


def _ports(nodes: Sequence[NodeFacts], pairs: Sequence[tuple[str, str, PairFacts]]) -> Iterator[Finding]:
    closed = [(reader, other, pair) for reader, other, pair in pairs if pair.connect_s is None]
    loopback = [node.name for node in nodes if node.address == LOOPBACK]
    follows = (
        "master and workers talk over TCP on free ports: have the firewall between the nodes opened, or the nodes' "
        "host names resolve to addresses of their own network"
    )
    if loopback:
        value = f"{', '.join(loopback)}: only {LOOPBACK}, no address that others could use"
        yield Finding("between nodes", "TCP", value, Verdict.PROBLEM, follows)
    for reader, other, pair in closed:
        value = f"{reader} cannot reach {other}: {pair.connect_error}"
        yield Finding("between nodes", "TCP", value, Verdict.PROBLEM, follows)
    if closed or loopback:
        return
    slowest = max((pair.connect_s or 0.0 for _, _, pair in pairs), default=0.0)
    value = f"{_count(len(pairs), 'connection')}, the slowest in {_short(slowest)}"
    yield Finding("between nodes", "TCP", value, Verdict.OK)


def _absent(nodes: Sequence[NodeFacts], names: Mapping[int, str]) -> Iterator[Finding]:
    for node in nodes:
        if node.absent:
            value = f"{node.name} never saw {', '.join(names.get(each, f'task {each}') for each in node.absent)}"
            follows = f"is {node.disk.path} one and the same folder on all nodes? Set run_root to one that is"
            yield Finding("between nodes", "greetings", value, Verdict.PROBLEM, follows)


_SEEN_AS = MappingProxyType(
    {"list": "a new file in a listing", "open": "a new file by its name", "append": "what was appended to a file"}
)


def _visibility(pairs: Sequence[PairFacts]) -> Iterator[Finding]:
    for how, what in _SEEN_AS.items():
        rounds = [seconds for pair in pairs for seen in pair.seen if seen.how == how for seconds in seen.seconds]
        if not rounds:
            continue
        seconds = [each for each in rounds if each is not None]
        if len(seconds) < len(rounds):
            yield _unseen(how, what, len(rounds) - len(seconds), len(rounds))
            continue
        longest = max(seconds)
        value = f"after {_short(statistics.median(seconds))}, at worst {_short(longest)}"
        yield Finding("between nodes", what, value, *_of_latency(how, longest))


def _unseen(how: str, what: str, lost: int, rounds: int) -> Finding:
    value = f"in {lost} of {rounds} tries not seen within the deadline"
    if how == "list":
        follows = "hpcrl finds its peers by listing: set run_root to another filesystem, or have actimeo lowered"
        return Finding("between nodes", what, value, Verdict.PROBLEM, follows)
    if how == "open":
        follows = "hpcrl lists before it opens; your own scripts should too"
        return Finding("between nodes", what, value, Verdict.NOTE, follows)
    follows = "`hpcrl status` and `hpcrl logs` trail on other nodes; a run itself appends and reads on one node"
    return Finding("between nodes", what, value, Verdict.WARNING, follows)


def _of_latency(how: str, longest_s: float) -> tuple[Verdict, str]:
    if longest_s < 1:
        return Verdict.OK, ""
    if how == "append":
        return Verdict.NOTE, f"`hpcrl status` and `hpcrl logs` show what was up to {longest_s:.0f} s ago"
    if how == "open":
        return Verdict.NOTE, "hpcrl lists before it opens; your own scripts should too"
    needed_s = 60 + 10 * longest_s
    if needed_s > CLUSTER.start_timeout_s:
        return Verdict.WARNING, f"set cluster.start_timeout_s to at least {needed_s:.0f}: an attempt begins by files"
    follows = f"an attempt begins by files: cluster.start_timeout_s = {CLUSTER.start_timeout_s:.0f} is enough, "
    return Verdict.NOTE, follows + f"keep it above {needed_s:.0f}"


_RACES = MappingProxyType({"link": "link", "create": "O_EXCL", "mkdir": "mkdir"})


def _races(pairs: Sequence[PairFacts]) -> Iterator[Finding]:
    for how, what in _RACES.items():
        races = [race for pair in pairs for race in pair.races if race.how == how]
        if races:
            yield _raced(f"{what} from two nodes at once", races)


def _raced(what: str, races: Sequence[Race]) -> Finding:
    one, none, both = (sum(getattr(race, name) for race in races) for name in ("one", "none", "both"))
    failed = next((race.failed for race in races if race.failed), "")
    if failed:
        follows = "set run_root to a filesystem that can do it"
        return Finding("between nodes", what, failed, Verdict.PROBLEM, follows)
    if both or none:
        value = f"of {one + both + none} tries two winners in {both}, none in {none}"
        follows = "two masters could both believe that a run is theirs: set run_root to another filesystem"
        return Finding("between nodes", what, value, Verdict.PROBLEM, follows)
    return Finding("between nodes", what, f"one winner in each of {one} tries", Verdict.OK)


def _replacing(found: Sequence[Replaced]) -> Iterator[Finding]:
    if not found:
        return
    reads, stale, missing, torn, lost = (
        sum(getattr(each, name) for each in found) for name in ("reads", "stale", "missing", "torn", "not_recovered")
    )
    what = "reading what is being replaced"
    value = f"{reads} reads: {stale} stale handles, {missing} missing, {torn} torn"
    if torn:
        follows = "a rename shows parts of files here: set run_root to another filesystem"
        yield Finding("between nodes", what, value, Verdict.PROBLEM, follows)
    elif lost:
        value += f"; {lost} not readable after five further tries"
        follows = "hpcrl never replaces a file that is read, but its retries would not do: prefer another filesystem"
        yield Finding("between nodes", what, value, Verdict.WARNING, follows)
    elif stale or missing:
        follows = "a further try helped each time, as hpcrl makes them; it never replaces a file that is read"
        yield Finding("between nodes", what, value, Verdict.NOTE, follows)
    else:
        yield Finding("between nodes", what, value, Verdict.OK)


def _skew(ahead: Sequence[float]) -> Iterator[Finding]:
    if not ahead:
        return
    most = max(abs(each) for each in ahead)
    value = f"up to {_short(most)} apart"
    if most <= SKEW_S:
        yield Finding("between nodes", "clocks", value, Verdict.OK)
        return
    follows = "only the order of lines in merged logs suffers; hpcrl measures time on one clock each"
    yield Finding("between nodes", "clocks", value, Verdict.NOTE if most <= 60 else Verdict.WARNING, follows)


# GPUs


def _gpus(nodes: Sequence[NodeFacts]) -> Iterator[Finding]:
    shown = [node for node in nodes if node.gpus.names]
    if nodes and not shown:
        tools = any(node.gpus.tool for node in nodes)
        value = "nvidia-smi shows none" if tools else "none (no nvidia-smi that answers)"
        follows = "workers compute on CPUs here; to see GPUs of a job: hpcrl doctor --gpus N, or --in-job"
        yield Finding("GPUs", "GPUs", value, Verdict.OK, follows)
    kinds = {node.gpus.names for node in shown}
    if shown and (len(kinds) > 1 or len(shown) < len(nodes)):
        follows = "workers of one role should be alike: set cluster.slurm.constraint or cluster.slurm.gpu_type"
        yield Finding("GPUs", "nodes", "differ in their GPUs", Verdict.NOTE, follows)
    for node in shown:
        yield _node_gpus(node)


def _node_gpus(node: NodeFacts) -> Finding:
    names = node.gpus.names
    value = ", ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names))
    kinds = sorted(set(node.gpus.links.values()))
    if not kinds:
        return Finding("GPUs", node.name, value, Verdict.OK)
    value += f"; linked by {', '.join(kinds)}"
    slow = sorted(pair for pair, link in node.gpus.links.items() if link in BAD_LINKS)
    if slow and len(slow) < len(node.gpus.links):
        follows = f"{', '.join(slow)} meet only through the CPUs: give a tensor-parallel group GPUs that are linked"
        return Finding("GPUs", node.name, value, Verdict.NOTE, follows)
    if slow:
        follows = "all meet only through the CPUs: prefer data parallelism within a node"
        return Finding("GPUs", node.name, value, Verdict.NOTE, follows)
    return Finding("GPUs", node.name, value, Verdict.OK)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _short(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.1f} ms"


def _duration(seconds: float) -> str:
    days, rest = divmod(int(seconds), 86400)
    hours, rest = divmod(rest, 3600)
    parts = [(days, "d"), (hours, "h"), (rest // 60, "min")]
    return " ".join(f"{number} {unit}" for number, unit in parts if number) or f"{seconds:.0f} s"
