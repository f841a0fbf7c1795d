"""`hpcrl search CONFIG`: where to train each model and make each call, so that a step is short and everything fits."""

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import yaml
from jsonargparse import Namespace
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from hpcrl.cli.arguments import asks_for_help, command_parser, find_run, parse, separate
from hpcrl.cli.outputs import try_out, written
from hpcrl.cli.reckoned import SHORT, duration, reckoned_from, short_forms, whole_option
from hpcrl.cli.settings import help_with_settings, read_experiment
from hpcrl.config.changes import changes, with_nodes
from hpcrl.config.experiment import ExperimentConfig, to_dict
from hpcrl.config.fields import ChangeClass
from hpcrl.config.yaml_file import read_yaml
from hpcrl.durable.attempts import newest_nodes
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ConfigurationError, ExitCode
from hpcrl.foreign import plain
from hpcrl.inspect.words import counted
from hpcrl.launch.calibrating import calibrated, like, payback, refuse_another
from hpcrl.launch.preflight import capacity_of
from hpcrl.launch.searched import searched_each
from hpcrl.placement.allocate import MANUAL, SEARCH
from hpcrl.placement.node_counts import in_words
from hpcrl.placement.search_inputs import says_lengths
from hpcrl.placement.search_told import OnNumber, PlanTold, RangeTold, SearchTold, told
from hpcrl.placement.searching import OWN
from hpcrl.placement.settling import Found, search_for
from hpcrl.placement.sizes import GIB
from hpcrl.recipes.algorithm import experiment_from
from hpcrl.simulation.ordering import in_simulated_order

ALSO_SHORT = (*SHORT, "proposals")
"""Settings of `search` that this command takes without it."""
WORKERS = ("cluster.nodes", "cluster.workers_per_node")
"""Of the settings of `cluster`, those that a plan is made for."""


