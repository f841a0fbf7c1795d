"""Runs whose number of nodes is a range: nodes that come and go, and what was said of it."""

from collections.abc import Callable, Collection
from typing import Any

import msgspec
from support.chaos import begin, outputs, rows_of, wait_until
from support.cluster import Jobs, no_fault, start_job

from hpcrl.durable.history import read_history
from hpcrl.durable.journal import Closed
from hpcrl.durable.records import Command
from hpcrl.durable.rundir import RunDirectory
from hpcrl.events import GrowthWeighed, NodesChanged
from hpcrl.inspect.archives import Archives
from hpcrl.master import growth
from hpcrl.master.allocation import Allocation


def begin_with(
    run: RunDirectory,
    nonce: str,
    nodes: Collection[int],
    fault: Callable[[str], None] = no_fault,
    allocation: Allocation | None = None,
) -> Jobs:
    """Start a submission's master, and agents of these nodes alone."""
    jobs = begin(run, nonce, fault, allocation, nodes=0)
    for node in nodes:
        join(jobs, run, nonce, node, fault)
    return jobs


def join(jobs: Jobs, run: RunDirectory, nonce: str, node: int, fault: Callable[[str], None] = no_fault) -> None:
    """A node comes."""
    jobs.processes[f"agent-{node}"] = start_job(run.root, nonce, f"agent-{node}", fault)
    jobs.write_pids(run.root.parent / "pids")


def join_in_time(jobs: Jobs, run: RunDirectory, nonce: str, node: int, fault: Callable[[str], None] = no_fault) -> None:
    """A node comes before the run is over, however long the machine takes to start it: until it is to be taken in, the
    run is paused."""
    run.publish_command(Command("pause", nonce))
    join(jobs, run, nonce, node, fault)
    wait_until(
        lambda: any(it.joins and node in it.spare for it in weighed(run)), 60, f"node {node} weighed\n{outputs(run)}"
    )
    run.publish_command(Command("continue", nonce))


def leave(jobs: Jobs, node: int) -> None:
    """A node is gone, without a word."""
    jobs.processes[f"agent-{node}"].kill()


def told(run: RunDirectory, kind: type[Any]) -> list[Any]:
    """All events of a kind, attempt after attempt."""
    tag = kind.__struct_config__.tag
    names = kind.__struct_fields__
    found = (row for number in run.numbers() for row in rows_of(run.events(number)) if row["event"] == tag)
    return [msgspec.convert({name: row[name] for name in names if name in row}, kind) for row in found]


def changes_of(run: RunDirectory) -> list[tuple[int, int]]:
    """(nodes before, nodes after) of each change."""
    return [(event.before, event.nodes) for event in told(run, NodesChanged)]


def closed_steps(run: RunDirectory) -> int:
    """The newest step that has closed."""
    steps = [line.event.step for line in read_history(run).lines if isinstance(line.event, Closed)]
    return max(steps, default=0)


def wait_for_step(run: RunDirectory, step: int, timeout_s: float = 60.0) -> None:
    wait_until(lambda: closed_steps(run) >= step, timeout_s, f"step {step} of the run\n{outputs(run)}")


def wait_for_nodes(run: RunDirectory, nodes: int, timeout_s: float = 60.0) -> None:
    """Until the run has changed to so many nodes."""
    wait_until(lambda: any(after == nodes for _, after in changes_of(run)), timeout_s, f"a run on {nodes} nodes")


def weighed(run: RunDirectory) -> list[GrowthWeighed]:
    return told(run, GrowthWeighed)


class EagerToGrow:
    """In the master: a step on more nodes is expected to take no time. (On small models it takes longer.)"""

    def __call__(self, point: str) -> None:
        if point == "as master":
            growth.expected_ratio = lambda *_: 0.0


def responses_of(run: RunDirectory) -> dict[str, str]:
    """Step and sample → what was said, of all that is kept."""
    archives = Archives(run)
    found = (it for step in archives.steps for it in archives.samples(step))
    return {f"{it.step} {it.data_set} {it.sample} {it.number}": it.texts["response"] for it in found}
