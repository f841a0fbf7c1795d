"""`hpcrl pause RUN`: hold a run: calls in flight are finished, no others begin."""

from collections.abc import Sequence

from hpcrl.cli.arguments import RUN_HELP, asks_for_help, command_parser, find_run, parse
from hpcrl.errors import ExitCode
from hpcrl.launch.orders import give_command


def run(words: Sequence[str]) -> int:
    parser = command_parser(
        "pause",
        "Pause a run: calls in flight are finished, no others begin. It keeps its nodes.",
    )
    parser.add_argument("run", type=str, help=RUN_HELP)
    if asks_for_help(words):
        print(parser.format_help())
        return int(ExitCode.DONE)
    return give_command(find_run(parse(parser, words).run), "pause")