def run(words: Sequence[str]) -> int:
    parser = command_parser(
        "search",
        "Search for the allocation with the shortest step: where each role is trained, where each call is made, in "
        "which layout and micro-batches. What the file says of layouts, meshes and calls stays as it is. Takes up to "
        "about a minute; needs to know the device, by --device, --profile or cluster.slurm.gpu_type. Starts nothing.",
    )
    parser.add_argument("config", type=str, help="a YAML file")
    parser.add_argument("--out", metavar="FILE", help="write the configuration with the best plan; it can be submitted")
    parser.add_argument(
        "--after", metavar="RUN", help="scale times by what this run took; say whether resuming it pays"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.epilog = short_forms(ALSO_SHORT)
    mine, overrides = separate([whole_option(word, ALSO_SHORT) for word in words], ("--out", "--after", "--json"))
    if asks_for_help(mine):
        print(help_with_settings(parser, mine, overrides))
        return int(ExitCode.DONE)
    given = parse(parser, mine)
    if given.out:
        try_out("--out", given.out)
    asked = read_experiment(given.config, [*overrides, f"allocation={SEARCH}"], settles=False)
    experiment = replace(asked, allocation=MANUAL)
    after = RunDirectory.look(find_run(given.after)) if given.after else None
    if after is not None:
        refuse_another(after, experiment)
    if experiment.cluster.is_elastic:
        return _on_each_number(experiment, after, given, overrides)
    experiment = with_nodes(experiment, experiment.cluster.most_nodes)
    found = in_simulated_order(_search(experiment, after))
    answer = _told(found, experiment)
    print(msgspec.json.encode(answer).decode()) if given.json else Console().print(render(answer))
    best, best_s = found.settled(), answer.plans[0].step_s
    if after is not None:
        _tell_payback(after, (found, best_s), best)
    if given.out:
        _write(given.out, given.config, (experiment, best), f"is expected to take {best_s:.3g} s", overrides)
    elif not given.json:
        print("To write a configuration with plan 1, add: --out best.yaml", file=sys.stderr)
    return int(ExitCode.DONE)


def _told(found: Found, experiment: ExperimentConfig) -> SearchTold:
    rates = found.costs.rates
    notices = (*reckoned_from(found.lengths, experiment, rates.source), *found.costs.notices)
    return told(found.searched, found.experiment, f"{rates.device} ({rates.source})", notices, found.under)


def _on_each_number(
    experiment: ExperimentConfig, after: RunDirectory | None, given: Namespace, overrides: Sequence[str]
) -> int:
    """A candidate for each number of nodes that the run may have, of which `--out` keeps one each."""
    if after is not None:
        raise ConfigurationError(
            [f"cluster.nodes = {experiment.cluster.nodes} is a range, but --after compares with a run on its nodes."],
            f"Give one number, as in --nodes {len(newest_nodes(after) or ()) or experiment.cluster.most_nodes}.",
        )
    each, best = searched_each(experiment)
    numbers = tuple(OnNumber(nodes, _told(found, experiment)) for nodes, found in each.items())
    answer = RangeTold(str(experiment.cluster.nodes), numbers)
    if given.json:
        print(msgspec.json.encode(answer).decode())
    else:
        others = [f"--{it}" for it in overrides if not it.startswith("cluster.nodes=")]
        Console().print(render_range(answer, shlex.join([given.config, *others])))
    if given.out:
        steps = ", ".join(f"{it.found.plans[0].step_s:.3g} s on {in_words(it.nodes)}" for it in numbers)
        _write(given.out, given.config, (experiment, best), f"is expected to take {steps}", overrides)
    elif not given.json:
        print("To write a configuration with plan 1 of each, add: --out best.yaml", file=sys.stderr)
    return int(ExitCode.DONE)


def _search(experiment: ExperimentConfig, after: RunDirectory | None) -> Found:
    if after is None:
        return search_for(experiment, capacity_of(experiment))
    asked = experiment if says_lengths(experiment) else like(experiment, after)
    return search_for(asked, capacity_of(experiment), partial(calibrated, after))


def _tell_payback(after: RunDirectory, found: tuple[Found, float], best: Any) -> None:
    told = payback(after, found[1], best.cluster.most_nodes, found[0].costs.rates)
    print(told.said, file=sys.stderr)
    if told.pays is False:
        return
    changed = changes(experiment_from(after.configuration()), best, [ChangeClass.PLACEMENT])
    placed = [it for it in changed if it.key.partition(".")[0] not in ("search", "cluster") or it.key in WORKERS]
    words = " ".join(f"--{it.key} {shlex.quote(_typed(it.value))}" for it in placed)
    print(f"With it: hpcrl stop {after.root}; hpcrl resume {after.root} {words}", file=sys.stderr)


def _typed(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _write(out: str, config: str, settings: tuple[Any, Any], expected: str, overrides: Sequence[str]) -> None:
    """The file's own settings and those of the command line, with what the best plan changes of them."""
    experiment, best = settings
    values, whole = read_yaml(Path(config)), to_dict(best)
    given = {key for text in overrides if not (key := text.partition("=")[0]).startswith("search.")}
    for key in sorted(
        given | {change.key for change in changes(experiment, best)} - {"cluster.device", "search.device"}
    ):
        _put(values, key.split("."), whole)
    values.pop("allocation", None)
    values["calls"] = whole["calls"]
    head = f"# Written by `hpcrl search {config}`: a step {expected}.\n"
    with written("--out", out) as file:
        file.write((head + yaml.safe_dump(values, sort_keys=False, allow_unicode=True)).encode())
    print(f"{out} has plan 1; submit it with: hpcrl submit {out}", file=sys.stderr)


def _put(values: dict[str, Any], path: Sequence[str], whole: Mapping[str, Any]) -> None:
    for name in path[:-1]:
        whole = whole[name]
        held = values.get(name)
        values[name] = held if isinstance(held, dict) else {}
        values = values[name]
    values[path[-1]] = whole[path[-1]]


def render(answer: SearchTold) -> RenderableType:
    """For people."""
    tried = f"{'all ' * answer.is_optimal}{answer.proposals:,} plans were tried"
    tried = "there is one plan" if answer.is_optimal and answer.proposals == 1 else tried
    head = Text(f"{counted(answer.workers, 'worker')} of {_size(answer.capacity)}, {plain(answer.rates)}; {tried}\n")
    parts: list[RenderableType] = [head, _plans(answer), Text(), _calls(answer.plans[0]), Text()]
    parts += [Text(plain(line)) for line in (*_why(answer), *_lengths(answer))]
    parts += [Text(plain(notice), style="dim") for notice in answer.notices]
    return Group(*parts)


def render_range(answer: RangeTold, typed: str) -> RenderableType:
    """The best plan on each number of nodes, a line for each; below, what it is. `typed`: the configuration, and
    settings beside it."""
    table, plans = _table("nodes", "workers", "step", "simulated", "the settings", "memory", wide=""), []
    for it in answer.numbers:
        best = it.found.plans[0]
        own = next((plan.step_s for plan in it.found.others if plan.name == OWN and plan.fits), None)
        memory = _size(max(call.bytes_per_worker for call in best.calls))
        times = (best.step_s, best.simulated_s, own)
        layouts = ", ".join(f"{call.call} {call.layout} on {call.mesh}" for call in best.calls)
        cells = ["-" if seconds is None else duration(seconds) for seconds in times]
        table.add_row(str(it.nodes), str(it.found.workers), *cells, memory)
        plans.append(Text(plain(f"On {in_words(it.nodes)}: {layouts}.")))
    first = answer.numbers[0].found
    tried = sum(it.found.proposals for it in answer.numbers)
    head = Text(
        f"{answer.nodes} nodes of {_size(first.capacity)} a worker, {plain(first.rates)}; {tried:,} plans were tried\n"
    )
    aid = f"Each in full: hpcrl search {typed} --nodes {answer.numbers[-1].nodes}"
    notices = dict.fromkeys(notice for it in answer.numbers for notice in it.found.notices)
    return Group(
        head, table, Text(), *plans, Text(), Text(plain(aid)), *(Text(plain(notice), style="dim") for notice in notices)
    )


def _plans(answer: SearchTold) -> Table:
    table = _table("plan", "step", "simulated", "idle", "memory", "moves", wide="")
    for it in (*answer.plans, *answer.others):
        memory = max(call.bytes_per_worker for call in it.calls)
        lacks = "" if it.fits else f"{_size(it.excess_bytes)} too much in all"
        moves = sum(call.moved_s for call in it.calls)
        simulated = "-" if it.simulated_s is None else duration(it.simulated_s)
        cells = (
            duration(it.step_s),
            simulated,
            f"{it.idle:.0%}",
            _size(memory),
            duration(moves) if moves else "-",
            lacks,
        )
        table.add_row(it.name, *cells)
    return table


def _calls(best: PlanTold) -> Table:
    table = _table("plan 1", "layout", "workers", "micro-batch", "time", "moved in", "memory", wide="")
    for it in best.calls:
        table.add_row(
            plain(it.call),
            it.layout,
            it.mesh,
            f"{it.micro_batch_tokens:,}" if it.micro_batch_tokens else "-",
            duration(it.seconds),
            duration(it.moved_s) if it.moved_s else "-",
            _size(it.bytes_per_worker) if it.bytes_per_worker else "-",
            "on its host" if it.released else "",
        )
    return table


def _why(answer: SearchTold) -> Iterator[str]:
    if not answer.against:
        yield "Neither the settings nor any usual allocation fits, so there is nothing to compare plan 1 with."
        return
    against, best = next(it for it in answer.others if it.name == answer.against), answer.plans[0]
    if best.step_s >= against.step_s:
        yield f"Nothing faster than {_named(answer.against)} was found."
        return
    gain = f"{against.step_s / best.step_s:.2f} times as fast as {_named(answer.against)}"
    yield f"Plan 1 is {gain} ({duration(against.step_s)} a step). How much of that each choice is worth:"
    for reason in answer.reasons:
        yield f"  {reason.call}: {reason.now}, not {reason.before}: {reason.share:.0%} of the gain"


def _named(name: str) -> str:
    return "what the settings say" if name == OWN else f"allocation {name}"


def _lengths(answer: SearchTold) -> Iterator[str]:
    for it in answer.sensitivities:
        change = f"{abs(it.factor - 1):.0%} {'longer' if it.factor > 1 else 'shorter'}"
        beside = "" if it.against_s is None else f" ({_named(answer.against)}: {duration(it.against_s)})"
        still = "still the fastest of these" if it.fastest == "1" else f"{it.fastest} is faster then"
        yield f"If responses were {change}, a step would take {duration(it.best_s)}{beside}; {still}."


def _size(bytes_: float) -> str:
    return f"{bytes_ / GIB:.1f} GiB" if bytes_ >= GIB / 10 else f"{bytes_ / 2**20:.1f} MiB"


def _table(*columns: str, wide: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, no_wrap=True)
    table.add_column(wide)
    return table
