"""What this Slurm is: `scontrol show config` and `show partition` as a value, and what follows for a user. Pure."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

DEFAULT_KILL_WAIT_S = 30.0
DEFAULT_CRED_EXPIRE_S = 120.0
"""How long Slurm keeps a requeued job from starting where the site has said nothing."""

SPILL_MARGIN_S = 5.0
"""From the end of the last call to the end of the job: its output is written, all are told, the script decides."""

PreemptMode = Literal["off", "requeue", "cancel", "suspend"]

_PAIR = re.compile(r"(?:^|\s)([A-Za-z]\w*)=(\S*)")


@dataclass(frozen=True)
class Partition:
    """A partition. `max_time_s` is None where there is no limit, `gpus` where Slurm counts none.

    `node_bytes` is what a job gets of a node that asks for no memory, `cpu_bytes` the same for each of its CPUs; None
    where it is not said. `most_node_bytes` is what it may ask for.
    """

    name: str
    grace_s: float
    preempt_mode: PreemptMode
    max_time_s: float | None
    default: bool
    nodes: str
    total_nodes: int
    state: str
    gpus: int | None
    node_bytes: int | None = None
    cpu_bytes: int | None = None
    most_node_bytes: int | None = None


@dataclass(frozen=True)
class NodeKind:
    """Nodes with the same CPUs and memory, None where Slurm was not told, and types of GPU, "" for one without."""

    count: int
    cpus: int
    memory_bytes: int | None
    gpu_types: tuple[str, ...]


NODE_FORMAT = "%D|%c|%m|%G"
"""What parse_nodes reads: number, CPUs of each, memory in MiB, Gres."""


@dataclass(frozen=True)
class SlurmSite:
    """A cluster as its controller describes it. What a QOS says is not in it: only the database knows that."""

    version: tuple[int, ...]
    cluster: str
    kill_wait_s: float
    preempt_type: str
    """none, partition_prio or qos."""
    preempt_mode: PreemptMode
    preempt_exempt_s: float
    """A job is not preempted before it has run for this long."""
    send_user_signal: bool
    """Whether a preempted job gets the signal of its --signal in place of SIGTERM, where there is a GraceTime."""
    requeue_hold_s: float
    """How long a requeued job waits at least."""
    accounting: bool
    accounting_comments: bool
    """Whether sacct knows the comments of jobs."""
    limits_memory: bool
    """Whether a job is kept to the memory that it has asked for; else it has what its nodes have."""
    max_array_size: int
    """The largest index of a job array is one less."""
    disable_hetjob_steps: bool
    partitions: dict[str, Partition]

    def partition(self, name: str | None) -> Partition | None:
        """The partition with this name, or the default one; of several names (`a,b`), the first that exists."""
        return next(iter(self.partitions_of(name)), None)

    def partitions_of(self, names: str | None) -> list[Partition]:
        """Those of `a,b` that exist, or the default one."""
        if names is None:
            return [each for each in self.partitions.values() if each.default]
        return [self.partitions[each] for each in names.split(",") if each in self.partitions]


def read_site(config: str, partitions: str) -> SlurmSite:
    """From the texts of both commands, one line per partition or several. What is missing has Slurm's default."""
    values = parse_config(config)
    controller, scheduler = _options(values, "SlurmctldParameters"), _options(values, "SchedulerParameters")
    hold = scheduler.get("requeue_delay") or _options(values, "AuthInfo").get("cred_expire")
    mode = _preempt_mode(values.get("PreemptMode", "OFF"))
    return SlurmSite(
        version=_version(values.get("SLURM_VERSION", "")),
        cluster=values.get("ClusterName", ""),
        kill_wait_s=_number(values.get("KillWait"), DEFAULT_KILL_WAIT_S),
        preempt_type=values.get("PreemptType", "").removeprefix("preempt/") or "none",
        preempt_mode=mode,
        preempt_exempt_s=duration_s(values.get("PreemptExemptTime", "")) or 0.0,
        send_user_signal="preempt_send_user_signal" in controller
        or "send_user_signal" in _options(values, "PreemptParameters"),
        requeue_hold_s=_number(hold, DEFAULT_CRED_EXPIRE_S),
        accounting=values.get("AccountingStorageType", "").removeprefix("accounting_storage/") not in ("", "none"),
        accounting_comments="job_comment" in _options(values, "AccountingStoreFlags"),
        limits_memory="memory" in values.get("SelectTypeParameters", "").lower(),
        max_array_size=int(_number(values.get("MaxArraySize"), 1001)),
        disable_hetjob_steps=bool({"disable_hetjob_steps", "disable_hetero_steps"} & set(scheduler)),
        partitions={each.name: each for each in parse_partitions(partitions, mode, values)},
    )


