"""`hpcrl status RUN`: what a run is doing."""

from collections.abc import Sequence

import msgspec

from hpcrl.cli.arguments import RUN_HELP, asks_for_help, command_parser, find_run, parse
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ExitCode
from hpcrl.inspect.metrics import right_at
from hpcrl.inspect.shown_settings import shown_settings
from hpcrl.inspect.status_text import status_text
from hpcrl.inspect.views.status import read_status


def run(words: Sequence[str]) -> int:
    parser = command_parser(
        "status", "Say what a run is doing, or how it ended, from its directory; on Slurm, squeue is asked once."
    )
    parser.add_argument("run", type=str, help=RUN_HELP)
    parser.add_argument("--json", action="store_true", help="print JSON")
    if asks_for_help(words):
        print(parser.format_help())
        return int(ExitCode.DONE)
    from hpcrl.launch.queues import queue_of

    given = parse(parser, words)
    run_dir = RunDirectory.look(find_run(given.run))
    status = read_status(run_dir.root, queue_of(run_dir))
    if given.json:
        print(msgspec.json.format(msgspec.json.encode(status)).decode())
    else:
        print(status_text(status, right_at(shown_settings(run_dir))))
    return int(ExitCode.DONE)
