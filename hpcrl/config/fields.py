"""What the dataclasses of the configuration say of themselves: key, type, default, help, bound, class of change."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from operator import attrgetter
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from hpcrl.config.bounds import broken_bound, in_words, marks

T = TypeVar("T")

PathText = Annotated[str, "path"]
"""A path on the shared file system. A relative one counts from the working directory and is stored absolute."""

ModelText = Annotated[str, "path", "hub"]
"""The folder of a model, or its name on the Hugging Face hub if it has been downloaded; stored as a folder."""

FunctionText = Annotated[str, "function"]
"""The name of a function of hpcrl's, `module:function` or `file.py:function`; the file is stored absolute."""

NameText = Annotated[str, "name"]
"""The name of a file of hpcrl's that declares something, or the user's `file.py:NAME`; the file is stored absolute."""

ComponentsMapping = Annotated[Mapping[str, Any], "components"]
"""Names to mappings, whose `function` is a function as above."""


PLURALS: Mapping[str, str] = MappingProxyType(
    {"a whole number": "whole numbers", "a number": "numbers", "a text": "texts", "a path": "paths"}
)


@dataclass(frozen=True)
class LikeSetting:
    """A mark: where the setting is not given, it has the value of that one."""

    key: str


class ChangeClass(Enum):
    """What it means to change a setting of a run that exists.

    A section gives the class of its own fields as `changes: ClassVar[ChangeClass]`; a field's own mark comes before it.
    """

    PLACEMENT = "placement"
    """Where and how the processes run, and what they keep. The newest value counts, in replays too."""
    NUMBERS = "numbers"
    """What the run computes from then on. What is recorded still fits, and is replayed under its own value."""
    FORK = "fork"
    """What all calls of a step have in common. A fork begins with a new step, and may have another value."""
    IDENTITY = "identity"
    """What the run is: what is recorded would not fit another value."""


@dataclass(frozen=True)
class Setting:
    """One leaf of the configuration: what `--key value` can set. `change` is None where no class is given."""

    key: str
    hint: Any
    """The type with its marks."""
    type: Any
    """The type alone."""
    default: Any
    change: ChangeClass | None
    section: type
    """The dataclass whose field it is."""

    @property
    def help(self) -> str:
        return description(self.section, self.key)

    @property
    def required(self) -> bool:
        """Whether there is no experiment without a value for it."""
        return self.default is MISSING and self.like is None

    @property
    def like(self) -> str | None:
        """The setting whose value this one has where it is not given."""
        return next((mark.key for mark in marks(self.hint) if isinstance(mark, LikeSetting)), None)

    @property
    def optional(self) -> bool:
        return NoneType in get_args(self.type)

    @property
    def is_path(self) -> bool:
        return "path" in marks(self.hint)

    @property
    def is_on_hub(self) -> bool:
        return "hub" in marks(self.hint)

    @property
    def is_in_file(self) -> bool:
        """Whether its value may be something in a file, `file.py:name`."""
        return bool({"function", "name"} & set(marks(self.hint)))

    def functions(self, config: Any) -> Iterator[tuple[str, str]]:
        """Dotted key → what may be something in a file, of all that this setting names in a configuration."""
        value = self.of(config)
        if self.is_in_file and value:
            yield self.key, value
        elif "components" in marks(self.hint):
            named = (
                (name, it["function"]) for name, it in value.items() if isinstance(it, Mapping) and "function" in it
            )
            yield from ((f"{self.key}.{name}.function", place) for name, place in named if isinstance(place, str))

    def with_paths(self, value: Any, absolute: Callable[[str], str]) -> Any:
        """The value of a setting with paths of several sources, with other paths."""
        if "sources" not in marks(self.hint) or not isinstance(value, Mapping):
            return value

        def moved(source: Any) -> Any:
            if isinstance(source, Mapping) and isinstance(source.get("path"), str):
                return {**source, "path": absolute(source["path"])}
            return source

        return {name: moved(source) for name, source in value.items()}

    def with_places(self, value: Any, place: Callable[[str], str]) -> Any:
        """The value with other places for what may be in a file."""
        if self.is_in_file and value:
            return place(value)
        if "components" not in marks(self.hint) or not isinstance(value, Mapping):
            return value

        def placed(component: Any) -> Any:
            if isinstance(component, Mapping) and isinstance(component.get("function"), str):
                return {**component, "function": place(component["function"])}
            return component

        return {name: placed(component) for name, component in value.items()}

    @property
    def plain_type(self) -> Any:
        """The type as a command-line parser wants it: a mapping as a dict."""
        return dict if get_origin(self.type) is Mapping else self.type

    @property
    def expectation(self) -> str:
        """The type in the words of a user who does not write Python."""
        return describe(self.hint)

    @property
    def bounded_expectation(self) -> str:
        """The type and its bound."""
        bound = in_words(self.hint)
        return f"{self.expectation}, {bound}" if bound else self.expectation

    def broken_bound(self, value: Any) -> str | None:
        """What a value of the right type must be and is not."""
        return broken_bound(self.hint, value)

    def of(self, config: Any) -> Any:
        """The value that this setting has in a configuration."""
        return attrgetter(self.key)(config)


