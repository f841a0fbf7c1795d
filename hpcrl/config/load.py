"""A YAML file and the settings of a command line become an experiment, or the list of all that is wrong with them.

jsonargparse judges the type of each value. It stops at the first error, so it is asked about one value at a time.
"""

import contextlib
import difflib
import math
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
from jsonargparse import ArgumentError, ArgumentParser

from hpcrl.config.experiment import Catalogue, ExperimentConfig
from hpcrl.config.fields import ChangeClass, Setting, build, sections, settings
from hpcrl.config.hub import find_snapshot, hub_cache, is_hub_name
from hpcrl.config.validate import Check, collect
from hpcrl.config.yaml_file import is_yaml, read_yaml
from hpcrl.errors import ConfigurationError, Problem

T = TypeVar("T", bound=ExperimentConfig)

COMMAND_LINE = "command line"
OF_A_RUN = (ChangeClass.PLACEMENT, ChangeClass.NUMBERS)
"""What may change in a run that exists."""
OF_A_FORK = (*OF_A_RUN, ChangeClass.FORK)
ALIKE = 0.55
"""How like a setting a word must be, from 0 to 1.5, to be taken for a misspelling of it."""


@dataclass(frozen=True)
class Given:
    """A value that the user wrote."""

    key: str
    value: Any
    place: str

    def __str__(self) -> str:
        return f"{self.key} = {'null' if self.value is None else self.value} ({self.place})"

    def refused(self, why: str, advice: str) -> ConfigurationError:
        return ConfigurationError([Problem((self.key,), f"{self} {why}.", advice)])


def load_config(
    path: Path | str, overrides: Sequence[str], catalogue: Catalogue, checks: Sequence[Check]
) -> ExperimentConfig:
    """The experiment in the file `path`, over the site's defaults, with overrides like `actor.optimizer.lr=1e-6`.

    Raises:
        ConfigurationError: all unknown keys, wrong types and missing values, and what `checks` find in the rest.
    """
    path = Path(path)
    values = read_yaml(path)
    found: list[Problem] = []
    words = list(_parse_overrides(overrides, found))
    algorithm = _algorithm(values, words, path, catalogue.names(), found)
    reading = _Reading(algorithm, catalogue.experiment(algorithm), found)
    site = site_file()
    if site is not None:
        reading.take(Given(key, value, str(site)) for key, value in reading.leaves(read_yaml(site)))
    reading.take(Given(key, value, path.name) for key, value in reading.leaves(values))
    reading.take(words)
    experiment = reading.experiment()
    if every := collect(experiment, checks, found):
        raise ConfigurationError(every)
    return experiment


def change_settings(
    experiment: T, overrides: Sequence[str], checks: Sequence[Check], free: Collection[ChangeClass] = OF_A_RUN
) -> T:
    """A run's experiment with other settings, like `cluster.nodes=2` or `actor.optimizer.lr=1e-6`.

    Raises:
        ConfigurationError: all settings of classes that are not `free`, and whatever `load_config` would refuse.
    """
    found: list[Problem] = []
    reading = _Reading(experiment.algorithm, type(experiment), found)
    reading.begin_from(experiment)
    words = list(_parse_overrides(overrides, found))
    for word in words:
        change = reading.class_of(word.key)
        if change is None or change in free:
            reading.take([word])
        else:
            found.append(_cannot_change(word, change))
    changed = reading.experiment()
    if every := collect(changed, checks, found):
        raise ConfigurationError(every)
    return changed


def _cannot_change(word: Given, change: ChangeClass) -> Problem:
    if change is ChangeClass.FORK:
        return Problem(
            (word.key,),
            f"{word} cannot change in a run: all calls of a step have it in common, and some may be recorded.",
            f"Begin a new run from a checkpoint of this one: `hpcrl fork RUN --step N --{word.key} {word.value}`.",
        )
    return Problem(
        (word.key,),
        f"{word} cannot change in a run, nor in a fork of it: it is part of what the run is, and what was recorded "
        f"with another {word.key} would not fit.",
        f"Submit a new run with {word.key}.",
    )


def site_file() -> Path | None:
    """What all runs of this user have in common: $HPCRL_SITE (none if empty), else ~/.config/hpcrl/site.yaml."""
    named = os.environ.get("HPCRL_SITE")
    if named is not None:
        return Path(named) if named else None
    usual = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "hpcrl" / "site.yaml"
    return usual if usual.is_file() else None


