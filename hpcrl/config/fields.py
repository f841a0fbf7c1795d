"""What the dataclasses of the configuration say of themselves: dotted keys, types, defaults and help texts."""

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from operator import attrgetter
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

PathText = Annotated[str, "path"]
"""A path on the shared file system. A relative one counts from the working directory and is stored absolute."""

FunctionText = Annotated[str, "function"]
"""The name of a function of hpcrl's, `module:function` or `file.py:function`; the file is stored absolute."""


@dataclass(frozen=True)
class Setting:
    """One leaf of the configuration: what `--key value` can set."""

    key: str
    type: Any
    default: Any
    help: str

    @property
    def required(self) -> bool:
        return self.default is MISSING

    @property
    def optional(self) -> bool:
        return NoneType in get_args(self.type)

    @property
    def is_path(self) -> bool:
        return PathText in (self.type, *get_args(self.type))

    @property
    def is_function(self) -> bool:
        return self.type is FunctionText

    @property
    def plain_type(self) -> Any:
        """The type as a command-line parser wants it: without marks, and a mapping as a dict."""
        if self.is_path or self.is_function:
            return str | None if self.optional else str
        return dict if get_origin(self.type) is Mapping else self.type

    @property
    def expectation(self) -> str:
        return describe(self.type)

    def of(self, config: Any) -> Any:
        """The value that this setting has in a configuration."""
        return attrgetter(self.key)(config)


def descriptions(config: type) -> Mapping[str, str]:
    """The string under each field of the dataclass and of its bases, by field name."""
    found: dict[str, str] = {}
    for cls in reversed(config.__mro__):
        if is_dataclass(cls):
            found |= _own_descriptions(cls)
    return found


def _own_descriptions(cls: type) -> dict[str, str]:
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(body, ast.ClassDef)
    found = {}
    for statement, follower in zip(body.body, body.body[1:], strict=False):
        if not (isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)):
            continue
        if isinstance(follower, ast.Expr) and isinstance(follower.value, ast.Constant):
            found[statement.target.id] = inspect.cleandoc(str(follower.value.value))
    return found


def settings(config: type, default: Any = MISSING, prefix: str = "") -> Iterator[Setting]:
    """All leaves of a configuration in the order of its fields; `default` is an instance that gives the defaults."""
    helps = descriptions(config)
    hints = get_type_hints(config, include_extras=True)
    for field in fields(config):
        value = _default(field) if default is MISSING else getattr(default, field.name)
        hint = hints[field.name]
        key = prefix + field.name
        if is_dataclass(hint):
            assert isinstance(hint, type)
            yield from settings(hint, value, key + ".")
        else:
            yield Setting(key, hint, value, helps.get(field.name, ""))


def _default(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def sections(config: type, prefix: str = "") -> Iterator[tuple[str, str]]:
    """The dotted name and help text of every nested part, outermost first."""
    helps = descriptions(config)
    for name, hint in get_type_hints(config).items():
        if is_dataclass(hint):
            assert isinstance(hint, type)
            yield prefix + name, helps.get(name, "")
            yield from sections(hint, prefix + name + ".")


def describe(hint: Any) -> str:
    """A type in the words of a user who does not write Python."""
    if hint is PathText:
        return "a path"
    if hint is FunctionText:
        return "a function"
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(map(str, get_args(hint)))
    if get_origin(hint) in (UnionType, Union):
        kinds = [describe(kind) for kind in get_args(hint) if kind is not NoneType]
        return " or ".join([*kinds, "null"])
    if get_origin(hint) is tuple:
        return f"a list of {len(get_args(hint))} numbers"
    if get_origin(hint) is Mapping:
        return "a mapping of names to values"
    return {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}[hint]