def parse_config(text: str) -> dict[str, str]:
    """`Key = value` lines; what Slurm calls (null) is left out."""
    pairs = (line.partition("=") for line in text.splitlines())
    found = {key.strip(): value.strip() for key, equals, value in pairs if equals}
    return {key: value for key, value in found.items() if value and not value.startswith("(null")}


def parse_pairs(text: str) -> dict[str, str]:
    """`Key=value` words on any number of lines, as of one job or partition."""
    return dict(_PAIR.findall(text))


def parse_partitions(
    text: str, mode: PreemptMode = "off", config: Mapping[str, str] = MappingProxyType({})
) -> Iterator[Partition]:
    """The partitions that the text describes; `mode` and `config` are the cluster's, for what they leave open."""
    for record in re.split(r"(?m)(?:^|(?<=\s))(?=PartitionName=)", text):
        values = dict(_PAIR.findall(record))
        if "PartitionName" in values:
            yield Partition(
                name=values["PartitionName"],
                grace_s=_number(values.get("GraceTime"), 0.0),
                preempt_mode=_preempt_mode(values["PreemptMode"]) if "PreemptMode" in values else mode,
                max_time_s=duration_s(values.get("MaxTime", "UNLIMITED")),
                default=values.get("Default") == "YES",
                nodes="" if values.get("Nodes") in (None, "(null)") else values["Nodes"],
                total_nodes=int(_number(values.get("TotalNodes"), 0.0)),
                state=values.get("State", ""),
                gpus=_gpus(values.get("TRES", "")),
                node_bytes=_mebibytes("DefMemPerNode", values, config),
                cpu_bytes=_mebibytes("DefMemPerCPU", values, config),
                most_node_bytes=_mebibytes("MaxMemPerNode", values, config),
            )


def parse_nodes(text: str) -> list[NodeKind]:
    """Lines of sinfo in NODE_FORMAT. A node without a RealMemory has 1 MiB for Slurm, which says nothing."""
    found = []
    for line in text.splitlines():
        numbers, gres = line.split("|", 3)[:3], line.split("|", 3)[3]
        count, cpus, size = (int(_number(number, 0.0)) for number in numbers)
        found.append(NodeKind(count, cpus, size << 20 if size > 1 else None, tuple(_gpu_types(gres))))
    return found


def duration_s(text: str) -> float | None:
    """Slurm's times: `minutes`, `min:sec`, `h:m:s`, `days-h`, `days-h:m`, `days-h:m:s`; None for no limit."""
    found = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text.strip())
    if found is None:
        return None
    days, first, second, third = (None if part is None else int(part) for part in found.groups())
    assert first is not None
    if days is not None:
        return float(86400 * days + 3600 * first + 60 * (second or 0) + (third or 0))
    if third is not None:
        return float(3600 * first + 60 * (second or 0) + third)
    return float(60 * first + (second or 0))


def preempt_mode_of(site: SlurmSite, partition: Partition | None) -> PreemptMode:
    """What becomes of a preempted job on a partition; with preemption by QOS, on the cluster."""
    if site.preempt_type == "none":
        return "off"
    return site.preempt_mode if partition is None or site.preempt_type == "qos" else partition.preempt_mode


def describe_preemption(site: SlurmSite, partition: str | None = None) -> str:
    """What a preemption on this partition means for the user, in one or two sentences."""
    found = site.partition(partition)
    where = "Jobs" if found is None else f"Jobs on partition {found.name}"
    mode = preempt_mode_of(site, found)
    if mode == "off":
        return f"{where} are not preempted."
    if mode == "suspend":
        return (
            f"{where} are suspended while others need the nodes. With cluster.topology array, nodes that are suspended "
            "one by one count as lost after cluster.lost_after_s: set it to colocated, so that all stop together."
        )
    time = _warning(site, _grace_s(site, found))
    if site.preempt_type == "qos":
        time = f"The QOS may give a GraceTime (sacctmgr show qos); where it gives none, {time}"
    return f"{time} {_after_preemption(site, mode)}{_exempt(site)}"


