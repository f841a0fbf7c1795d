"""`hpcrl inspect RUN [VIEW]`: what a run has reached and what it cost, in numbers or, with --plot, in curves."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from hpcrl.cli.arguments import RUN_HELP, asks_for_help, command_parser, find_run, parse
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ConfigurationError, ExitCode
from hpcrl.inspect.plots import plot
from hpcrl.inspect.reader import RunReader
from hpcrl.inspect.terminal import show, to_csv
from hpcrl.inspect.views.memory import memory
from hpcrl.inspect.views.resources import resources
from hpcrl.inspect.views.steps import steps
from hpcrl.inspect.views.stragglers import stragglers
from hpcrl.inspect.views.summary import summary
from hpcrl.inspect.views.why import why

VIEWS: Mapping[str, tuple[Callable[[RunReader], Any], str]] = {
    "summary": (summary, "metrics, time by call, restarts, why it failed"),
    "steps": (steps, "each step: its time, its dearest calls, its metrics"),
    "memory": (memory, "what each call had in memory, beside what its plan had expected"),
    "why": (why, "why each attempt ended: who began it, where it is written, what to type next"),
    "resources": (resources, "what nodes and workers used at most, and how much was left"),
    "stragglers": (stragglers, "the workers that others waited for, and their nodes"),
}

TABLES = ("steps", "memory", "resources", "stragglers")
"""Views that --csv prints."""


def run(words: Sequence[str]) -> int:
    parser = command_parser("inspect", "Look at a run from its directory alone, while it runs or afterwards.")
    parser.add_argument("run", type=str, help=RUN_HELP)
    views = "; ".join(f"{name}: {what}" for name, (_, what) in VIEWS.items())
    parser.add_argument(
        "view", type=str, nargs="?", default="summary", help=f"one of these (summary by default): {views}"
    )
    parser.add_argument("--json", action="store_true", help="print the view as JSON")
    parser.add_argument("--csv", action="store_true", help="print the table of a view as CSV")
    parser.add_argument("--plot", action="store_true", help="draw the curves into RUN/curves.png and .svg instead")
    parser.add_argument("--traceback", action="store_true", help="with why: all frames, hpcrl's too")
    if asks_for_help(words):
        print(parser.format_help())
        return int(ExitCode.DONE)
    given = parse(parser, words)
    run_dir = RunDirectory.open(find_run(given.run))
    if given.view not in VIEWS:
        raise ConfigurationError([f"{given.view} is no view of a run."], f"There are: {', '.join(VIEWS)}.")
    if given.plot:
        print("\n".join(map(str, plot(run_dir))))
        return int(ExitCode.DONE)
    view = VIEWS[given.view][0](RunReader(run_dir))
    if given.json:
        print(msgspec.json.format(msgspec.json.encode(view)).decode())
    elif given.csv:
        print(_csv(given.view, view), end="")
    else:
        show(view, with_traceback=given.traceback)
    return int(ExitCode.DONE)


def _csv(name: str, view: Any) -> str:
    text = to_csv(view)
    if text is None:
        raise ConfigurationError([f"The view {name} is no table."], f"Write --json, or take {', '.join(TABLES)}.")
    return text
