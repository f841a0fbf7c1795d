"""`hpcrl simulate CONFIG`: a run on a virtual clock: how long a step takes, and what disturbances cost."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any

import msgspec
from jsonargparse import ArgumentParser, Namespace
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from hpcrl.cli.arguments import asks_for_help, command_parser, parse, separate
from hpcrl.cli.outputs import try_out
from hpcrl.cli.reckoned import does_not_fit, duration, reckoned_from, short_forms, whole_option
from hpcrl.cli.settings import help_with_settings, read_experiment
from hpcrl.cli.timeline_files import write_timeline
from hpcrl.config.changes import with_nodes
from hpcrl.config.cluster import ClusterConfig
from hpcrl.errors import ConfigurationError, ExitCode
from hpcrl.foreign import plain
from hpcrl.inspect.timeline_text import render_timeline
from hpcrl.inspect.words import counted
from hpcrl.launch.launcher import declaration_of
from hpcrl.launch.preflight import capacity_of
from hpcrl.placement.capacity import on_its_device
from hpcrl.placement.costs import read_costs
from hpcrl.placement.search_inputs import lengths_asked, rates_asked
from hpcrl.placement.sizes import size_in_words
from hpcrl.placement.workload import workload_of
from hpcrl.recipes.algorithm import algorithm_of
from hpcrl.simulation.disturbances import (
    Disturbances,
    parse_factor,
    parse_killed,
    parse_late,
    parse_lost,
    parse_preempted,
    parse_seconds,
)
from hpcrl.simulation.ordering import simulated_steps
from hpcrl.simulation.told import AttemptTold, SimulationTold, steps_to_tell, told

STEPS = 10
MOST_STEPS = 10_000
ATTEMPTS_SHOWN = 20
LISTED = {
    "--lose": "NODE@WHEN: a node is gone without a word, at 40s, 2h, or once step3 opens",
    "--preempt": "NODE@WHEN:NOTICE: a node is told to go, as 1@step3:30s, and gone when the notice is over",
    "--kill": "RANK@WHEN: a worker's process ends",
    "--slow": "RANK=FACTOR: a worker that is so many times slower",
    "--slow-disk": "NODE=FACTOR: a node whose disk is so many times slower",
    "--late": "NODE=DURATION: a node that comes so much later than the others",
}
TIMES = {
    "--mtbf": "lose nodes by chance, each once in so long on average, as 30d; says how often a checkpoint is best",
    "--wall-time": "how long a job may run before it is queued again",
    "--queue": "how long jobs wait for their turn",
    "--replaced": "how long it takes until another node comes in the place of one that is gone; else 60s",
}
OWN = ("--steps", "--seed", "--json", "--html", "--perfetto", *LISTED, *TIMES)


def run(words: Sequence[str]) -> int:
    parser = _parser()
    mine, overrides = separate([whole_option(word) for word in words], OWN)
    if asks_for_help(mine):
        print(help_with_settings(parser, mine, overrides))
        return int(ExitCode.DONE)
    given = parse(parser, mine)
    disturbances = _disturbances(given)
    for option, path in (("--html", given.html), ("--perfetto", given.perfetto)):
        if path:
            try_out(option, path)
    answer = simulated(read_experiment(given.config, overrides), disturbances, given.steps, given.seed)
    if given.json:
        print(msgspec.json.format(msgspec.json.encode(answer)).decode())
    else:
        Console().print(render(answer))
    write_timeline(answer.timeline, given.html, given.perfetto, sys.stderr if given.json else sys.stdout)
    return answer.exit_code


def simulated(experiment: Any, disturbances: Disturbances, steps: int | None, seed: int = 0) -> SimulationTold:
    """So many steps of an experiment. Reads each model's config.json. Raises ConfigurationError."""
    cluster = experiment.cluster
    if not cluster.is_elastic:
        experiment = with_nodes(experiment, cluster.most_nodes)
    capacity = capacity_of(with_nodes(experiment, cluster.most_nodes))
    if capacity is not None:
        experiment = on_its_device(experiment, capacity)
    algorithm = algorithm_of(experiment)
    enough = steps_to_tell(algorithm.graph(experiment))
    usual = max(STEPS, enough)
    steps = steps or min(experiment.control.steps or usual, usual)
    rates = rates_asked(experiment)
    lengths = lengths_asked(experiment, rates)
    costs = read_costs(experiment, rates, workload_of(experiment, lengths))
    replaces = _replaces_nodes(experiment.cluster)
    run = partial(simulated_steps, experiment, costs, lengths, steps, replaces_nodes=replaces, seed=seed)
    found = run(disturbances)
    undisturbed = run() if disturbances.touch_steps else found
    notices = [*does_not_fit(experiment, rates, capacity), *reckoned_from(lengths, experiment, rates.source)]
    notices += costs.notices
    notices += ["Evaluations are left out."] * algorithm.evaluates(experiment)
    if steps < enough:
        notices.append(
            f"Too few steps to say well what one takes: the first fill those that are open. Add --steps {enough}."
        )
    mtbf_s = disturbances.mtbf_s and disturbances.mtbf_s / cluster.most_nodes
    return told(found, undisturbed, f"{rates.device} ({rates.source})", notices, mtbf_s)


def _replaces_nodes(cluster: ClusterConfig) -> bool:
    """Whether a lost node is started again while the others stay, where this says it; else as in a job array."""
    kind = declaration_of(cluster.type)
    asked = replace(cluster, topology="array") if cluster.topology == "auto" else cluster
    return asked.topology == "array" if kind.chooses else kind.abilities(asked).replaces_nodes


