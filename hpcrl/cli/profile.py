"""`hpcrl profile CONFIG --out FILE`: measure what the parts of a configuration's models take on its workers."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hpcrl.cli.arguments import asks_for_help, command_parser, parse, separate
from hpcrl.cli.outputs import try_out, written
from hpcrl.cli.settings import help_with_settings, read_experiment
from hpcrl.errors import ConfigurationError, ExitCode
from hpcrl.foreign import plain

OWN = ("--out", "--run-dir", "--minutes", "--detach")


def run(words: Sequence[str]) -> int:
    parser = command_parser(
        "profile",
        "Measure, by a durable run on the workers of a configuration, how long its models' parts take there and what "
        "links and disks carry; then write a profile for hpcrl search and hpcrl plan. Typed again with the same "
        "--out, it resumes what is not done.",
    )
    parser.add_argument("config", type=str, help="a YAML file")
    parser.add_argument("--out", metavar="FILE", required=True, help="the profile")
    parser.add_argument("--run-dir", type=str | None, default=None, help="the run's folder; else FILE.run")
    parser.add_argument("--minutes", type=float, default=10.0, help="how long it may take, about (10)")
    parser.add_argument("--detach", action="store_true", help="submit and return; the same command again writes FILE")
    mine, overrides = separate(words, OWN)
    if asks_for_help(mine):
        print(help_with_settings(parser, mine, overrides))
        return int(ExitCode.DONE)
    given = parse(parser, mine)
    if not 0 < given.minutes < float("inf"):
        raise ConfigurationError([f"--minutes {given.minutes:g} must be above 0."])
    try_out("--out", given.out)
    place = Path(given.run_dir or f"{given.out}.run").absolute()
    code = _measured(given.config, place, given.minutes, not given.detach, overrides)
    if code or given.detach:
        return code
    return _write(given.out, place)


def _measured(config: str, place: Path, minutes: float, wait: bool, overrides: Sequence[str]) -> int:
    """Submit the run, or resume it where it is there; its exit code."""
    # Only a valid command is worth the import of sockets and HDF5.
    from hpcrl.launch.profiling import profile_of
    from hpcrl.launch.submit import resume, submit

    if (place / "run.json").is_file():
        return resume(place, wait)
    experiment = replace(read_experiment(config, [*overrides, "allocation=manual"]), allocation="manual")
    profile, left_out = profile_of(experiment, minutes)
    for line in left_out:
        print(plain(line), file=sys.stderr)
    print(f"{len(profile.measured.tasks)} things are measured: {place}")
    return submit(profile, place, wait)


def _write(out: str, place: Path) -> int:
    from hpcrl.durable.rundir import RunDirectory
    from hpcrl.launch.profiling import profile_in

    rates = profile_in(RunDirectory.open(place))
    with written("--out", out) as file:
        file.write(rates.to_json())
    print(f"{out}: {rates.device}, {len(rates.measured)} parts of models. Search with: --profile {out}")
    return int(ExitCode.DONE)
