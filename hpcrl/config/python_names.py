"""Which names a Python file has, as far as reading it says; nothing of it is executed."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_MAKERS = frozenset({"exec", "eval", "globals", "locals", "vars", "setattr"})
"""What is called by code that makes names which nobody can read."""


@dataclass(frozen=True)
class PythonNames:
    """Of a module's top level: what it binds, which of these are functions, and whether there may be others."""

    bound: frozenset[str]
    functions: tuple[str, ...]
    may_have_others: bool


def names_in(path: Path) -> PythonNames | None:
    """None of a file that cannot be read or is no Python."""
    try:
        tree = ast.parse(path.read_bytes(), path)
    except (OSError, SyntaxError, ValueError):
        return None
    bound = [pair for statement in tree.body for pair in _bound(statement)]
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    names = frozenset(name for name, _ in bound)
    return PythonNames(
        bound=names,
        functions=tuple(dict.fromkeys(name for name, is_function in bound if is_function and name[:1] != "_")),
        may_have_others=bool(used & _MAKERS) or bool(names & {"*", "__getattr__"}),
    )


def _bound(node: ast.AST) -> Iterator[tuple[str, bool]]:
    """The names that a statement binds, those of statements in it too, and whether they are functions'."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            yield name, True
        case ast.ClassDef(name=name):
            yield name, False
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            yield from ((alias.asname or alias.name.partition(".")[0], False) for alias in aliases)
        case ast.Name(id=name, ctx=ast.Store()):
            yield name, False
        case ast.Lambda():
            pass
        case _:
            for child in ast.iter_child_nodes(node):
                yield from _bound(child)
