"""`hpcrl submit CONFIG`: start a run."""

from collections.abc import Sequence
from pathlib import Path

from hpcrl.cli.arguments import asks_for_help, command_parser, parse, separate, wait_from
from hpcrl.cli.settings import help_with_settings, read_experiment
from hpcrl.errors import ExitCode

OWN = ("--detach", "--wait", "--run-dir", "--dry-run")


def run(words: Sequence[str]) -> int:
    parser = command_parser(
        "submit",
        "Start a run. On this machine, show its progress until it ends; Ctrl-C stops it, `resume` continues.",
    )
    parser.add_argument("config", type=str, help="a YAML file")
    parser.add_argument(
        "--detach", action="store_true", help="return at once; watch with `hpcrl status` and `hpcrl logs`"
    )
    parser.add_argument("--wait", action="store_true", help="on Slurm too, show the progress until the run ends")
    parser.add_argument(
        "--dry-run", action="store_true", help="on Slurm: print what would be sent, and why; make and send nothing"
    )
    parser.add_argument(
        "--run-dir",
        type=str | None,
        default=None,
        help="the run's directory, to be made; else run_root/name-<time>",
    )
    mine, overrides = separate(words, OWN)
    if asks_for_help(mine):
        print(help_with_settings(parser, mine, overrides))
        return int(ExitCode.DONE)
    given = parse(parser, mine)
    experiment = read_experiment(given.config, overrides)
    # Only a valid experiment is worth the import of sockets and HDF5.
    from hpcrl.launch.submit import describe_submission, submit

    run_dir = Path(given.run_dir) if given.run_dir else None
    if given.dry_run:
        print(describe_submission(experiment, run_dir))
        return int(ExitCode.DONE)
    return submit(experiment, run_dir, wait_from(given.wait, given.detach))
