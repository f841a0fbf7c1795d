"""The texts in a source file, as a test reads them without running it."""

import ast
from collections.abc import Iterator
from pathlib import Path


def words_of(node: ast.expr) -> str | None:
    """A text with {} where a value stands; None of what is no literal text."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return None


def texts_of(path: Path) -> Iterator[str]:
    """All texts of a file but its docstrings and comments; texts that stand side by side are one."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    within = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    within |= {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.expr) and id(node) not in within and (words := words_of(node)):
            yield words
