"""`hpcrl samples RUN`: what the model said, with rewards and all else that is kept of it."""

import os
import re
import sys
from collections.abc import Sequence

from jsonargparse import Namespace
from rich.console import Console

from hpcrl.cli.arguments import RUN_HELP, asks_for_help, command_parser, find_run, parse
from hpcrl.cli.outputs import written
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ConfigurationError, ExitCode
from hpcrl.inspect.archives import Archives
from hpcrl.inspect.conditions import Where
from hpcrl.inspect.sample_files import json_lines, to_html, to_parquet
from hpcrl.inspect.sample_texts import counted, render
from hpcrl.inspect.steps_asked import NEWEST
from hpcrl.inspect.views.samples import Asked, Samples, samples


def run(words: Sequence[str]) -> int:
    parser = command_parser("samples", "Show prompts and responses from a run's archives, while it runs or later.")
    parser.add_argument("run", type=str, help=RUN_HELP)
    parser.add_argument(
        "--step",
        type=str,
        default=NEWEST,
        metavar="STEP",
        help="12, 10-20, 10-, all, or newest: the newest step that has samples",
    )
    parser.add_argument(
        "--where", type=str | None, default=None, metavar="CONDITION", help="e.g. 'reward < 0 and format == 0'"
    )
    parser.add_argument(
        "--grep", type=str | None, default=None, metavar="REGEX", help="only samples with a text that matches"
    )
    parser.add_argument(
        "--prompt",
        type=str | None,
        default=None,
        metavar="ID",
        help="the responses to the row with this id, over all steps",
    )
    parser.add_argument(
        "--sort", type=str | None, default=None, metavar="NAME", help="sort by this name, smallest first"
    )
    parser.add_argument("--desc", action="store_true", help="with --sort: largest first")
    parser.add_argument("--limit", type=int | None, default=None, metavar="N", help="show at most N")
    parser.add_argument("--jsonl", action="store_true", help="print one line of JSON per sample, with tokens")
    parser.add_argument("--html", type=str | None, default=None, metavar="FILE", help="write them as a page")
    parser.add_argument(
        "--parquet", type=str | None, default=None, metavar="FILE", help="write them as a table (needs hpcrl[data])"
    )
    if asks_for_help(words):
        print(parser.format_help())
        return int(ExitCode.DONE)
    given = parse(parser, words)
    _refuse_idle_options(given)
    run_dir = RunDirectory.look(find_run(given.run))
    view = samples(Archives(run_dir), str(run_dir.root), _asked(given))
    _tell(view, given)
    return int(ExitCode.DONE)


def _refuse_idle_options(given: Namespace) -> None:
    if given.limit is not None and given.limit < 1:
        raise ConfigurationError([f"--limit {given.limit} shows nothing."], "Give 1 or more, or leave it out.")
    if given.desc and given.sort is None:
        raise ConfigurationError(["--desc says how to sort, but not by what."], "Add a name, as in --sort reward.")


def _asked(given: Namespace) -> Asked:
    return Asked(
        steps=given.step,
        where=None if given.where is None else Where(given.where),
        grep=_pattern(given.grep),
        prompt=given.prompt,
        sort=given.sort,
        descending=given.desc,
        limit=given.limit,
    )


def _tell(view: Samples, given: Namespace) -> None:
    if given.jsonl:
        for line in json_lines(view):
            print(line)
    files = {"--html": (given.html, to_html), "--parquet": (given.parquet, to_parquet)}
    files = {option: (name, form) for option, (name, form) in files.items() if name is not None}
    for option, (name, form) in files.items():
        content = form(view)
        with written(option, name) as file:
            file.write(content)
    if files:
        print(f"{', '.join(name for name, _ in files.values())}: {counted(view)}", file=sys.stderr)
    elif not given.jsonl:
        _page(view)
    elif view.gone:
        print(counted(view), file=sys.stderr)


def _page(view: Samples) -> None:
    """A page at a time where somebody looks."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.print(render(view), soft_wrap=True)
        return
    os.environ.setdefault("LESS", "-RFX")  # a pager that leaves colours as they are, and short texts on the screen
    with console.pager(styles=True):
        console.print(render(view))


def _pattern(text: str | None) -> re.Pattern[str] | None:
    try:
        return None if text is None else re.compile(text)
    except re.error as error:
        raise ConfigurationError(
            [f"--grep {text} is not a regular expression: {error}."], "Correct it, or escape it with a backslash."
        ) from None
