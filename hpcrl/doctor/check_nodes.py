"""Whether the nodes are there, alike and able to talk: Python here and on them, their limits, TCP, clocks."""

import statistics
from collections.abc import Iterator, Mapping, Sequence

from hpcrl.doctor.check_disk import check_disk, check_fsync, check_shared
from hpcrl.doctor.findings import SKEW_S, Finding, Severity, count, in_short
from hpcrl.doctor.measurements import JobMeasurements, NodeMeasurements, PairMeasurements, Software
from hpcrl.wire.address import LOOPBACK

FAST = ("ib", "hsn", "mlx", "opa")
"""How interfaces of InfiniBand, Slingshot and Omni-Path are called."""
FILES_PER_AGENT = 16
"""Sockets that the master has with an agent and its workers, roughly."""


def check_software(here: Software) -> Iterator[Finding]:
    yield Finding("Python", "here", f"{here.python}, hpcrl {here.hpcrl} in {here.folder}", Severity.OK)
    missing = [name for name, version in here.packages.items() if version == "missing"]
    if missing:
        follows = f"install them for {here.executable}"
        yield Finding("Python", "packages", f"missing: {', '.join(missing)}", Severity.PROBLEM, follows)


def check_job(job: JobMeasurements | None, nodes: Sequence[NodeMeasurements]) -> Iterator[Finding]:
    if job is None:
        return
    value = f"{len(nodes)} of {job.wanted} answered" + (f" (job {job.id}, {job.waited_s:.0f} s)" if job.id else "")
    said = "; ".join(filter(None, [job.failed, job.said.replace("\n", " | ")]))
    if len(nodes) >= job.wanted:
        yield Finding("nodes", "asked", value, Severity.OK)
    elif not nodes and "not started" in job.failed:
        follows = f"{said}. Nothing is known of the nodes: try --partition, --wait, or --in-job inside a job"
        yield Finding("nodes", "asked", value, Severity.WARNING, follows)
    else:
        follows = f"{said}. Is {'the folder' if nodes else 'run_root'} on all nodes, and Python too?"
        yield Finding("nodes", "asked", value, Severity.PROBLEM, follows)


def check_nodes(here: Software, nodes: Sequence[NodeMeasurements]) -> Iterator[Finding]:
    if not nodes:
        return
    yield _same_software(nodes)
    if any(node.software.code != here.code for node in nodes):
        value = f"of nodes in {nodes[0].software.folder}, here in {here.folder}: different files"
        follows = "jobs would run another hpcrl than this command is: set cluster.slurm.python, or install it anew"
        yield Finding("nodes", "hpcrl", value, Severity.WARNING, follows)
    for node in nodes:
        yield _listening(node)
    if len({node.boot_id for node in nodes}) < len(nodes):
        follows = "what was measured between them says nothing about two machines"
        yield Finding("nodes", "machines", "several nodes are one machine", Severity.NOTE, follows)
    files = min(node.open_files for node in nodes)
    if files < 4096:
        follows = f"enough for about {files // FILES_PER_AGENT} nodes: have the hard limit of open files raised"
        yield Finding("nodes", "open files", str(files), Severity.NOTE, follows)
    for node in nodes:
        found = check_disk(f"disk, on {node.name}", node.disk)
        yield from (finding for finding in found if finding.severity is not Severity.OK)
    slowest = max(nodes, key=lambda node: statistics.median(node.disk.fsync_s or (0.0,)))
    yield check_fsync("nodes", slowest.disk)


def _listening(node: NodeMeasurements) -> Finding:
    """Where messages, and the sums of workers, would go."""
    at = f"{node.address} ({node.interface})" if node.interface else node.address
    value = f"{at}, {count(node.cpus, 'CPU core')} given"
    if node.complaint:
        return Finding("nodes", node.name, value, Severity.PROBLEM, node.complaint)
    fast = [each for each in node.others if each.interface.startswith(FAST)]
    if not fast:
        return Finding("nodes", node.name, value, Severity.OK)
    follows = (
        f"there is {', '.join(map(str, fast))} too, perhaps a quicker network: if so, set cluster.interface to it, or "
        "to its network, like 10.10.0.0/16"
    )
    return Finding("nodes", node.name, value, Severity.NOTE, follows)


