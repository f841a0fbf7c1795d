"""Whether the nodes that came can have workers: pure, from what their agents said of themselves."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hpcrl.errors import ExitCode
from hpcrl.placement.plan import WorkerPlan
from hpcrl.wire.messages import AgentHello


@dataclass(frozen=True)
class WorkerDevice:
    """Which device a worker was given: the worker as errors name it, and the device's UUID."""

    worker: str
    host: str
    uuid: str


def check_nodes(hosts: Mapping[int, AgentHello], workers: Iterable[WorkerPlan]) -> tuple[ExitCode, str]:
    """DONE, or the exit code that is due and why. What queueing again would not cure counts for more."""
    troubled = {node: hello.trouble for node, hello in sorted(hosts.items()) if hello.trouble is not None}
    if troubled:
        codes = sorted((trouble.exit_code for trouble in troubled.values()), key=lambda code: code == ExitCode.REQUEUE)
        said = [f"agent-{node} on {hosts[node].host}: {trouble.error}" for node, trouble in troubled.items()]
        return ExitCode(codes[0]), "; ".join(said)
    duplicates = find_duplicates(
        WorkerDevice(f"worker-{worker.rank}", hosts[worker.node].host, hosts[worker.node].devices[worker.slot])
        for worker in workers
        if worker.slot < len(hosts[worker.node].devices)  # CPU workers have none
    )
    return (ExitCode.CONFIGURATION, "; ".join(duplicates)) if duplicates else (ExitCode.DONE, "")


def fit_nodes(hosts: Mapping[int, AgentHello]) -> dict[int, str]:
    """Node → what is wrong with it beside those that are given before it; empty where nothing is."""
    found: dict[int, str] = {}
    given: dict[tuple[str, str], int] = {}
    for node, hello in hosts.items():
        others = [given[at] for uuid in hello.devices if (at := (hello.host, uuid)) in given]
        if hello.trouble is not None:
            found[node] = f"agent-{node} on {hello.host}: {hello.trouble.error}"
        elif others:
            found[node] = f"agent-{node} on {hello.host} has GPUs of node {others[0]}"
        else:
            found[node] = ""
            given |= dict.fromkeys(((hello.host, uuid) for uuid in hello.devices), node)
    return found


def find_duplicates(given: Iterable[WorkerDevice]) -> list[str]:
    """A problem for every worker of a host that was given the device of another, naming both."""
    first: dict[tuple[str, str], str] = {}
    problems = []
    for claim in given:
        other = first.setdefault((claim.host, claim.uuid), claim.worker)
        if other != claim.worker:
            problems.append(
                f"{other} and {claim.worker} have the same GPU {claim.uuid} on {claim.host}, but each worker needs one "
                "of its own. Lower cluster.workers_per_node, or have Slurm give each job its own GPUs "
                "(cluster.slurm.gpus; ConstrainDevices in cgroup.conf)."
            )
    return problems


def nodes_named(numbers: Sequence[int]) -> str:
    """`nodes 2, 5`."""
    return f"node{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"
