"""How long a function, how wide a class and how large a file may be, for every module of the package."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "hpcrl"
FILES = sorted(PACKAGE.rglob("*.py"))

LINES_OF_A_FILE = 400
LINES_OF_A_FUNCTION = 50
ATTRIBUTES_OF_A_CLASS = 15
"""Dataclasses of settings apart: a section of the configuration, or a model's config.json, has as many as it needs."""


def nodes(path: Path) -> Iterator[ast.AST]:
    return ast.walk(ast.parse(path.read_text(encoding="utf-8")))


def attributes(cls: ast.ClassDef) -> set[str]:
    """Fields, and what methods assign to `self`."""
    declared = {node.target.id for node in cls.body if isinstance(node, ast.AnnAssign) and _is_name(node.target)}
    assigned = {
        node.attr
        for node in ast.walk(cls)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_self(node.value)
    }
    return declared | assigned


def is_settings(path: Path, cls: ast.ClassDef) -> bool:
    room = path.relative_to(PACKAGE).parts[0]
    return room in ("config", "recipes", "families") and cls.name.endswith(("Config", "Experiment"))


def _is_name(node: ast.AST) -> bool:
    return isinstance(node, ast.Name)


def _is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_file_a_function_and_a_class_can_be_taken_in_at_once(path: Path) -> None:
    length = len(path.read_text(encoding="utf-8").splitlines())
    assert length <= LINES_OF_A_FILE, f"{path} has {length} lines"
    for node in nodes(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            assert lines <= LINES_OF_A_FUNCTION, f"{path}: {node.name} has {lines} lines"
        elif isinstance(node, ast.ClassDef) and not is_settings(path, node):
            found = attributes(node)
            assert len(found) <= ATTRIBUTES_OF_A_CLASS, f"{path}: {node.name} has {sorted(found)}"
