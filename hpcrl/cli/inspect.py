"""`hpcrl inspect RUN [VIEW]`: what a run has reached and what it cost, in numbers or, with --plot, in curves."""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import msgspec
from jsonargparse import ArgumentParser, Namespace

from hpcrl.cli.arguments import RUN_HELP, asks_for_help, command_parser, find_run, parse
from hpcrl.cli.outputs import writable, written
from hpcrl.cli.timeline_files import write_timeline
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ConfigurationError, ExitCode, InternalError
from hpcrl.inspect.audit_text import told_on_stderr
from hpcrl.inspect.plots import plot
from hpcrl.inspect.reader import RunReader
from hpcrl.inspect.report_page import report_page
from hpcrl.inspect.terminal import show, to_csv
from hpcrl.inspect.views.audit import Audit, audit
from hpcrl.inspect.views.diff import diff
from hpcrl.inspect.views.memory import memory
from hpcrl.inspect.views.report import Report, report
from hpcrl.inspect.views.resources import resources
from hpcrl.inspect.views.settings import settings_of
from hpcrl.inspect.views.steps import steps
from hpcrl.inspect.views.stragglers import stragglers
from hpcrl.inspect.views.summary import summary
from hpcrl.inspect.views.timeline import timeline
from hpcrl.inspect.views.why import why
from hpcrl.inspect.words import counted

Make = Callable[[RunReader, Namespace], Any]

VIEWS: Mapping[str, tuple[Make, str]] = {
    "summary": (lambda reader, _: summary(reader), "metrics, time by call, restarts, why it failed"),
    "steps": (lambda reader, _: steps(reader), "each step: its time, its costliest calls, its metrics"),
    "timeline": (
        lambda reader, given: timeline(reader, given.steps),
        "which worker did what when, and what each step waited for",
    ),
    "memory": (lambda reader, _: memory(reader), "peak memory of each call, beside what the plan had expected"),
    "why": (
        lambda reader, _: why(reader),
        "why each attempt ended: which process began it, the evidence, what to type next",
    ),
    "resources": (lambda reader, _: resources(reader), "what nodes and workers used at most, and how much was left"),
    "settings": (lambda reader, _: settings_of(reader), "what it is set to, and what each resume has changed"),
    "stragglers": (lambda reader, _: stragglers(reader), "the workers that others waited for, and their nodes"),
    "diff": (
        lambda reader, given: diff(reader, _other(given)),
        "with another run: settings, inputs and code, samples and metrics that differ, and from which step on",
    ),
    "audit": (
        lambda reader, _: audit(reader, told_on_stderr()),
        "which files are damaged, which belong to nothing, and what resume would do; exit code 70 if any is damaged",
    ),
    "report": (lambda reader, _: report(reader), "all of it as one page, written to the file that --html names"),
}

TABLES = ("steps", "memory", "resources", "stragglers")
"""Views that --csv prints."""
TAKEN_BY: Mapping[str, tuple[str, ...]] = {
    "other": ("diff",),
    "steps": ("timeline",),
    "html": ("report", "timeline"),
    "perfetto": ("timeline",),
    "traceback": ("why",),
    "plot": ("summary",),
    "out": ("summary",),
}
"""Option → the views that take it; the others all do."""


def run(words: Sequence[str]) -> int:
    parser = _parser()
    if asks_for_help(words):
        views = "\n".join(f"  {name:12}{what}" for name, (_, what) in VIEWS.items())
        print(f"{parser.format_help()}\nviews:\n{views}")
        return int(ExitCode.DONE)
    given = parse(parser, words)
    run_dir = RunDirectory.look(find_run(given.run))
    if given.view not in VIEWS:
        raise ConfigurationError([f"{given.view} is no view of a run."], f"There are: {', '.join(VIEWS)}.")
    _refuse_others_options(given)
    if given.plot:
        _write_curves(run_dir, run_dir.root if given.out is None else Path(given.out))
        return int(ExitCode.DONE)
    reader = RunReader(run_dir)
    view = VIEWS[given.view][0](reader, given)
    RunDirectory.look(run_dir.root)  # one that was removed meanwhile has looked like an empty one
    if not isinstance(view, Report) or given.json or given.csv:
        _tell(view, given)
    if isinstance(view, Report) and (given.html or not given.json):
        _write_report(view, reader, given)
    if isinstance(view, Audit) and not view.is_whole:
        raise InternalError(f"{counted(len(view.damaged), 'file')} of {run_dir.root} damaged: see above.")
    return int(ExitCode.DONE)


