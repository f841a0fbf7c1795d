"""`hpcrl plan CONFIG`: everything that a run would be, before it is one."""

import json
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from hpcrl.cli import node_table
from hpcrl.cli.arguments import asks_for_help, command_parser, parse, separate
from hpcrl.cli.node_table import OnNodes, on_each_number
from hpcrl.cli.reckoned import duration, short_forms, whole_option
from hpcrl.cli.settings import help_with_settings, read_experiment
from hpcrl.config.changes import with_nodes
from hpcrl.config.data import DataConfig, sources_of
from hpcrl.config.experiment import ExperimentConfig
from hpcrl.config.fields import section
from hpcrl.config.model import ModelConfig
from hpcrl.dataflow.graph import MFC, Graph, topological_order
from hpcrl.errors import ConfigurationError, ExitCode
from hpcrl.families.words import in_words
from hpcrl.foreign import plain
from hpcrl.inspect.words import counted
from hpcrl.launch.launcher import choose
from hpcrl.placement.capacity import on_its_device
from hpcrl.placement.disk import estimate_disk
from hpcrl.placement.judges import models_held
from hpcrl.placement.memory import Models, estimate_models, head_model
from hpcrl.placement.movements import Movements
from hpcrl.placement.plan import Plan, ReplicaPlan, plan_for, workers_in_words
from hpcrl.placement.sizes import GIB, size_in_words
from hpcrl.placement.step_times import ExpectedStep, expected_step
from hpcrl.placement.worker_memory import host_memory, peaks
from hpcrl.recipes.algorithm import algorithm_of

FILES_SHOWN = 20


def run(words: Sequence[str]) -> int:
    parser = command_parser(
        "plan", "Show what would be run: graph, meshes, layouts, workers and memory. Starts nothing."
    )
    parser.add_argument("config", type=str, help="a YAML file")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.epilog = short_forms()
    mine, overrides = separate([whole_option(word) for word in words], ("--json",))
    if asks_for_help(mine):
        print(help_with_settings(parser, mine, overrides))
        return int(ExitCode.DONE)
    given = parse(parser, mine)
    experiment = read_experiment(given.config, overrides)
    # Help is worth no import of arrays and tokenizers.
    from hpcrl.data.indexes import ScratchIndexes
    from hpcrl.launch.preflight import check_inputs

    place = Path(run_directory(experiment)).absolute()
    capacity = check_inputs(experiment, place, ScratchIndexes(), planning=True)
    if capacity is not None:
        experiment = on_its_device(experiment, capacity)
    counts = list(on_each_number(experiment)) if experiment.cluster.is_elastic else []
    experiment = with_nodes(experiment, experiment.cluster.most_nodes)
    plan = plan_for(experiment)
    models, step = estimate_models(plan, experiment), _expected_step(experiment)
    if given.json:
        print(_as_json(plan, experiment, models, counts, step))
    else:
        console = Console()
        if counts:
            console.print("On each number of nodes that the run may have:\n")
            console.print(node_table.render(counts))
            console.print("\nOn the most:")
        console.print(render(plan, experiment, models))
        if step is not None:
            typed = shlex.join([given.config, *(f"--{it}" for it in overrides)])
            console.print(Text(plain(_step_in_words(step, typed))))
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


def _expected_step(experiment: ExperimentConfig) -> ExpectedStep | None:
    """None where nothing is known of the workers' device; who names one or a profile is told what is wrong with it."""
    try:
        return expected_step(experiment, experiment.cluster.most_nodes)
    except ConfigurationError:
        if experiment.search.profile is not None or experiment.search.device is not None:
            raise
        return None


def _step_in_words(step: ExpectedStep, typed: str) -> str:
    """`typed`: the configuration, and settings beside it."""
    notices = " ".join(step.notices)
    return (
        f"A step is expected to take {duration(step.seconds)}, reckoned from {step.source}. {notices} "
        f"`hpcrl simulate {typed}` says what it waits for.\n"
    ).replace("  ", " ")


def _as_json(
    plan: Plan, experiment: ExperimentConfig, models: Models, counts: Sequence[OnNodes], step: ExpectedStep | None
) -> str:
    device = experiment.cluster.device
    loads = peaks(plan, models, device)
    told = Movements(plan, experiment, models)
    around = {str(worker.rank): list(told.around(worker.rank)) for worker in plan.workers}
    shown = {
        "run_directory": run_directory(experiment),
        "memory_gib": [round(load.bytes / GIB, 3) for load in loads],
        "fullest_calls": [load.call for load in loads],
        "host_memory_gib": [round(host_memory(plan, models, load.rank, device) / GIB, 3) for load in loads],
        "archive_bytes": dict(estimate_disk(experiment).archive),
        "around_calls": {rank: words for rank, words in around.items() if words},
        **({"node_counts": msgspec.to_builtins(counts)} if counts else {}),
        **({"expected_step": step._asdict()} if step is not None else {}),
        "plan": msgspec.to_builtins(plan),
    }
    return json.dumps(shown, indent=2, ensure_ascii=False)


