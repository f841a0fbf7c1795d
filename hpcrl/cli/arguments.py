"""What the commands' argument parsers share. Knows no command."""

import difflib
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from jsonargparse import ArgumentError, ArgumentParser, Namespace

from hpcrl.config.experiment import ExperimentConfig
from hpcrl.config.fields import ChangeClass, Setting, description, sections, settings
from hpcrl.config.load import load_config
from hpcrl.config.validate import unused_notices
from hpcrl.config.yaml_file import read_yaml
from hpcrl.errors import ConfigurationError
from hpcrl.foreign import plain
from hpcrl.launch.launcher import launcher_problems
from hpcrl.placement.check import ALL_CHECKS
from hpcrl.plugins import names
from hpcrl.recipes.algorithm import ALGORITHMS, CATALOGUE, algorithm_of

SHORT: Mapping[str, str] = MappingProxyType({"nodes": "cluster.nodes", "cluster": "cluster.type"})
"""Options that are short for a setting."""
HELP = ("--help", "-h")
LACKING = "the following arguments are required: "
"""How the parser's complaint of what is missing begins; it names an option without its dashes."""
RUN_HELP = "the run's directory, or its name (the directory's last part) if you submitted it"


def command_parser(name: str, description: str) -> ArgumentParser:
    """A parser that raises instead of leaving the process."""
    return ArgumentParser(prog=f"hpcrl {name}", description=description, exit_on_error=False)


def parse(parser: ArgumentParser, words: Sequence[str]) -> Namespace:
    """Raises ConfigurationError for what the parser does not accept."""
    try:
        return parser.parse_args(list(words))
    except ArgumentError as error:
        reason = " ".join(str(error).split())
        if reason.startswith("unrecognized"):
            reason += "; settings begin with two dashes, as in --seed 3"
        if reason.startswith(LACKING):
            usage = parser.format_usage()
            names = reason.removeprefix(LACKING).split(", ")
            reason = LACKING + ", ".join(f"--{name}" if f"--{name} " in usage else name for name in names)
        raise ConfigurationError([f"{reason}."], f"See {parser.prog} --help.") from None


def separate(words: Sequence[str], own: Collection[str]) -> tuple[list[str], list[str]]:
    """A command's own words, and the settings among its words as `key=value`.

    Every option that is not in `own` is a setting with a value, in one word with = or in the next word. A setting
    without a value stays without =.
    """
    mine, overrides = [], []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        option, equals, value = word.partition("=")
        if not option.startswith("--") or option in (*own, *HELP):
            mine.append(word)
            continue
        _refuse_misspelt(option, own)
        key = SHORT.get(option[2:], option[2:])
        if not equals and rest and not rest[0].startswith("--"):
            equals, value = "=", rest.pop(0)
        overrides.append(f"{key}{equals}{value}")
    return mine, overrides


def _refuse_misspelt(option: str, own: Collection[str]) -> None:
    """An option that is almost one of the command's must not swallow the next word as its value."""
    near = difflib.get_close_matches(option, own, n=1, cutoff=0.75)
    if near and "." not in option and option[2:] not in SHORT:
        raise ConfigurationError([f"{option} is not an option."], f"The nearest is {near[0]}.")


def read_experiment(config: str, overrides: Sequence[str]) -> ExperimentConfig:
    """The experiment of a file and a command line; what is odd of it is said on stderr.

    Raises ConfigurationError with everything that is wrong.
    """
    experiment = load_config(Path(config), overrides, CATALOGUE, (*ALL_CHECKS, launcher_problems))
    for notice in (*algorithm_of(experiment).notices(experiment), *unused_notices(experiment)):
        print(f"hpcrl: note: {plain(notice)}", file=sys.stderr)
    return experiment


def wait_from(wait: bool, detach: bool) -> bool | None:
    """Whether a command is to stay until the run has ended; None leaves it to where the run is."""
    if wait and detach:
        raise ConfigurationError(["--wait and --detach are opposites."], "Give one of them.")
    return True if wait else False if detach else None


