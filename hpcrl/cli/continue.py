"""`hpcrl continue RUN`: let a paused run continue."""

from collections.abc import Sequence

from hpcrl.cli.arguments import RUN_HELP, asks_for_help, command_parser, find_run, parse
from hpcrl.errors import ExitCode
from hpcrl.launch.orders import give_command


def run(words: Sequence[str]) -> int:
    parser = command_parser("continue", "Let a paused run continue.")
    parser.add_argument("run", type=str, help=RUN_HELP)
    if asks_for_help(words):
        print(parser.format_help())
        return int(ExitCode.DONE)
    return give_command(find_run(parse(parser, words).run), "continue")
