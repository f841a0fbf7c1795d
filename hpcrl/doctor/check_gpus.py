"""What the nodes' GPUs and the links between them mean for where groups of workers go."""

from collections.abc import Iterator, Sequence

from hpcrl.doctor.findings import Finding, Severity
from hpcrl.doctor.measurements import NodeMeasurements

BAD_LINKS = frozenset({"SYS", "NODE", "PHB"})
"""Through a CPU, not over NVLink or a PCIe switch."""


def check_gpus(nodes: Sequence[NodeMeasurements]) -> Iterator[Finding]:
    shown = [node for node in nodes if node.gpus.names]
    if nodes and not shown:
        complaints = sorted({node.gpus.complaint for node in nodes} - {""})
        value = f"none ({'; '.join(complaints)})" if complaints else "none"
        follows = "workers compute on CPUs here; to see GPUs of a job: hpcrl doctor --gpus N, or --in-job"
        yield Finding("GPUs", "GPUs", value, Severity.OK, follows)
    kinds = {node.gpus.names for node in shown}
    if shown and (len(kinds) > 1 or len(shown) < len(nodes)):
        follows = "workers of one role should be alike: set cluster.slurm.constraint or cluster.slurm.gpu_type"
        yield Finding("GPUs", "nodes", "differ in their GPUs", Severity.NOTE, follows)
    for node in shown:
        yield _node_gpus(node)


def _node_gpus(node: NodeMeasurements) -> Finding:
    names = node.gpus.names
    value = ", ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names))
    kinds = sorted(set(node.gpus.links.values()))
    if not kinds:
        return Finding("GPUs", node.name, value, Severity.OK)
    value += f"; linked by {', '.join(kinds)}"
    slow = sorted(pair for pair, link in node.gpus.links.items() if link in BAD_LINKS)
    if slow and len(slow) < len(node.gpus.links):
        follows = f"{', '.join(slow)} meet only through the CPUs: give a tensor-parallel group GPUs that are linked"
        return Finding("GPUs", node.name, value, Severity.NOTE, follows)
    if slow:
        follows = "all meet only through the CPUs: prefer data parallelism within a node"
        return Finding("GPUs", node.name, value, Severity.NOTE, follows)
    return Finding("GPUs", node.name, value, Severity.OK)
