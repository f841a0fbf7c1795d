"""What the commands that take settings share: an experiment of their words, and help that lists settings."""

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path

from jsonargparse import ArgumentParser

from hpcrl.cli.arguments import PlainHelp, find_run
from hpcrl.config.changes import changes
from hpcrl.config.experiment import ExperimentConfig
from hpcrl.config.fields import ChangeClass, Setting, description, sections, settings
from hpcrl.config.load import load_config
from hpcrl.config.validate import reward_notices, unused_notices
from hpcrl.config.yaml_file import in_yaml, read_yaml
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import HpcrlError
from hpcrl.foreign import plain
from hpcrl.launch.launcher import launcher_problems
from hpcrl.launch.settled import settled
from hpcrl.placement.check import ALL_CHECKS
from hpcrl.placement.check_cuts import tensor_notices
from hpcrl.plugins import names
from hpcrl.recipes.algorithm import ALGORITHMS, CATALOGUE, algorithm_of


def read_experiment(config: str, overrides: Sequence[str], *, settles: bool = True) -> ExperimentConfig:
    """The experiment of a file and a command line; what is odd of it is said on stderr. Without `settles`, its
    allocation is left to the caller.

    Raises ConfigurationError with everything that is wrong.
    """
    given = load_config(Path(config), overrides, CATALOGUE, (*ALL_CHECKS, launcher_problems))
    experiment = settled(given) if settles else given
    for change in changes(given, experiment):
        if change.key != "allocation":
            print(f"hpcrl: note: allocation = {given.allocation} gives {plain(str(change))}", file=sys.stderr)
    common = (unused_notices, reward_notices, tensor_notices)
    notices = (algorithm_of(experiment).notices(experiment), *(of(experiment) for of in common))
    for notice in chain.from_iterable(notices):
        print(f"hpcrl: note: {plain(notice)}", file=sys.stderr)
    return experiment


def help_with_settings(parser: ArgumentParser, words: Sequence[str], overrides: Sequence[str]) -> str:
    """The parser's help and every setting of the algorithm that the words name, or else of the first."""
    known = names(ALGORITHMS)
    algorithm = _named_algorithm(words, overrides) or known[0]
    listing = _listing(algorithm, lambda setting: True)
    return (
        f"{parser.format_help()}\n"
        f"Settings of algorithm {algorithm}; write them in the file without the dashes, or here, where they win.\n"
        f"--nodes N is short for --cluster.nodes N, --cluster TYPE for --cluster.type TYPE.\n"
        f"{_of_another(parser, algorithm)}"
        f"{listing.partition('general:')[2]}"
    )


def help_with_changes(
    parser: ArgumentParser, words: Sequence[str], overrides: Sequence[str], of_a_fork: bool = False
) -> str:
    """The parser's help and what may change when a run is resumed or forked: of the algorithm of the run among the
    words, of the named one, or else of the first."""
    known = names(ALGORITHMS)
    algorithm = _named_algorithm([], overrides) or _algorithm_of_run(words) or known[0]
    anytime = _listing(algorithm, lambda setting: setting.change is ChangeClass.PLACEMENT)
    numbers = _listing(algorithm, lambda setting: setting.change is ChangeClass.NUMBERS)
    forked = _listing(algorithm, lambda setting: setting.change is ChangeClass.FORK)
    return (
        f"{parser.format_help()}\n"
        f"What may change in a run of algorithm {algorithm}. What you change stays so for later resumes; what is not\n"
        "given stays as it was, whatever default is shown here. All else is what the run is, and stays.\n"
        f"{_of_another(parser, algorithm)}"
        "--nodes N is short for --cluster.nodes N, --cluster TYPE for --cluster.type TYPE.\n\n"
        "1. Where and how it runs, and what it keeps. Replays follow it too. A role's mesh and layout have to change\n"
        f"where they name workers that there are no longer.\n\n{anytime}\n"
        "2. What it computes, from the next new call on. What is recorded stays, and is replayed as it was made.\n\n"
        f"{numbers}"
        + (f"\n3. What a new run alone may have otherwise, as its steps begin anew.\n\n{forked}" if of_a_fork else "")
    )


def _of_another(parser: ArgumentParser, algorithm: str) -> str:
    """What to type for the settings of the others."""
    others = [name for name in (*names(ALGORITHMS), "file.py:NAME") if name != algorithm]
    return f"Those of another algorithm: `{parser.prog} --algorithm {others[0]} --help`, or {', '.join(others[1:])}.\n"


def _listing(algorithm: str, shown: Callable[[Setting], bool]) -> str:
    """The settings of an algorithm, section by section."""
    config = algorithm_of(algorithm).experiment
    chosen = [setting for setting in settings(config) if shown(setting)]
    listing = ArgumentParser(add_help=False, usage="", formatter_class=PlainHelp)
    parts = {name: f"{name}: {description(owner, name).rstrip('.')}" for name, owner in sections(config)}
    titles = {"": "general"} | parts
    used = {setting.key.rpartition(".")[0] for setting in chosen}
    groups = {name: listing.add_argument_group(title) for name, title in titles.items() if name in used}
    for setting in chosen:
        groups[setting.key.rpartition(".")[0]].add_argument(
            f"--{setting.key}", type=setting.plain_type, default=None, help=f"{setting.help} ({_told(setting)})"
        )
    return listing.format_help().removeprefix("usage:").lstrip()


def _told(setting: Setting) -> str:
    """What a setting's value must be, and what it is where nobody gives it, as YAML has it."""
    if setting.required:
        return f"{setting.bounded_expectation}; REQUIRED"
    if setting.like:
        return f"{setting.bounded_expectation}; by default that of {setting.like}"
    return f"{setting.bounded_expectation}; default {in_yaml(setting.default)}"


def _algorithm_of_run(words: Sequence[str]) -> str | None:
    """Of the first word that names a run, if there is one: help is given anyway."""
    for word in words:
        with suppress(HpcrlError, OSError):
            if not word.startswith("-"):
                return str(RunDirectory.look(find_run(word)).configuration()["algorithm"])
    return None


def _named_algorithm(words: Sequence[str], overrides: Sequence[str]) -> str | None:
    named = [text.partition("=")[2] for text in overrides if text.startswith("algorithm=")]
    files = [Path(word) for word in words if not word.startswith("-") and Path(word).is_file()]
    named += [str(read_yaml(path).get("algorithm")) for path in files]
    return next((name for name in named if name in names(ALGORITHMS) or ".py:" in name), None)
