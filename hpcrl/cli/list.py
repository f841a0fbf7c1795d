"""`hpcrl list [RUN_ROOT …]`: the runs of a folder, a line each."""

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console

from hpcrl.cli.arguments import asks_for_help, command_parser, parse
from hpcrl.config.run_root import RUN_ROOT
from hpcrl.errors import ConfigurationError, ExitCode, Problem
from hpcrl.foreign import plain
from hpcrl.inspect.listing import find_runs, list_runs, render_list
from hpcrl.launch.queues import LauncherQueues
from hpcrl.launch.registry import Registry

PIPE_COLUMNS = 400
"""Into a pipe, nothing is cut off."""


def run(words: Sequence[str]) -> int:
    parser = command_parser("list", "List the runs of folders: state, step, newest metric, jobs. The newest first.")
    parser.add_argument(
        "folders",
        type=str,
        nargs="*",
        default=[],
        metavar="RUN_ROOT",
        help=f"folders with run directories; else {RUN_ROOT}, or without that, all runs that you submitted",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    if asks_for_help(words):
        print(parser.format_help())
        return int(ExitCode.DONE)
    given = parse(parser, words)
    lines = list_runs(_paths(given.folders), LauncherQueues())
    if given.json:
        print(msgspec.json.format(msgspec.json.encode(lines)).decode())
    elif lines:
        Console(width=None if sys.stdout.isatty() else PIPE_COLUMNS, highlight=False).print(
            render_list(lines), soft_wrap=True
        )
    else:
        print(plain(f"no run in {', '.join(given.folders) or Path(RUN_ROOT).absolute()}; name a RUN_ROOT."))
    return int(ExitCode.DONE)


def _paths(folders: Sequence[str]) -> list[Path]:
    if missing := [folder for folder in folders if not Path(folder).is_dir()]:
        raise ConfigurationError([Problem((), f"{folder} is no folder.", "Name a run_root.") for folder in missing])
    if not folders and not Path(RUN_ROOT).is_dir():
        return Registry.of_user().runs()
    return find_runs(map(Path, folders or [RUN_ROOT]))