def render(plan: Plan, experiment: ExperimentConfig, models: Models) -> RenderableType:
    """The plan for people."""
    cluster = experiment.cluster
    nodes = "1 node" if cluster.nodes == 1 else f"{cluster.nodes} nodes"
    head = Text.assemble(
        (f"{plan.algorithm}", "bold"),
        f" on {nodes} of {workers_in_words(experiment)} ({cluster.type}), device {cluster.device}\n",
        f"run directory {plain(str(run_directory(experiment)))}\n",
    )
    chooses = algorithm_of(experiment).choice(experiment) is not None
    tables = (_calls(plan, chooses), _models(plan, models), _workers(plan, experiment, models))
    lines = [part for table in tables for part in (table, Text())]
    lines[4:4] = [*(Text(plain(text)) for text in _what_they_are(plan, experiment)), Text()]
    if read := "\n".join(_what_is_read(experiment)):
        lines.append(Text(f"{plain(read)}\n"))
    if on_disk := estimate_disk(experiment).describe():
        lines.append(Text(f"On disk, at most: {on_disk}.\n"))
    return Group(head, *lines, _reading_aid())


def _what_is_read(experiment: ExperimentConfig) -> Iterator[str]:
    """A line for each folder of rows: which of the files in it are read."""
    data = section(experiment, "data", DataConfig)
    files = dict(algorithm_of(experiment).rows.inputs(experiment))
    paths = {} if data is None else {knob: source.path for knob, source in sources_of(data).items()}
    if data is not None and data.evaluate is not None:
        paths["data.evaluate"] = data.evaluate
    for knob, path in paths.items():
        if knob in files and Path(path).is_dir():
            names = [str(file.relative_to(path)) for file in files[knob]]
            shown = ", ".join(names[:FILES_SHOWN]) + (", …" if len(names) > FILES_SHOWN else "")
            yield f"{knob} reads {counted(len(names), 'file')} of {path}: {shown}"


def _calls(plan: Plan, chooses: bool) -> Table:
    graph = plan.graph()
    table = _table("call", "model", "kind", "workers", wide=("waits for", "makes"))
    for name in topological_order(graph):
        call = plan.call(name)
        workers = _ranks(plan.replica(name).ranks)
        waits_for = _waits_for(graph, name)
        if chooses and call.rows == "chosen":
            waits_for += ", the choice of rows"
        cells = (name, str(plan.at[name]), call.kind, workers, waits_for, _makes(call))
        table.add_row(*(Text(plain(cell)) for cell in cells))
    return table


def _waits_for(graph: Graph, call: str) -> str:
    """Whom a call waits for: within the step, or (in brackets) in an earlier one."""
    edges = sorted(graph.into(call), key=lambda edge: (edge.steps, edge.source))
    return ", ".join(f"({edge.source})" if edge.steps else edge.source for edge in edges) or "-"


def _makes(call: MFC) -> str:
    return ", ".join(call.outputs) or f"{call.role}'s parameters"


def _models(plan: Plan, models: Models) -> Table:
    table = _table("model", "workers", "layout", "parameters", "gradients", "optimizer", "in a call")
    for replica in plan.replicas:
        table.add_row(Text(plain(str(replica.model))), _ranks(replica.ranks), replica.layout, *_sizes(replica, models))
    return table


def _what_they_are(plan: Plan, experiment: ExperimentConfig) -> Iterator[str]:
    """A line for each folder: who has it, and what is unusual about it; and for each backend that was chosen."""
    algorithm, roles = algorithm_of(experiment), dict[str, list[str]]()
    placed = {replica.role for replica in plan.replicas}
    for role, config in models_held(experiment).items():
        if role in placed:
            roles.setdefault(in_words(head_model(role, config, algorithm)), []).append(role)
    for text, those in roles.items():
        yield f"{', '.join(those)}: {text}"
    backends = {str(replica.model): replica.backend for replica in plan.replicas if replica.backend}
    away = {it.backend for it in plan.replicas if it.backend and it.backend != plan.home(it.role).backend}
    for name in dict.fromkeys(backends.values()):
        if name != ModelConfig.backend or name in away:
            yield f"backend {name}: {', '.join(model for model in backends if backends[model] == name)}"
    for replica in plan.replicas:
        if replica.served:
            python = replica.python or "hpcrl's own interpreter"
            heads = ", ".join(str(part.head) for part in replica.parts)
            yield f"{replica.model}: a server beside each of workers {heads}, run by {python}"


def _sizes(replica: ReplicaPlan, models: Models) -> tuple[str, ...]:
    """Of the worker that has most of each."""
    stages = models.get(replica.model, ())
    kinds = ("parameters", "gradients", "optimizer", "passing")
    return tuple(_size(max((getattr(memory, kind) for memory in stages), default=0.0)) for kind in kinds)


def _workers(plan: Plan, experiment: ExperimentConfig, models: Models) -> Table:
    told = Movements(plan, experiment, models)
    around = [tuple(told.around(worker.rank)) for worker in plan.workers]
    device = experiment.cluster.device
    on_host = [host_memory(plan, models, worker.rank, device) for worker in plan.workers]
    columns = ["worker", "node", "slot", "memory", "most in", *(["on its host"] if any(on_host) else [])]
    table = _table(*columns, wide=("holds", *(["around its calls"] if any(around) else [])))
    loads = peaks(plan, models, device)
    for worker, load, waits, moved in zip(plan.workers, loads, on_host, around, strict=True):
        words = ["; ".join(told.holds(worker.rank)), *(["; ".join(moved)] if any(around) else [])]
        place = [str(worker.rank), str(worker.node), str(worker.slot), _size(load.bytes), load.call or "-"]
        place += [_size(waits)] if any(on_host) else []
        table.add_row(*place, *(Text(plain(text)) for text in words))
    return table


def _reading_aid() -> Text:
    return Text(
        "Calls in brackets are of an earlier step. Memory is an estimate per worker, from shapes alone: "
        "what a call takes comes on top of all models that stay there, for one call at a time.",
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
