"""`hpcrl profile CONFIG --out FILE`: measure what the parts of a configuration's models take on its workers; or, with
`--from RUN`, take it out of what runs have measured."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from hpcrl.cli.arguments import LACKING, asks_for_help, command_parser, find_run, parse, separate
from hpcrl.cli.outputs import try_out, written
from hpcrl.cli.settings import help_with_settings, read_experiment
from hpcrl.errors import ConfigurationError, ExitCode
from hpcrl.foreign import plain

OWN = ("--out", "--from", "--profile", "--run-dir", "--minutes", "--detach")
MINUTES = 10.0


def run(words: Sequence[str]) -> int:
    parser = _parser()
    mine, overrides = separate(words, OWN)
    if asks_for_help(mine):
        print(help_with_settings(parser, mine, overrides))
        return int(ExitCode.DONE)
    given = parse(parser, mine)
    if given.minutes is not None and not 0 < given.minutes < float("inf"):
        raise ConfigurationError([f"--minutes {given.minutes:g} must be above 0."])
    if runs := getattr(given, "from"):
        return _from_runs(given, runs, overrides)
    if given.config is None:
        raise ConfigurationError(
            [f"{LACKING}CONFIG."], "See hpcrl profile --help. With --from RUN it measures nothing, and needs none."
        )
    if given.profile is not None:
        raise ConfigurationError(["--profile goes with --from."], "Leave it out, or add --from RUN.")
    try_out("--out", given.out)
    place = Path(given.run_dir or f"{given.out}.run").absolute()
    code = _measured(given.config, place, given.minutes, not given.detach, overrides)
    if code:
        print(f"{given.out} is not written. The same command resumes the run, and writes it.", file=sys.stderr)
        return code
    if given.detach and not _is_done(place):
        print(f"Once the run has ended, the same command writes {given.out}.", file=sys.stderr)
        return code
    return _write(given.out, place)


def _parser() -> ArgumentParser:
    parser = command_parser(
        "profile",
        "Measure, by a durable run on the workers of a configuration, how long its models' parts take there and what "
        "links and disks carry; then write a profile for hpcrl search, simulate and plan. Typed again with the same "
        "--out, it resumes what is not done. With --from, runs nothing: takes the profile out of what the calls of "
        "runs took.",
    )
    parser.add_argument("config", type=str | None, nargs="?", default=None, help="a YAML file; none with --from")
    parser.add_argument("--out", metavar="FILE", required=True, help="where to write the profile, as JSON")
    parser.add_argument(
        "--from", nargs="+", default=[], metavar="RUN", help="runs, ended or not, whose calls the times are taken from"
    )
    parser.add_argument(
        "--profile",
        type=str | None,
        default=None,
        metavar="FILE",
        help="with --from: a measured profile by which a call's time is divided among its model's parts; else by the "
        "device's data sheet",
    )
    parser.add_argument("--run-dir", type=str | None, default=None, help="the run's folder; else FILE.run")
    parser.add_argument(
        "--minutes",
        type=float | None,
        default=None,
        help=f"of measuring, shared by all tasks; else {MINUTES:g}. A run that is resumed keeps its own, unless told",
    )
    parser.add_argument(
        "--detach", action="store_true", help="submit and return; typed again at its end, it writes FILE"
    )
    return parser


def _from_runs(given: Namespace, runs: Sequence[str], overrides: Sequence[str]) -> int:
    """The profile that runs tell of."""
    if given.config is not None or overrides or given.detach or given.run_dir or given.minutes is not None:
        raise ConfigurationError(
            ["--from takes its settings from the runs, and runs nothing."],
            "Give it --out and --profile alone.",
        )
    try_out("--out", given.out)
    # Only a valid command is worth the import of arrays and HDF5.
    from hpcrl.durable.rundir import RunDirectory
    from hpcrl.launch.profile_from import profile_from
    from hpcrl.placement.search_inputs import read_profile

    base = read_profile(Path(given.profile), "--profile") if given.profile else None
    found = profile_from([RunDirectory.look(find_run(run)) for run in runs], base)
    for line in found.lacks:
        print(plain(line), file=sys.stderr)
    _store(given.out, found.rates)
    return int(ExitCode.DONE)


def _measured(config: str, place: Path, minutes: float | None, wait: bool, overrides: Sequence[str]) -> int:
    """Submit the run, or resume it where it is there, in as many minutes as are asked for now; its exit code."""
    # Only a valid command is worth the import of sockets and HDF5.
    from hpcrl.durable.rundir import RunDirectory
    from hpcrl.launch.profiling import profile_of, refuse_another
    from hpcrl.launch.submit import resume, submit

    experiment = replace(read_experiment(config, [*overrides, "allocation=manual"]), allocation="manual")
    profile, left_out = profile_of(experiment, minutes or MINUTES)
    if (place / "run.json").is_file():
        refuse_another(RunDirectory.look(place), profile)
        changed = () if minutes is None else (f"measured.minutes={minutes}",)
        return int(ExitCode.DONE) if _is_done(place) else resume(place, wait, overrides=changed)
    for line in left_out:
        print(plain(line), file=sys.stderr)
    print(f"{len(profile.measured.tasks)} things are measured: {place}")
    return submit(profile, place, wait)


def _is_done(place: Path) -> bool:
    from hpcrl.durable.rundir import RunDirectory

    verdict = RunDirectory.look(place).newest_verdict()
    return verdict is not None and verdict.state == "done"


def _write(out: str, place: Path) -> int:
    from hpcrl.durable.rundir import RunDirectory
    from hpcrl.launch.profiling import profile_in

    _store(out, profile_in(RunDirectory.open(place)))
    return int(ExitCode.DONE)


def _store(out: str, rates: Any) -> None:
    with written("--out", out) as file:
        file.write(rates.to_json())
    print(f"{out}: {rates.device}, {len(rates.measured)} parts of models. Search with: --profile {out}")
