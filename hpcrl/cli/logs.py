"""`hpcrl logs RUN`: the logs of all processes of a run, merged by time."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from hpcrl.cli.arguments import asks_for_help, command_parser, parse
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ConfigurationError, ExitCode
from hpcrl.inspect.logs import LogLine, follow, merged
from hpcrl.inspect.status import is_over


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
    run_dir = RunDirectory.open(Path(given.run))
    found = False
    for line in _lines(run_dir, given.follow, given.worker):
        found = True
        print(line, flush=given.follow)
    if not found and given.worker:
        names = sorted({line.process for line in merged(run_dir)})
        raise ConfigurationError([f"--worker {given.worker} has logged nothing there; {', '.join(names)} have."])
    return int(ExitCode.DONE)


def _lines(run_dir: RunDirectory, go_on: bool, process: str | None) -> Iterable[LogLine]:
    if not go_on:
        return merged(run_dir, process)
    return follow(run_dir, lambda: is_over(run_dir), process)