def _parser() -> ArgumentParser:
    parser = command_parser(
        "simulate",
        "Simulate a run on a virtual clock: the master's own code, workers that take the time that calls are reckoned "
        "to take. Says how long a step takes, what it waits for, and what lost nodes cost. Starts nothing.",
    )
    parser.add_argument("config", type=str, help="a YAML file")
    parser.add_argument(
        "--steps",
        type=int | None,
        default=None,
        help=f"to simulate; else {STEPS}, more with a lag, or the run's, if fewer",
    )
    for option, what in LISTED.items():
        parser.add_argument(
            option, type=str, action="append", default=[], metavar="WHAT", help=f"{what}; may be repeated"
        )
    for option, what in TIMES.items():
        parser.add_argument(option, type=str | None, default=None, metavar="DURATION", help=what)
    parser.add_argument("--seed", type=int, default=0, help="where lengths and losses by chance come from")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--html", type=str | None, default=None, metavar="FILE", help="write the timeline as a page")
    parser.add_argument(
        "--perfetto",
        type=str | None,
        default=None,
        metavar="FILE",
        help="write the timeline as a trace for ui.perfetto.dev (needs hpcrl[perfetto])",
    )
    parser.epilog = short_forms()
    return parser


def _disturbances(given: Namespace) -> Disturbances:
    """Raises ConfigurationError, naming what was written and what is expected."""
    if given.steps is not None and not 1 <= given.steps <= MOST_STEPS:
        raise ConfigurationError(
            [f"--steps {given.steps} is no number of steps to simulate."], f"Write 1 to {MOST_STEPS:,}."
        )
    if given.seed < 0:
        raise ConfigurationError([f"--seed {given.seed} is no seed."], "Write 0 or more.")
    times = {option: _seconds(given, option) for option in TIMES}
    for option in ("--mtbf", "--wall-time"):
        if times[option] == 0:
            raise ConfigurationError([f"{option} is 0."], "Write a duration above 0, such as 24h.")
    return Disturbances(
        lost=tuple(map(parse_lost, given.lose)),
        preempted=tuple(map(parse_preempted, given.preempt)),
        killed=tuple(map(parse_killed, given.kill)),
        slow=tuple(parse_factor("--slow", text) for text in given.slow),
        slow_disk=tuple(parse_factor("--slow-disk", text) for text in given.slow_disk),
        late=tuple(map(parse_late, given.late)),
        mtbf_s=times["--mtbf"],
        wall_time_s=times["--wall-time"],
        queue_s=times["--queue"] or 0.0,
        replaced_s=60.0 if times["--replaced"] is None else times["--replaced"],
    )


def _seconds(given: Namespace, option: str) -> float | None:
    text = getattr(given, option[2:].replace("-", "_"))
    return None if text is None else parse_seconds(f"{option} {text}", text)


def render(answer: SimulationTold) -> RenderableType:
    """For people."""
    parts: list[RenderableType] = [Text(plain(line)) for line in _facts(answer)]
    if len(answer.attempts) > 1:
        shown = answer.attempts[:ATTEMPTS_SHOWN]
        parts += [Text(), _attempts(shown), *(Text(plain(line)) for line in _endings(shown))]
        if more := len(answer.attempts[ATTEMPTS_SHOWN:]):
            parts.append(Text(f"{counted(more, 'more attempt')}: --json", style="dim"))
    if answer.timeline.attempts:
        parts += [Text(), render_timeline(answer.timeline)]
    parts += [Text(plain(notice), style="dim") for notice in answer.notices]
    return Group(*parts)


def _facts(answer: SimulationTold) -> Iterator[str]:
    size = answer.size
    yield f"{counted(size.nodes, 'node')}, {counted(size.workers, 'worker')}, {answer.rates}; {answer.ending}"
    every = f", one every {duration(answer.step_s)}; workers idle {answer.idle:.0%}" if answer.steps else ""
    yield (f"{counted(answer.steps, 'step')} in {duration(answer.seconds)}{every}; goodput {answer.goodput:.0%}")
    sizes = answer.bytes
    yield (
        f"spilled {size_in_words(sizes.spilled)}, saved {size_in_words(sizes.saved)} in checkpoints, moved "
        f"{size_in_words(sizes.moved)} of parameters"
    )
    if answer.lost_work_s:
        yield f"lost work: {duration(answer.lost_work_s)} of all workers together"
    if answer.checkpoint is not None:
        best = answer.checkpoint
        yield (
            f"the best interval of checkpoints is {duration(best.seconds)}: set control.checkpoint.steps to "
            f"{best.steps}"
        )


def _endings(attempts: Sequence[AttemptTold]) -> Iterator[str]:
    """Why attempts ended; of several in a row that ended alike, once."""
    for ending, alike in groupby(attempts, attrgetter("ending")):
        first, *others = (it.attempt for it in alike)
        which = f"attempts {first} to {others[-1]}" if others else f"attempt {first}"
        yield f"{which}: {ending}"


def _attempts(attempts: Sequence[AttemptTold]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in ("attempt", "nodes", "began", "ready", "ended", "parts read", "replayed", "went on after"):
        table.add_column(column, no_wrap=True)
    for it in attempts:
        times = (
            duration(it.begun_s),
            "-" if it.ready_s is None else duration(it.ready_s),
            duration(it.ended_s),
        )
        again = "-" if it.recovered_s is None else duration(it.recovered_s)
        table.add_row(
            str(it.attempt), str(it.nodes) if it.nodes else "-", *times, str(it.read), str(it.replayed), again
        )
    return table