def _parse_overrides(overrides: Sequence[str], found: list[Problem]) -> Iterator[Given]:
    for text in overrides:
        key, equals, value = text.partition("=")
        if equals:
            yield Given(key, value, COMMAND_LINE)
        else:
            found.append(Problem((key,), f"{key} (command line) has no value.", f"Write --{key} VALUE."))


def _algorithm(
    values: Mapping[str, Any], words: Sequence[Given], path: Path, names: Sequence[str], found: list[Problem]
) -> str:
    """The algorithm, or the one that was probably meant; without either, nothing else can be judged."""
    written = [Given("algorithm", values["algorithm"], path.name)] if "algorithm" in values else []
    written += [word for word in words if word.key == "algorithm"]
    known = f"{', '.join(names)}, or file.py:NAME"
    if not written:
        raise ConfigurationError([f"algorithm is not set in {path}: it is one of {known}."], "Set algorithm.")
    name = str(written[-1].value)
    if name in names or ".py:" in name:
        return _absolute(name)
    near = difflib.get_close_matches(name.lower(), names, n=1)
    probably = f", probably to {near[0]}" if near else ""
    problem = Problem(("algorithm",), f"{written[-1]} must be one of {known}.", f"Set algorithm{probably}.")
    if not near:
        raise ConfigurationError([problem])
    found.append(problem)
    return near[0]