def find_run(word: str) -> Path:
    """The directory of a run that is named by a path or by its name. Raises ConfigurationError if several have it."""
    path = Path(word)
    if path.name != word or path.exists():
        return path
    # A path needs no lock file's library.
    from hpcrl.launch.registry import Registry

    return Registry.of_user().find(word) or path


def asks_for_help(words: Collection[str]) -> bool:
    return any(word in words for word in HELP)


def help_with_settings(parser: ArgumentParser, words: Sequence[str], overrides: Sequence[str]) -> str:
    """The parser's help and every setting of the algorithm that the words name, or else of the first."""
    known = names(ALGORITHMS)
    algorithm = _named_algorithm(words, overrides) or known[0]
    listing = _listing(algorithm, lambda setting: True)
    others = ", ".join(name for name in (*known, "file.py:NAME") if name != algorithm)
    return (
        f"{parser.format_help()}\n"
        f"Settings of algorithm {algorithm}; write them in the file without the dashes, or here, where they win.\n"
        f"--nodes N is short for --cluster.nodes N, --cluster TYPE for --cluster.type TYPE.\n"
        f"For another algorithm's settings add `--algorithm NAME`: {others}.\n"
        f"{listing.partition('general:')[2]}"
    )


def help_with_changes(parser: ArgumentParser, overrides: Sequence[str], of_a_fork: bool = False) -> str:
    """The parser's help and what may change when a run is resumed or forked, of the named algorithm or else of the
    first."""
    known = names(ALGORITHMS)
    algorithm = _named_algorithm([], overrides) or known[0]
    anytime = _listing(algorithm, lambda setting: setting.change is ChangeClass.PLACEMENT)
    numbers = _listing(algorithm, lambda setting: setting.change is ChangeClass.NUMBERS)
    forked = _listing(algorithm, lambda setting: setting.change is ChangeClass.FORK)
    others = ", ".join(name for name in (*known, "file.py:NAME") if name != algorithm)
    return (
        f"{parser.format_help()}\n"
        f"What may change in a run of algorithm {algorithm}. What you change stays so for later resumes; what is not\n"
        "given stays as it was, whatever default is shown here. All else is what the run is, and stays.\n"
        f"For another algorithm's settings add `--algorithm NAME`: {others}.\n"
        "--nodes N is short for --cluster.nodes N, --cluster TYPE for --cluster.type TYPE.\n\n"
        "1. Where and how it runs, and what it keeps. Replays follow it too. A role's mesh and layout have to change\n"
        f"where they name workers that there are no longer.\n\n{anytime}\n"
        "2. What it computes, from the next new call on. What is recorded stays, and is replayed as it was made.\n\n"
        f"{numbers}"
        + (f"\n3. What a new run alone may have otherwise, as its steps begin anew.\n\n{forked}" if of_a_fork else "")
    )


def _listing(algorithm: str, shown: Callable[[Setting], bool]) -> str:
    """The settings of an algorithm, section by section."""
    config = algorithm_of(algorithm).experiment
    chosen = [setting for setting in settings(config) if shown(setting)]
    listing = ArgumentParser(add_help=False, usage="")
    parts = {name: f"{name}: {description(owner, name).rstrip('.')}" for name, owner in sections(config)}
    titles = {"": "general"} | parts
    used = {setting.key.rpartition(".")[0] for setting in chosen}
    groups = {name: listing.add_argument_group(title) for name, title in titles.items() if name in used}
    for setting in chosen:
        lacking = " REQUIRED." if setting.required else f" DEFAULT: {setting.like}." if setting.like else ""
        groups[setting.key.rpartition(".")[0]].add_argument(
            f"--{setting.key}",
            type=setting.plain_type,
            default=None if lacking else setting.default,
            help=setting.help + lacking,
        )
    return listing.format_help().removeprefix("usage:").lstrip()


def _named_algorithm(words: Sequence[str], overrides: Sequence[str]) -> str | None:
    named = [text.partition("=")[2] for text in overrides if text.startswith("algorithm=")]
    files = [Path(word) for word in words if not word.startswith("-") and Path(word).is_file()]
    named += [str(read_yaml(path).get("algorithm")) for path in files]
    return next((name for name in named if name in names(ALGORITHMS) or ".py:" in name), None)
