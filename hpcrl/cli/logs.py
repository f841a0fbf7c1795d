"""`hpcrl logs RUN`: the logs of all processes of a run, merged by time."""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import chain

from hpcrl.cli.arguments import RUN_HELP, asks_for_help, command_parser, find_run, parse
from hpcrl.cli.log_filter import add_filter, filter_of
from hpcrl.cli.run_end import end_of
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ConfigurationError, ExitCode
from hpcrl.inspect.log_lines import LEVELS
from hpcrl.inspect.logs import LogFilter, Logs, follow, shown_together

PAGER = "less -FRX"
"""Where PAGER says nothing: ends by itself where all fits on the screen."""


def run(words: Sequence[str]) -> int:
    parser = command_parser(
        "logs",
        "Print the logs of all processes of a run, of all its attempts, merged by time; on a terminal, in $PAGER.",
    )
    parser.add_argument("run", type=str, help=RUN_HELP)
    parser.add_argument("--follow", action="store_true", help="go on until the run has ended")
    add_filter(parser)
    if asks_for_help(words):
        print(parser.format_help())
        return int(ExitCode.DONE)
    given = parse(parser, words)
    run_dir = RunDirectory.look(find_run(given.run))
    wanted = filter_of(given, run_dir)
    if given.follow:
        for line in follow(run_dir, end_of(run_dir), wanted):
            print(line, flush=True)
        _refuse_strangers(run_dir, wanted)
        return int(ExitCode.DONE)
    _refuse_strangers(run_dir, wanted)
    if not show(shown_together(run_dir, wanted)):
        print(f"hpcrl: {_nothing(wanted)}", file=sys.stderr)
    return int(ExitCode.DONE)


def show(pieces: Iterable[bytes]) -> bool:
    """On a terminal through a pager, where there is one. Who leaves it has seen enough. False where there is none."""
    every = filter(None, pieces)
    first = next(every, None)
    if first is None:
        return False
    pieces = chain([first], every)
    pager = _pager() if sys.stdout.isatty() else None
    if pager is None:
        sys.stdout.flush()
        sys.stdout.buffer.writelines(pieces)
        sys.stdout.buffer.flush()
        return True
    assert pager.stdin is not None
    with suppress(BrokenPipeError), pager.stdin:
        pager.stdin.writelines(pieces)
    pager.wait()
    return True


def _nothing(wanted: LogFilter) -> str:
    """What is said instead of no line."""
    if wanted == LogFilter():
        return "nothing has been logged yet."
    if wanted == LogFilter(level=wanted.level):
        less = LEVELS[LEVELS.index(wanted.level) + 1]
        return f"no line of level {wanted.level}; --level {less} shows more."
    return "no line matches all of these options."


def _pager() -> subprocess.Popen[bytes] | None:
    command = shlex.split(os.environ.get("PAGER", PAGER))
    try:
        return subprocess.Popen(command, stdin=subprocess.PIPE) if command else None
    except OSError:
        return None


def _refuse_strangers(run_dir: RunDirectory, wanted: LogFilter) -> None:
    names = Logs(run_dir).processes() if wanted.processes else []
    if strangers := sorted(wanted.processes - set(names)):
        raise ConfigurationError(
            [f"--worker {' '.join(strangers)} has logged nothing there."],
            f"Name one of those who have: {', '.join(names) or 'nobody'}.",
        )
