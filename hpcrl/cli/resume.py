"""`hpcrl resume RUN`: continue a run that ended early, or extend one, elsewhere or with other settings."""

from collections.abc import Sequence

from hpcrl.cli.arguments import RUN_HELP, asks_for_help, command_parser, find_run, parse, separate, wait_from
from hpcrl.cli.settings import help_with_changes
from hpcrl.errors import ExitCode
from hpcrl.launch.submit import describe_recovery, resume

OWN = ("--dry-run", "--detach", "--wait", "--accept-changed")


def run(words: Sequence[str]) -> int:
    parser = command_parser(
        "resume",
        "Continue a run that ended early, or extend one that is done, as in --control.steps 2000. Finished calls are "
        "read from disk, not made again; train steps after the newest checkpoint are replayed. Give the settings that "
        "change: they make the next version of the run's settings. Where it runs may change, as in --nodes 2 (its "
        "numbers are then those of an undisturbed run up to rounding), and what it computes from then on, as in "
        "--actor.optimizer.lr 1e-6. Steps of an older version are replayed as they were made.",
    )
    parser.add_argument("run", type=str, help=RUN_HELP)
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print what would change, be read, replayed, run and refused; make and send nothing",
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
    mine, overrides = separate(words, OWN)
    if asks_for_help(mine):
        print(help_with_changes(parser, mine, overrides))
        return int(ExitCode.DONE)
    given = parse(parser, mine)
    run_dir = find_run(given.run)
    if given.dry_run:
        for line in describe_recovery(run_dir, tuple(given.accept_changed), overrides):
            print(line)
        return int(ExitCode.DONE)
    return resume(run_dir, wait_from(given.wait, given.detach), tuple(given.accept_changed), overrides)
