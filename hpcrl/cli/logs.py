"""`hpcrl logs RUN`: the logs of all processes of a run, merged by time."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from hpcrl.cli.arguments import asks_for_help, command_parser, parse
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ExitCode
from hpcrl.inspect.logs import LogLine, follow, merged
from hpcrl.inspect.status import ALIVE, read_status


def run(words: Sequence[str]) -> int:
    parser = command_parser("logs", "Print the logs of all processes of a run, of all its attempts, merged by time.")
    parser.add_argument("run", type=str, help="the run's directory")
    parser.add_argument("--follow", action="store_true", help="go on until the run has ended")
    parser.add_argument(
        "--worker",
        type=str | None,
        default=None,
        metavar="NAME",
        help="only this process: master, agent-0, worker-1, …",
    )
    if asks_for_help(words):
        print(parser.format_help())
        return int(ExitCode.DONE)
    given = parse(parser, words)
    for line in _lines(RunDirectory.open(Path(given.run)), given.follow, given.worker):
        print(line, flush=given.follow)
    return int(ExitCode.DONE)


def _lines(run_dir: RunDirectory, go_on: bool, process: str | None) -> Iterable[LogLine]:
    if not go_on:
        return merged(run_dir, process)
    return follow(run_dir, lambda: read_status(run_dir.root).state not in ALIVE, process)