def section(config: Any, name: str, kind: type[T]) -> T | None:
    """The section of this name; None where a configuration has none, or another kind of section there."""
    found = getattr(config, name, None)
    return found if isinstance(found, kind) else None


def sections_of(config: Any, kind: type[T]) -> dict[str, T]:
    """The sections of a kind, by name, in the order of the configuration."""
    found = {field.name: getattr(config, field.name) for field in fields(config)}
    return {name: value for name, value in found.items() if isinstance(value, kind)}


def description(section: type, key: str) -> str:
    """The string under the field of a dataclass, or of one of its bases, that the last part of a dotted key names."""
    return _descriptions(section).get(key.rpartition(".")[2], "")


@cache
def _descriptions(section: type) -> Mapping[str, str]:
    # Only help and a missing setting ask for them.
    from docstring_parser import parse_from_object

    parts = [part for cls in reversed(section.__mro__) if is_dataclass(cls) for part in parse_from_object(cls).params]
    return {part.arg_name: " ".join((part.description or "").split()) for part in parts}


def settings(config: type, default: Any = MISSING, prefix: str = "") -> Iterator[Setting]:
    """All leaves of a configuration in the order of its fields; `default` is an instance that gives the defaults."""
    for field, hint, kind, change in _declared(config):
        key = prefix + field.name
        value = _default(field) if default is MISSING else getattr(default, field.name)
        if is_dataclass(kind):
            assert isinstance(kind, type)
            yield from settings(kind, value, key + ".")
        else:
            yield Setting(key, hint, kind, value, change, config)


@cache
def _declared(config: type) -> tuple[tuple[Field[Any], Any, Any, ChangeClass | None], ...]:
    """Field, type with its marks, type alone and class of change of all that a section has."""
    hints, types = get_type_hints(config, include_extras=True), _types(config)
    return tuple(
        (it, hints[it.name], types[it.name], _change(config, it.name, hints[it.name])) for it in fields(config)
    )


@cache
def _types(config: type) -> Mapping[str, Any]:
    """Without their marks. Python evaluates them anew each time that it is asked."""
    return MappingProxyType(get_type_hints(config))


def _change(config: type, name: str, hint: Any) -> ChangeClass | None:
    own = [mark for mark in marks(hint) if isinstance(mark, ChangeClass)]
    declaring = next(cls for cls in config.__mro__ if name in inspect.get_annotations(cls))
    return own[0] if own else getattr(declaring, "changes", None)


def is_storable(hint: Any) -> bool:
    """Whether a value of this type can be written in YAML and on a command line, and is the same when a run's JSON is
    read again."""
    if hint in (int, float, bool, str, NoneType, Any) or get_origin(hint) is Literal:
        return True
    if get_origin(hint) is Annotated:
        return is_storable(hint.__origin__)
    kinds = [kind for kind in get_args(hint) if kind is not Ellipsis]
    return get_origin(hint) in (UnionType, Union, tuple, list, Mapping, dict) and all(map(is_storable, kinds))


def build(config: type[T], values: Mapping[str, Any]) -> T:
    """The configuration of nested values that have their types. Asks for no bound."""
    section: type = config
    types = _types(section)
    made = {name: build(types[name], value) if is_dataclass(types[name]) else value for name, value in values.items()}
    return config(**made)


def _default(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def sections(config: type, prefix: str = "") -> Iterator[tuple[str, type]]:
    """The dotted name of every nested part and the dataclass whose field it is, outermost first."""
    for name, hint in _types(config).items():
        if is_dataclass(hint):
            assert isinstance(hint, type)
            yield prefix + name, config
            yield from sections(hint, prefix + name + ".")


def describe(hint: Any) -> str:
    """A type that can be stored, in the words of a user who does not write Python."""
    if get_origin(hint) is Annotated:
        named = [f"a {mark}" for mark in hint.__metadata__ if mark in ("path", "function", "name")]
        if named and get_origin(hint.__origin__) is tuple:
            return "a list of paths"
        if "count or range" in hint.__metadata__:
            return "a number of nodes"
        return named[0] if named else describe(hint.__origin__)
    if get_origin(hint) is Literal:
        choices = list(map(str, get_args(hint)))
        return choices[0] if len(choices) == 1 else "one of " + ", ".join(choices)
    if get_origin(hint) in (UnionType, Union):
        kinds = [describe(kind) for kind in get_args(hint) if kind is not NoneType]
        return " or ".join([*kinds, *(["null"] if NoneType in get_args(hint) else [])])
    if get_origin(hint) in (list, tuple):
        kinds = [kind for kind in get_args(hint) if kind is not Ellipsis]
        return _describe_list(kinds, get_origin(hint) is list or Ellipsis in get_args(hint))
    if get_origin(hint) in (Mapping, dict):
        return "a mapping of names to values"
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", Any: "a value"}
    return words[hint]


def _describe_list(kinds: Sequence[Any], several: bool) -> str:
    """A list of any number of values of one kind, or of one of each kind."""
    words = list(map(describe, kinds))
    plural = PLURALS.get(words[0], f"values, each {words[0]}") if len(set(words)) == 1 else ""
    if several:
        return f"a list of {plural}"
    return f"a list of {len(words)} {plural}" if plural else f"a list of {len(words)} values: {', '.join(words)}"
