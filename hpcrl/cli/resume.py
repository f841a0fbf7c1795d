"""`hpcrl resume RUN`: go on with a run that ended early."""

from collections.abc import Sequence

from hpcrl.cli.arguments import RUN_HELP, asks_for_help, command_parser, find_run, parse, wait_from
from hpcrl.errors import ExitCode
from hpcrl.launch.submit import describe_recovery, resume


def run(words: Sequence[str]) -> int:
    parser = command_parser(
        "resume",
        "Go on with a run that ended early. Finished calls are read from disk, not made again; train steps after the "
        "newest checkpoint are replayed.",
    )
    parser.add_argument("run", type=str, help=RUN_HELP)
    parser.add_argument(
        "--dry-run", action="store_true", help="print what would be read, replayed and run; change nothing"
    )
    parser.add_argument("--detach", action="store_true", help="return at once")
    parser.add_argument("--wait", action="store_true", help="on Slurm too, show the progress until the run ends")
    parser.add_argument(
        "--accept-changed",
        nargs="+",
        type=str,
        default=[],
        metavar="INPUT",
        help="inputs that may differ from those the run began with; it is written down",
    )
    if asks_for_help(words):
        print(parser.format_help())
        return int(ExitCode.DONE)
    given = parse(parser, words)
    run_dir = find_run(given.run)
    if given.dry_run:
        print(describe_recovery(run_dir))
        return int(ExitCode.DONE)
    return resume(run_dir, wait_from(given.wait, given.detach), tuple(given.accept_changed))