def _same_software(nodes: Sequence[NodeMeasurements]) -> Finding:
    first, *others = nodes
    differ = [
        f"{what} is {one} on {first.name}, {two} on {node.name}"
        for node in others
        for what, one, two in _differences(first, node)
    ]
    if differ:
        follows = "all nodes need the same: set cluster.slurm.python, cluster.slurm.prologue, or a container"
        return Finding("nodes", "Python", "; ".join(differ), Severity.PROBLEM, follows)
    missing = [name for name, version in first.software.packages.items() if version == "missing"]
    if missing:
        follows = f"install them for {first.software.executable}, or set cluster.slurm.python"
        return Finding("nodes", "Python", f"missing: {', '.join(missing)}", Severity.PROBLEM, follows)
    torch = first.software.packages.get("torch", "?")
    same = "; the same on all" if others else ""
    value = f"{first.software.python}, torch {torch}, hpcrl {first.software.hpcrl}{same}"
    return Finding("nodes", "Python", value, Severity.OK)


def _differences(first: NodeMeasurements, second: NodeMeasurements) -> Iterator[tuple[str, str, str]]:
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


def check_network(nodes: Sequence[NodeMeasurements]) -> Iterator[Finding]:
    if len(nodes) < 2:
        return
    names = {node.index: node.name for node in nodes}
    pairs = [(node.name, names.get(pair.other, f"task {pair.other}"), pair) for node in nodes for pair in node.pairs]
    yield from _ports(nodes, pairs)
    yield from _absent(nodes, names)
    for reader, other, pair in pairs:
        if pair.error:
            follows = f"{reader} could not finish its measurements with {other}"
            yield Finding("between nodes", "broken off", pair.error, Severity.WARNING, follows)
    whole = [pair for _, _, pair in pairs]
    yield from check_shared(whole)
    yield from _skew([pair.clock_ahead_s for pair in whole if pair.clock_ahead_s is not None])


def _ports(nodes: Sequence[NodeMeasurements], pairs: Sequence[tuple[str, str, PairMeasurements]]) -> Iterator[Finding]:
    closed = [(reader, other, pair) for reader, other, pair in pairs if pair.connect_s is None]
    loopback = [node.name for node in nodes if node.address == LOOPBACK]
    follows = (
        "master and workers talk over TCP on free ports: set cluster.interface to the network where nodes reach each "
        "other and cluster.ports to what the firewall lets through, or have it opened"
    )
    if loopback:
        value = f"{', '.join(loopback)}: only {LOOPBACK}, no address that others could use"
        yield Finding("between nodes", "TCP", value, Severity.PROBLEM, follows)
    for reader, other, pair in closed:
        value = f"{reader} cannot reach {other}: {pair.connect_error}"
        yield Finding("between nodes", "TCP", value, Severity.PROBLEM, follows)
    if closed or loopback:
        return
    slowest = max((pair.connect_s or 0.0 for _, _, pair in pairs), default=0.0)
    value = f"{count(len(pairs), 'connection')}, the slowest in {in_short(slowest)}"
    yield Finding("between nodes", "TCP", value, Severity.OK)


def _absent(nodes: Sequence[NodeMeasurements], names: Mapping[int, str]) -> Iterator[Finding]:
    for node in nodes:
        if node.absent:
            value = f"{node.name} never saw {', '.join(names.get(each, f'task {each}') for each in node.absent)}"
            follows = f"is {node.disk.path} one and the same folder on all nodes? Set run_root to one that is"
            yield Finding("between nodes", "greetings", value, Severity.PROBLEM, follows)


def _skew(ahead: Sequence[float]) -> Iterator[Finding]:
    if not ahead:
        return
    most = max(abs(each) for each in ahead)
    value = f"up to {in_short(most)} apart"
    if most <= SKEW_S:
        yield Finding("between nodes", "clocks", value, Severity.OK)
        return
    follows = "only the order of lines in merged logs suffers; hpcrl measures time on one clock each"
    yield Finding("between nodes", "clocks", value, Severity.NOTE if most <= 60 else Severity.WARNING, follows)
