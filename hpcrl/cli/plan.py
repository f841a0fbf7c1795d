"""`hpcrl plan CONFIG`: everything that a run would be, before it is one."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import networkx
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from hpcrl.cli.arguments import asks_for_help, command_parser, help_with_settings, parse, read_experiment, separate
from hpcrl.config.experiment import ExperimentConfig
from hpcrl.dataflow.graph import MFC, topological_order
from hpcrl.errors import ConfigurationError, ExitCode
from hpcrl.foreign import plain
from hpcrl.launch.launcher import choose
from hpcrl.placement.disk import estimate_disk
from hpcrl.placement.memory import GIB, Memory, estimate_roles, size_in_words, worker_memory_gib
from hpcrl.placement.plan import Plan, make_plan, workers_in_words
from hpcrl.recipes.algorithm import algorithm_of


def run(words: Sequence[str]) -> int:
    parser = command_parser(
        "plan", "Show what would be run: graph, meshes, layouts, workers and memory. Starts nothing."
    )
    parser.add_argument("config", type=str, help="a YAML file")
    parser.add_argument("--json", action="store_true", help="print JSON")
    mine, overrides = separate(words, ("--json",))
    if asks_for_help(mine):
        print(help_with_settings(parser, mine, overrides))
        return int(ExitCode.DONE)
    given = parse(parser, mine)
    experiment = read_experiment(given.config, overrides)
    # Help is worth no import of arrays and tokenizers.
    from hpcrl.data.indexes import ScratchIndexes
    from hpcrl.launch.preflight import check_inputs

    check_inputs(experiment, Path(run_directory(experiment)).absolute(), ScratchIndexes())
    plan = make_plan(experiment, experiment.cluster.nodes)
    roles = estimate_roles(plan, experiment)
    if given.json:
        print(_as_json(plan, experiment, roles))
    else:
        Console().print(render(plan, experiment, roles))
        if why := _who_starts_it(experiment.cluster.type):
            print(f"cluster.type = {experiment.cluster.type}: {why}")
    return int(ExitCode.DONE)


def _who_starts_it(type_: str) -> str:
    """What is chosen now where the choice is left to hpcrl; a plan may be made where nothing could be started."""
    try:
        return choose(type_).why
    except ConfigurationError as error:
        return str(error).removeprefix(f"cluster.type = {type_}: ")


def run_directory(experiment: ExperimentConfig) -> str:
    return str(Path(experiment.run_root) / f"{experiment.name}-<time>")


def _as_json(plan: Plan, experiment: ExperimentConfig, roles: Mapping[str, Memory]) -> str:
    memory = [round(gib, 3) for gib in worker_memory_gib(plan, roles)]
    shown = {"run_directory": run_directory(experiment), "memory_gib": memory, "plan": msgspec.to_builtins(plan)}
    return json.dumps(shown, indent=2, ensure_ascii=False)


def render(plan: Plan, experiment: ExperimentConfig, roles: Mapping[str, Memory]) -> RenderableType:
    """The plan for people."""
    cluster = experiment.cluster
    nodes = "1 node" if cluster.nodes == 1 else f"{cluster.nodes} nodes"
    head = Text.assemble(
        (f"{plan.algorithm}", "bold"),
        f" on {nodes} of {workers_in_words(experiment)} ({cluster.type}), device {cluster.device}\n",
        f"run directory {plain(str(run_directory(experiment)))}\n",
    )
    chooses = algorithm_of(experiment).choice(experiment) is not None
    tables = (_calls(plan, chooses), _roles(plan, roles), _workers(plan, roles))
    lines = [part for table in tables for part in (table, Text())]
    disk = estimate_disk(experiment)
    if disk.checkpoint:
        lines.append(Text(f"On disk, at most: {disk.describe()}.\n"))
    return Group(head, *lines, _reading_aid())


def _calls(plan: Plan, chooses: bool) -> Table:
    graph = plan.graph()
    table = _table("call", "role", "kind", "workers", wide=("waits for", "makes"))
    for name in topological_order(graph):
        call = plan.call(name)
        workers = _ranks(plan.replica(name).ranks)
        waits_for = _waits_for(graph, name)
        if chooses and call.rows == "chosen":
            waits_for += ", the choice of rows"
        cells = (name, call.role, call.kind, workers, waits_for, _makes(call))
        table.add_row(*(Text(plain(cell)) for cell in cells))
    return table


def _waits_for(graph: networkx.DiGraph, call: str) -> str:
    """Whom a call waits for: within the step, or (in brackets) in an earlier one."""
    edges = sorted(graph.in_edges(call, data="steps"), key=lambda edge: (edge[2], edge[0]))
    return ", ".join(f"({before})" if steps else before for before, _, steps in edges) or "-"


def _makes(call: MFC) -> str:
    return ", ".join(call.outputs) or f"{call.role}'s parameters"


def _roles(plan: Plan, roles: Mapping[str, Memory]) -> Table:
    table = _table("role", "workers", "layout", "parameters", "gradients", "optimizer", "in a call")
    for replica in plan.replicas:
        memory = roles.get(replica.role, Memory())
        sizes = (memory.parameters, memory.gradients, memory.optimizer, memory.passing)
        table.add_row(Text(plain(str(replica.model))), _ranks(replica.ranks), replica.layout, *map(_size, sizes))
    return table


def _workers(plan: Plan, roles: Mapping[str, Memory]) -> Table:
    table = _table("worker", "node", "slot", "memory", wide=("roles",))
    for worker, gib in zip(plan.workers, worker_memory_gib(plan, roles), strict=True):
        held = ", ".join(str(replica.model) for replica in plan.replicas if worker.rank in replica.ranks)
        table.add_row(str(worker.rank), str(worker.node), str(worker.slot), _size(gib * GIB), Text(plain(held)))
    return table


def _reading_aid() -> Text:
    return Text(
        "Calls in brackets are of an earlier step. Memory is an estimate per worker, from shapes alone: "
        "what a call takes comes on top of all roles there, for one call at a time.",
        style="dim",
    )


def _table(*columns: str, wide: Sequence[str] = ()) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, no_wrap=True)
    for column in wide:
        table.add_column(column)
    return table


def _ranks(ranks: Sequence[int]) -> str:
    if len(ranks) > 2 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]}-{ranks[-1]}"
    return ",".join(map(str, ranks))


def _size(bytes_: float) -> str:
    if bytes_ == 0:
        return "-"
    return size_in_words(bytes_)
