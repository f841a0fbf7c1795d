"""`hpcrl submit CONFIG`: start a run."""

from collections.abc import Sequence
from pathlib import Path

from hpcrl.cli.arguments import asks_for_help, command_parser, help_with_settings, parse, read_experiment, separate
from hpcrl.errors import ExitCode

OWN = ("--detach", "--run-dir")


def run(words: Sequence[str]) -> int:
    parser = command_parser(
        "submit", "Start a run and show its progress until it ends. Ctrl-C stops it; it can be resumed."
    )
    parser.add_argument("config", type=str, help="a YAML file")
    parser.add_argument(
        "--detach", action="store_true", help="return at once; watch with `hpcrl status` and `hpcrl logs`"
    )
    parser.add_argument(
        "--run-dir", type=str | None, default=None, help="the run's directory, to be made; null: run_root/name-<time>"
    )
    mine, overrides = separate(words, OWN)
    if asks_for_help(mine):
        print(help_with_settings(parser, mine, overrides))
        return int(ExitCode.DONE)
    given = parse(parser, mine)
    experiment = read_experiment(given.config, overrides)
    # Only a valid experiment is worth the import of sockets and HDF5.
    from hpcrl.launch.submit import submit

    return submit(experiment, Path(given.run_dir) if given.run_dir else None, given.detach)