class _Reading(Generic[T]):
    """Collects the values of one algorithm's settings, and in `found` what is wrong with them one by one."""

    def __init__(self, algorithm: str, config: type[T], found: list[Problem]) -> None:
        self._algorithm = algorithm
        self._config = config
        self._found = found
        self._settings = {setting.key: setting for setting in settings(config)}
        self._sections = [name for name, _ in sections(config)]
        self._values: dict[str, Any] = {"algorithm": algorithm}

    def leaves(self, values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
        """The dotted keys of a file's mapping with their values; an empty section has none."""
        for name, value in values.items():
            key = f"{prefix}{name}"
            if key not in self._sections:
                yield key, value
            elif isinstance(value, Mapping):
                yield from self.leaves(value, key + ".")
            elif value is not None:
                yield key, value

    def begin_from(self, experiment: T) -> None:
        """Take every setting's value from an experiment."""
        self._values |= {key: setting.of(experiment) for key, setting in self._settings.items()}

    def class_of(self, key: str) -> ChangeClass | None:
        """What changing this setting means; None for a section or a misspelling."""
        return self._settings[key].change if key in self._settings else None

    def take(self, given: Iterable[Given]) -> None:
        """Keep what is a setting and has its type, report the rest. A right value heals an earlier wrong one."""
        for word in given:
            if word.key == "algorithm":
                continue
            try:
                self._values[word.key] = self._checked(word)
            except ConfigurationError as error:
                self._found += error.found
            else:
                self._found[:] = [problem for problem in self._found if problem.keys != (word.key,)]

    def _checked(self, word: Given) -> Any:
        """The value in its setting's type. Raises ConfigurationError."""
        if word.key in self._sections:
            inside = next(key for key in self._settings if key.startswith(word.key + "."))
            raise word.refused("is a section, not a setting", f"Set what is in it, as in {inside}.")
        setting = self._settings.get(word.key)
        if setting is None:
            if within := self._within_mapping(word.key):
                owner, inner = within
                what = f"is in {owner}, which is one setting with a mapping"
                raise word.refused(what, f"Write --{owner} '{_nested(inner, word.value)}'.")
            what = f"is not a setting of algorithm {self._algorithm}"
            if near := self._nearest(word.key):
                raise word.refused(what, f"The nearest is {near}.")
            raise word.refused(
                what, f"Leave it out; `hpcrl submit --help --algorithm {self._algorithm}` lists all settings."
            )
        # A command line writes null as YAML does; a setting that may not be null must not become the text "null".
        null = word.value is None or (word.place == COMMAND_LINE and word.value in ("null", "~"))
        if not null or setting.optional:
            with contextlib.suppress(ArgumentError):
                return self._storable(word, setting, self._typed(setting, word.value))
        if setting.plain_type is dict and not is_yaml(word.value):
            raise word.refused(
                "is not valid YAML", 'Close every brace, and quote what has brackets: {mesh: "node[0-1]"}.'
            )
        raise word.refused(f"must be {setting.expectation}", f"Set {word.key}.")

    def _within_mapping(self, key: str) -> tuple[str, str] | None:
        """The setting whose value is a mapping that a key reaches into, and the rest of the key."""
        known = (name for name, setting in self._settings.items() if setting.plain_type is dict)
        owner = next((name for name in known if key.startswith(name + ".")), None)
        return None if owner is None else (owner, key.removeprefix(owner + "."))

    def _storable(self, word: Given, setting: Setting, value: Any) -> Any:
        """The value, if it can be stored and read again. Raises ConfigurationError."""
        if isinstance(value, Mapping) and not _is_json(value):
            raise word.refused(
                f"must be {setting.expectation} that JSON can hold: names are texts, numbers are finite, and there are "
                "no dates",
                f"Set {word.key}.",
            )
        return value

    def _typed(self, setting: Setting, value: Any) -> Any:
        parser = ArgumentParser(exit_on_error=False)
        parser.add_argument("--value", type=setting.plain_type)
        parsed = parser.parse_object({"value": value}, defaults=False)
        return msgspec.convert(parsed["value"], setting.plain_type)

    def _nearest(self, key: str) -> str:
        """The known name that is spelt most like `key`; one that ends like it, or like its initials, is nearer.

        Empty where none is alike.
        """
        last = key.rpartition(".")[2]
        ends = (last, "".join(word[:1] for word in last.split("_")))

        def likeness(written: str, known: str) -> float:
            same_end = known.rpartition(".")[2] in ends
            return difflib.SequenceMatcher(None, written, known).ratio() + (0.5 if same_end else 0.0)

        nearest = max([*self._settings, *self._sections], key=partial(likeness, key))
        # That both are in the same section says nothing.
        return nearest if likeness(*_apart(key, nearest)) >= ALIKE else ""

    def experiment(self) -> T:
        """The experiment; what is missing is reported and has a stand-in, so that the rest can be checked."""
        nested: dict[str, Any] = {}
        for setting in self._settings.values():
            section = nested
            *names, last = setting.key.split(".")
            for name in names:
                section = section.setdefault(name, {})
            section[last] = _settled(setting, self._value(setting))
        return build(self._config, nested)

    def _value(self, setting: Setting) -> Any:
        if setting.key in self._values:
            return self._values[setting.key]
        if setting.like is not None:
            return self._value(self._settings[setting.like])
        if not setting.required:
            return setting.default
        if not any(setting.key in problem.keys for problem in self._found):
            text = f"{setting.key} is not set; it must be {setting.expectation}: {setting.help}"
            self._found.append(Problem((setting.key,), text, f"Set {setting.key}."))
        return 1 if setting.type in (int, float) else ""


def _apart(key: str, known: str) -> tuple[str, str]:
    """Two dotted keys without the sections that both begin with."""
    own, others = key.split("."), known.split(".")
    while len(own) > 1 and len(others) > 1 and own[0] == others[0]:
        own, others = own[1:], others[1:]
    return ".".join(own), ".".join(others)


def _nested(key: str, value: Any) -> str:
    """`a.b` and 1 → {a: {b: 1}}, as YAML."""
    text = str(value)
    for name in reversed(key.split(".")):
        text = f"{{{name}: {text}}}"
    return text


def _is_json(value: Any) -> bool:
    """Whether a value survives JSON."""
    if isinstance(value, Mapping):
        return all(isinstance(name, str) and _is_json(inner) for name, inner in value.items())
    if isinstance(value, list):
        return all(map(_is_json, value))
    return value is None or isinstance(value, str | bool | int) or (isinstance(value, float) and math.isfinite(value))


def _settled(setting: Setting, value: Any) -> Any:
    """Paths as other processes will find them: absolute."""
    if setting.is_path and isinstance(value, tuple):
        return tuple(os.path.abspath(os.path.expanduser(path)) for path in value)
    if setting.is_on_hub and value and is_hub_name(value) and not Path(value).exists():
        # A name that is not there stays as it is written, for the message.
        return str(find_snapshot(value, hub_cache(os.environ)) or value)
    if setting.is_path and value:
        return os.path.abspath(os.path.expanduser(value))
    value = setting.with_paths(value, lambda path: os.path.abspath(os.path.expanduser(path)))
    return setting.with_places(value, _absolute)


def _absolute(place: str) -> str:
    """`file.py:NAME` with the file absolute; any other name as it is."""
    path, colon, name = place.rpartition(":")
    return f"{os.path.abspath(os.path.expanduser(path))}:{name}" if colon and path.endswith(".py") else place
