"""`hpcrl fork RUN --step N`: begin a new run from a checkpoint of another."""

from collections.abc import Sequence
from pathlib import Path

from hpcrl.cli.arguments import RUN_HELP, asks_for_help, command_parser, find_run, parse, separate, wait_from
from hpcrl.cli.settings import help_with_changes
from hpcrl.errors import ExitCode
from hpcrl.launch.fork import describe_fork, fork_run, plan_fork

OWN = ("--step", "--detach", "--wait", "--run-dir", "--dry-run")


def run(words: Sequence[str]) -> int:
    parser = command_parser(
        "fork",
        "Begin a new run from a run's checkpoint of a step, with the settings that give it another course, e.g. "
        "--actor.optimizer.lr 1e-6 --reward.function other.py:score. The run itself is left alone, and may be running.",
    )
    parser.add_argument("run", type=str, help=RUN_HELP)
    parser.add_argument("--step", type=int, required=True, help="the step whose checkpoint the new run begins from")
    parser.add_argument("--detach", action="store_true", help="return at once")
    parser.add_argument("--wait", action="store_true", help="on Slurm too, show the progress until the run ends")
    parser.add_argument("--dry-run", action="store_true", help="print what would be made; make and send nothing")
    parser.add_argument(
        "--run-dir", type=str | None, default=None, help="the new run's directory; by default run_root/name-<time>"
    )
    mine, overrides = separate(words, OWN)
    if asks_for_help(mine):
        print(help_with_changes(parser, mine, overrides, of_a_fork=True))
        return int(ExitCode.DONE)
    given = parse(parser, mine)
    fork = plan_fork(find_run(given.run), given.step, overrides, Path(given.run_dir) if given.run_dir else None)
    if given.dry_run:
        print(describe_fork(fork))
        return int(ExitCode.DONE)
    return fork_run(fork, wait_from(given.wait, given.detach))
