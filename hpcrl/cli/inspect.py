"""`hpcrl inspect RUN`: what a run has reached and what it cost, in numbers or, with --plot, in curves."""

from collections.abc import Sequence

from hpcrl.cli.arguments import RUN_HELP, asks_for_help, command_parser, find_run, parse
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ExitCode
from hpcrl.inspect.plots import plot
from hpcrl.inspect.summary import print_summary


def run(words: Sequence[str]) -> int:
    parser = command_parser("inspect", "Sum up a run, from its directory alone: metrics, time by call, first failure.")
    parser.add_argument("run", type=str, help=RUN_HELP)
    parser.add_argument("--plot", action="store_true", help="draw the curves into RUN/curves.png and .svg instead")
    if asks_for_help(words):
        print(parser.format_help())
        return int(ExitCode.DONE)
    given = parse(parser, words)
    run_dir = RunDirectory.open(find_run(given.run))
    if given.plot:
        print("\n".join(map(str, plot(run_dir))))
    else:
        print_summary(run_dir)
    return int(ExitCode.DONE)