def describe_too_long_a_grace(site: SlurmSite, partition: str | None, grace_s: float) -> str:
    """What to change where calls in flight are given more time than a preemption gives the job; "" where it fits."""
    found = site.partition(partition)
    given_s = _grace_s(site, found) + site.kill_wait_s
    if preempt_mode_of(site, found) in ("off", "suspend") or grace_s + SPILL_MARGIN_S <= given_s:
        return ""
    most_s = max(0.0, given_s - SPILL_MARGIN_S)
    return (
        f"cluster.grace_s = {grace_s:g} and {SPILL_MARGIN_S:g} s to write and leave are more than these {given_s:g} s: "
        "calls, and the script that decides what becomes of the job, may be killed before they are finished. "
        f"Set cluster.grace_s to {'at most ' if most_s else ''}{most_s:g}."
    )


def _grace_s(site: SlurmSite, partition: Partition | None) -> float:
    return 0.0 if partition is None or site.preempt_type == "qos" else partition.grace_s


def _warning(site: SlurmSite, grace_s: float) -> str:
    lost = "safe, at most the calls in flight are lost."
    if grace_s == 0:
        return f"GraceTime is 0: about {site.kill_wait_s:.0f} s until SIGKILL; {lost}"
    whole = grace_s + site.kill_wait_s
    return f"GraceTime is {grace_s:.0f} s: calls in flight have about {whole:.0f} s to finish until SIGKILL; {lost}"


def _after_preemption(site: SlurmSite, mode: PreemptMode) -> str:
    if mode == "cancel":
        return "A preempted job is cancelled here, so hpcrl submits a successor."
    return f"Slurm queues the job again, to start after {site.requeue_hold_s:.0f} s at the earliest."


def _exempt(site: SlurmSite) -> str:
    minutes = site.preempt_exempt_s / 60
    return f" (Never in the first {minutes:.0f} min of a job.)" if minutes else ""


def _options(values: dict[str, str], key: str) -> dict[str, str]:
    """`a,b=2` → {a: "", b: "2"}; names in lower case, as Slurm compares them."""
    parts = (part.partition("=") for part in values.get(key, "").split(","))
    return {name.strip().lower(): value.strip() for name, _, value in parts if name.strip()}


def _preempt_mode(text: str) -> PreemptMode:
    """Slurm's list of words (`GANG,SUSPEND`, `WITHIN,REQUEUE`), reduced to what becomes of a job."""
    words = set(re.split(r"[,\s]+", text.lower()))
    modes: tuple[PreemptMode, ...] = ("requeue", "cancel", "suspend")
    return next((mode for mode in modes if mode in words), "off")


def _gpu_types(gres: str) -> Iterator[str]:
    """`gpu:a100:4(S:0-1),gpu:2` → a100 and, for those without a type, an empty name."""
    for entry in re.sub(r"\([^)]*\)", "", gres).split(","):
        name, *rest = entry.split(":")
        if name == "gpu":
            yield rest[0] if rest and not rest[0].isdecimal() else ""


def _mebibytes(name: str, partition: Mapping[str, str], config: Mapping[str, str]) -> int | None:
    """A size in bytes; a partition's own word for memory, by node or by CPU, counts before the cluster's."""
    own = partition.get(name, "")
    rival = partition.get({"DefMemPerNode": "DefMemPerCPU", "DefMemPerCPU": "DefMemPerNode"}.get(name, ""), "")
    said = own if own.isdecimal() or rival.isdecimal() else config.get(name, "")
    return int(said) << 20 if said.isdecimal() and int(said) else None


def _gpus(tres: str) -> int | None:
    for part in tres.split(","):
        name, _, count = part.partition("=")
        if name.lower() == "gres/gpu" and count.isdecimal():
            return int(count)
    return None


def _version(text: str) -> tuple[int, ...]:
    found = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def _number(text: str | None, default: float) -> float:
    """The number that a value begins with: `30 sec`."""
    found = re.match(r"\d+(?:\.\d+)?", text or "")
    return float(found[0]) if found else default
