"""What the commands' argument parsers share. Knows no command, and no settings: `hpcrl list` has none to import."""

import difflib
import re
from argparse import SUPPRESS, Action
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args

from jsonargparse import ArgumentError, ArgumentParser, DefaultHelpFormatter, Namespace

from hpcrl.config.run_root import RUN_ROOT
from hpcrl.errors import ConfigurationError

SHORT: Mapping[str, str] = MappingProxyType({"nodes": "cluster.nodes", "cluster": "cluster.type"})
"""Options that are short for a setting."""
HELP = ("--help", "-h")
LACKING = "the following arguments are required: "
"""How the parser's complaint of what is missing begins; it names an option without its dashes."""
RUN_HELP = "the run's directory, or its name (the directory's last part) if you submitted it"


_WRONG_TYPE = re.compile(r"Parser key \"([^\"]+)\": .*(?:Got|Given) value: (.*)")


class PlainHelp(DefaultHelpFormatter):
    """Says of an option what its help says, and a default that is worth saying; no types of Python."""

    def _get_help_string(self, action: Action) -> str:
        text = action.help or ""
        tells = bool(action.option_strings) and action.default not in (None, False, [], SUPPRESS)
        return f"{text} (%(default)s by default)" if tells and "default" not in text else text

    def _format_usage(self, usage: str | None, actions: Iterable[Action], *_: Any, **__: Any) -> str:
        """`usage: hpcrl samples RUN [options]`: the options are listed below."""
        every = list(actions)
        words = [self._prog]
        for action in every:
            if not action.option_strings:
                words.append(self._format_args(action, action.dest.upper()))
            elif action.required:
                words.append(f"{action.option_strings[-1]} {action.metavar or action.dest.upper()}")
        optional = any(action.option_strings and not set(HELP) & set(action.option_strings) for action in every)
        return f"usage: {' '.join([*words, *(['[options]'] if optional else [])])}\n\n" if usage is None else usage

    def _get_default_metavar_for_positional(self, action: Action) -> str:
        return action.dest.upper()

    def _get_default_metavar_for_optional(self, action: Action) -> str:
        kind = getattr(action, "_typehint", action.type)
        return "N" if int in (kind, *get_args(kind)) else super()._get_default_metavar_for_optional(action)


def command_parser(name: str, description: str) -> ArgumentParser:
    """A parser that raises instead of leaving the process."""
    return ArgumentParser(prog=f"hpcrl {name}", description=description, exit_on_error=False, formatter_class=PlainHelp)


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
            reason = LACKING + ", ".join(f"--{name}" if f"--{name} " in usage else name.upper() for name in names)
        if wrong := _WRONG_TYPE.fullmatch(reason):
            kind = "a whole number" if "'int'" in reason else "a number"
            reason = f"--{wrong[1].replace('_', '-')} {wrong[2]} is not {kind}"
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


def wait_from(wait: bool, detach: bool) -> bool | None:
    """Whether a command is to stay until the run has ended; None leaves it to where the run is."""
    if wait and detach:
        raise ConfigurationError(["--wait and --detach are opposites."], "Give one of them.")
    return True if wait else False if detach else None


def find_run(word: str) -> Path:
    """The directory of a run that is named by a path, or by its name: in `runs` here, or else anywhere. Raises
    ConfigurationError if several elsewhere have it."""
    path = Path(word)
    if path.name != word or path.exists():
        return path
    # A path needs no lock file's library.
    from hpcrl.launch.registry import named_run, nearest_run

    if (found := named_run(word)) is not None:
        return found
    near = nearest_run(word)
    raise ConfigurationError(
        [f"there is no run {word}, here or in {RUN_ROOT}/, and you have submitted none of that name."],
        f"The nearest is {near}." if near else "Name its directory; `hpcrl list` shows your runs.",
    )


def asks_for_help(words: Collection[str]) -> bool:
    return any(word in words for word in HELP)