def _parser() -> ArgumentParser:
    parser = command_parser("inspect", "Look at a run from its directory alone, while it runs or afterwards.")
    parser.add_argument("run", type=str, help=RUN_HELP)
    parser.add_argument("view", type=str, nargs="?", default="summary", help="one of those below; else summary")
    parser.add_argument("other", type=str | None, nargs="?", default=None, help="with diff: the other run")
    parser.add_argument("--json", action="store_true", help="print the view as JSON")
    parser.add_argument(
        "--csv", action="store_true", help=f"print the table of {', '.join(TABLES[:-1])} or {TABLES[-1]} as CSV"
    )
    parser.add_argument(
        "--plot", action="store_true", help="with summary: draw the curves into curves.png and .svg in RUN instead"
    )
    parser.add_argument(
        "--out", type=str | None, default=None, metavar="FOLDER", help="with --plot: where to, in the place of RUN"
    )
    parser.add_argument("--traceback", action="store_true", help="with why: all frames, hpcrl's too")
    parser.add_argument(
        "--steps", type=str | None, default=None, help="with timeline: 12, 10-20, 10- or all; by default the last three"
    )
    parser.add_argument(
        "--html", type=str | None, default=None, metavar="FILE", help="with report and timeline: the page to write"
    )
    parser.add_argument(
        "--perfetto",
        type=str | None,
        default=None,
        metavar="FILE",
        help="with timeline: a trace for ui.perfetto.dev (needs hpcrl[perfetto])",
    )
    return parser


def _write_curves(run_dir: RunDirectory, folder: Path) -> None:
    with writable("--out", folder):
        folder.mkdir(parents=True, exist_ok=True)
    for name, drawn in plot(run_dir).items():
        with written("--out", folder / name) as file:
            file.write(drawn)
        print(folder / name)


def _write_report(view: Report, reader: RunReader, given: Namespace) -> None:
    out = given.html
    if out is None:
        raise ConfigurationError(["The view report is a page."], "Name it: --html FILE.")
    page = report_page(view, reader)
    with written("--html", out) as file:
        file.write(page.encode())
    print(out, file=_beside(given))


def _beside(given: Namespace) -> TextIO:
    """Where it is said what was written."""
    return sys.stderr if given.json or given.csv else sys.stdout


def _tell(view: Any, given: Namespace) -> None:
    if given.json:
        print(msgspec.json.format(msgspec.json.encode(view)).decode())
    elif given.csv:
        print(_csv(given.view, view), end="")
    elif not (given.html or given.perfetto):
        show(view, with_traceback=given.traceback)
    if given.view == "timeline":
        write_timeline(view, given.html, given.perfetto, _beside(given))


def _refuse_others_options(given: Namespace) -> None:
    """Nobody is to believe that an option did something that the view knows nothing of."""
    for option, takers in TAKEN_BY.items():
        if getattr(given, option) and given.view not in takers:
            name = "other run" if option == "other" else f"--{option}"
            raise ConfigurationError(
                [f"The view {given.view} takes no {name}."], f"Leave it out, or take {' or '.join(takers)}."
            )
    if given.out and not given.plot:
        raise ConfigurationError(["--out is where --plot draws to."], "Give --plot too.")


def _other(given: Namespace) -> RunReader:
    if given.other is None:
        raise ConfigurationError(["The view diff needs another run."], "Name it: hpcrl inspect RUN diff OTHER.")
    return RunReader(RunDirectory.look(find_run(given.other)))


def _csv(name: str, view: Any) -> str:
    text = to_csv(view)
    if text is None:
        raise ConfigurationError([f"The view {name} is no table."], f"Write --json, or take {', '.join(TABLES)}.")
    return text
