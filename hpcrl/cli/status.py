"""`hpcrl status RUN`: what a run is doing."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from hpcrl.cli.arguments import asks_for_help, command_parser, parse
from hpcrl.errors import ExitCode
from hpcrl.inspect.status import read_status


def run(words: Sequence[str]) -> int:
    parser = command_parser("status", "Say what a run is doing, or how it ended, from its directory alone.")
    parser.add_argument("run", type=str, help="the run's directory")
    parser.add_argument("--json", action="store_true", help="print JSON")
    if asks_for_help(words):
        print(parser.format_help())
        return int(ExitCode.DONE)
    given = parse(parser, words)
    status = read_status(Path(given.run))
    print(msgspec.json.format(msgspec.json.encode(status)).decode() if given.json else status.render())
    return int(ExitCode.DONE)
