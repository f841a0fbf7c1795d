"""What the nodes' GPUs and the links between them mean for where groups of workers go."""

from collections.abc import Iterator, Sequence

from hpcrl.agent.nvml import Device, Inventory
from hpcrl.agent.torch_build import build_problems, dotted, older_driver
from hpcrl.doctor.findings import Finding, Severity
from hpcrl.doctor.measurements import GpuMeasurements, NodeMeasurements

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
    yield from _torch(shown)


def _torch(nodes: Sequence[NodeMeasurements]) -> Iterator[Finding]:
    """Whether each node's torch computes on its GPUs; one finding where several have the same to say."""
    said: dict[tuple[str, str, Severity], list[str]] = {}
    for node in nodes:
        for finding in _build(node.gpus):
            said.setdefault(finding, []).append(node.name)
    for (value, follows, severity), names in said.items():
        yield Finding("GPUs", "torch", f"{', '.join(names)}: {value}", severity, follows)


def _build(gpus: GpuMeasurements) -> Iterator[tuple[str, str, Severity]]:
    if gpus.torch is None:
        return
    capabilities = gpus.capabilities or (None,) * len(gpus.names)
    devices = [
        Device(number, "", name, capability=capability)
        for number, (name, capability) in enumerate(zip(gpus.names, capabilities, strict=True))
    ]
    inventory = Inventory(tuple(devices), driver=gpus.driver, cuda=gpus.cuda)
    if problems := [*build_problems(gpus.torch, inventory, devices)]:
        yield from ((problem.text, problem.advice, Severity.PROBLEM) for problem in problems)
        return
    value = f"torch {gpus.torch.version} for CUDA {gpus.torch.cuda}; driver {gpus.driver}"
    if older_driver(gpus.torch, inventory):
        follows = (
            f"the driver is of CUDA {dotted(gpus.cuda)}: what is compiled as it runs (Triton, torch.compile) may need "
            "a newer one"
        )
        yield value, follows, Severity.NOTE
    else:
        yield value, "", Severity.OK


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
