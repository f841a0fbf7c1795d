"""What a run would be on each number of nodes that it may have, a line for each."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from rich.table import Table
from rich.text import Text

from hpcrl.config.changes import with_nodes
from hpcrl.foreign import plain
from hpcrl.placement.memory import estimate_models
from hpcrl.placement.plan import plan_for
from hpcrl.placement.sizes import size_in_words
from hpcrl.placement.step_times import expected_step_s
from hpcrl.placement.worker_memory import peaks


class OnNodes(msgspec.Struct, frozen=True):
    """A run on so many nodes; `memory_bytes` and `fullest_call` are of its fullest worker, `step_s` is None where
    nothing is known of the workers' device."""

    nodes: int
    workers: int
    layouts: dict[str, str]
    memory_bytes: float
    fullest_call: str
    step_s: float | None


def on_each_number(experiment: Any) -> Iterator[OnNodes]:
    """The device of the experiment is settled."""
    for count in experiment.cluster.node_counts:
        at = with_nodes(experiment, count)
        plan = plan_for(at)
        fullest = max(peaks(plan, estimate_models(plan, at), at.cluster.device), key=lambda load: load.bytes)
        layouts = {str(it.model): it.layout for it in plan.replicas}
        yield OnNodes(
            count, len(plan.workers), layouts, fullest.bytes, fullest.call, expected_step_s(experiment, count)
        )


def render(lines: Sequence[OnNodes]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in ("nodes", "workers", "memory", "step"):
        table.add_column(column, no_wrap=True)
    table.add_column("layouts")
    for it in lines:
        layouts = ", ".join(f"{model} {layout}" for model, layout in it.layouts.items())
        memory = f"{size_in_words(it.memory_bytes)} in {it.fullest_call}" if it.memory_bytes else "-"
        step = "not known" if it.step_s is None else f"{it.step_s:.3g} s"
        table.add_row(str(it.nodes), str(it.workers), memory, step, Text(plain(layouts)))
    return table
