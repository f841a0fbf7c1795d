"""`hpcrl stop RUN`: end a run so that it can be resumed."""

from collections.abc import Sequence

from hpcrl.cli.arguments import RUN_HELP, asks_for_help, command_parser, find_run, parse
from hpcrl.errors import ExitCode
from hpcrl.launch.stop import stop


def run(words: Sequence[str]) -> int:
    parser = command_parser(
        "stop",
        "Stop a run. The open steps are finished and the last one is saved first, which takes as long as a step does; "
        "Ctrl-C does not take the order back. `hpcrl resume` continues from there.",
    )
    parser.add_argument("run", type=str, help=RUN_HELP)
    parser.add_argument(
        "--now", action="store_true", help="do not wait for calls in flight either; they will be made again"
    )
    if asks_for_help(words):
        print(parser.format_help())
        return int(ExitCode.DONE)
    given = parse(parser, words)
    return stop(find_run(given.run), given.now)
