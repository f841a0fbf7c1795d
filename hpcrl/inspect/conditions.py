"""What `--where` says of samples, such as `reward < 0 and format == 0`: read as an expression, never executed."""

import ast
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from hpcrl.errors import ConfigurationError

LONGEST = 2000
"""Characters of a condition."""
SHOWN = 30
"""Characters of a value in a message."""
ROW = "row"
"""`row.level` is the field of the row of the data set."""
_COMPARISONS: Mapping[type, Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda one, other: one in other,
    ast.NotIn: lambda one, other: one not in other,
}
_ORDERED = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_INSIDE = (ast.In, ast.NotIn)
TEXT, NUMBER, LIST = "text", "a number", "a list"

Values = Mapping[str, Any]
Kinds = Mapping[str, Mapping[str, Any]]
"""Name → the kinds of values that it has, each with a value."""


def kind_of(value: Any) -> str:
    match value:
        case str():
            return TEXT
        case bool() | int() | float():
            return NUMBER
        case _:
            return LIST


def kinds_of(values: Iterable[Values]) -> Kinds:
    """Of everything that is named anywhere."""
    found: dict[str, dict[str, Any]] = {}
    for each in values:
        for name, value in each.items():
            if value is not None:
                found.setdefault(name, {}).setdefault(kind_of(value), value)
    return found


class Where:
    """A condition on named values. A comparison with what is not there does not hold, but for `!=` and `not in`.

    Raises ConfigurationError where it is none.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        if len(text) > LONGEST:
            raise self._refused(f"has {len(text)} characters; at most {LONGEST} are read")
        try:
            self._tree = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise self._refused("cannot be read") from None
        self.names = frozenset(self._names(self._tree))

    def refuse_other_kinds(self, kinds: Kinds) -> None:
        """Raise ConfigurationError where something is compared with what it never is: nothing would be found."""
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Compare):
                for op, sides in zip(node.ops, pairwise((node.left, *node.comparators)), strict=True):
                    self._refuse_pair(op, sides, kinds)

    def _refuse_pair(self, op: ast.cmpop, sides: tuple[ast.expr, ast.expr], kinds: Kinds) -> None:
        one, other = found = [_kinds(side, kinds) for side in sides]
        if isinstance(op, _INSIDE):
            fits = LIST in other or TEXT in one.keys() & other.keys()
        else:
            fits = bool(one.keys() & other.keys())
        if fits or not one or not other:
            return
        left, right = map(_told, sides, found)
        raise ConfigurationError(
            [f"--where {self.text[:200]} compares {left} with {right}."], f"Compare it as in: {_example(sides, found)}"
        )

    def holds(self, values: Values) -> bool:
        return bool(self._value(self._tree, values))

    def _names(self, node: ast.expr) -> Iterator[str]:
        """All names of an expression of the kinds that there are; raises where one is of another."""
        match node:
            case ast.BoolOp(values=parts):
                for part in parts:
                    yield from self._names(part)
            case ast.UnaryOp(op=ast.Not(), operand=part):
                yield from self._names(part)
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float())):
                pass
            case ast.Compare(left=left, ops=ops, comparators=others) if all(type(op) in _COMPARISONS for op in ops):
                for part in (left, *others):
                    yield from self._names(part)
            case ast.Constant(value=bool() | int() | float() | str()):
                pass
            case ast.Name(id=name):
                yield name
            case ast.Attribute(value=ast.Name(id=name), attr=field) if name == ROW:
                yield f"{ROW}.{field}"
            case _:
                raise self._refused(f"has {ast.unparse(node)!r}, which is neither a name nor a number nor a text")

    def _value(self, node: ast.expr, values: Values) -> Any:
        match node:
            case ast.BoolOp(op=ast.And(), values=parts):
                return all(self._value(part, values) for part in parts)
            case ast.BoolOp(values=parts):
                return any(self._value(part, values) for part in parts)
            case ast.UnaryOp(op=ast.Not(), operand=part):
                return not self._value(part, values)
            case ast.UnaryOp(operand=part):
                return -self._value(part, values)
            case ast.Compare(left=left, ops=ops, comparators=others):
                sides = [self._value(part, values) for part in (left, *others)]
                return all(self._compare(op, *pair) for op, pair in zip(ops, pairwise(sides), strict=True))
            case ast.Constant(value=value):
                return value
            case _:
                return values.get(ast.unparse(node))

    def _compare(self, op: ast.cmpop, one: Any, other: Any) -> bool:
        if one is None or other is None:
            return isinstance(op, ast.NotEq | ast.NotIn)
        if isinstance(op, _ORDERED) and isinstance(one, str) != isinstance(other, str):
            raise self._refused(f"compares {one!r} with {other!r}")
        try:
            return _COMPARISONS[type(op)](one, other)
        except TypeError:
            raise self._refused(f"compares {one!r} with {other!r}") from None

    def _refused(self, what: str) -> ConfigurationError:
        return ConfigurationError(
            [f"--where {self.text[:200]} {what}."],
            "Compare names with numbers or texts, as in 'reward < 0 and ended == \"length\"'.",
        )


def _kinds(side: ast.expr, kinds: Kinds) -> Mapping[str, Any]:
    """The kinds that a side of a comparison may have, each with a value; of what nothing is known: none."""
    match side:
        case ast.Constant(value=value):
            return {kind_of(value): value}
        case ast.Name() | ast.Attribute():
            return kinds.get(ast.unparse(side), {})
        case _:
            return {NUMBER: 1}


def _told(side: ast.expr, kinds: Mapping[str, Any]) -> str:
    """A literal as it is written; a name with what it is."""
    if not isinstance(side, ast.Name | ast.Attribute):
        return ast.unparse(side)
    kind, value = next(iter(kinds.items()))
    shown = f"{value:.4g}" if isinstance(value, float) else repr(value)
    return f"{ast.unparse(side)} ({kind}, as {shown if len(shown) <= SHOWN else shown[:SHOWN] + '…'})"


def _example(sides: Sequence[ast.expr], kinds: Sequence[Mapping[str, Any]]) -> str:
    """What can be asked of the name among these sides."""
    for side, found in zip(sides, kinds, strict=True):
        if isinstance(side, ast.Name | ast.Attribute):
            name = ast.unparse(side)
            return f"{name} == '3' or '3' in {name}" if TEXT in found else f"{name} == 3 or {name} < 3"
    return "reward == 3 or 'a' in response"
