"""An algorithm, a family and a backend are named in their own files only: the rest of the package finds them."""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from hpcrl.backends.backend import BACKENDS
from hpcrl.dataflow.graph import Kind
from hpcrl.families.family import FAMILIES
from hpcrl.plugins import names
from hpcrl.recipes.algorithm import ALGORITHMS, algorithm_of

PACKAGE = Path(__file__).parent.parent / "hpcrl"
NAMES = (*names(ALGORITHMS), *names(FAMILIES), *names(BACKENDS))

WORDS = {*get_args(Kind), *(role for name in names(ALGORITHMS) for role in algorithm_of(name).roles)}
"""What an algorithm may be called although others say it: kinds of call, and roles. Only paths with it are searched."""

ELSEWHERE = {
    "cli/export.py": "transformers and vLLM",
    "cli/main.py": "  hpcrl plan ppo.yaml",
    "cli/new.py": "ppo",
    "recipes/registered.py": "MEGATRON_COMPUTE",
    "config/yaml_file.py": "`algorithm: ppo` and so on",
    "config/model.py": "native",
}
"""File → a text that may hold a name: examples in help and errors, and the defaults of settings and options."""


def own_files(name: str) -> set[str]:
    servers = {f"engines/servers/{file}.py" for file in (f"serve_{name}", f"ask_{name}", f"{name}_weights")}
    return servers | {
        f"{room}/{name}.py"
        for room in ("recipes", "algos", "families", "backends", "engines", "models", "parallel", "workers")
    }


def texts(path: Path) -> Iterator[str]:
    """Identifiers, imports, and literal texts; what only explains (docstrings) may name whatever it likes."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    explaining = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in explaining:
            yield node.value
        elif isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.alias | ast.ClassDef | ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module)


@functools.cache
def package_texts() -> dict[str, frozenset[str]]:
    """File of the package → its texts."""
    return {str(path.relative_to(PACKAGE)): frozenset(texts(path)) for path in sorted(PACKAGE.rglob("*.py"))}


def holds(text: str, name: str) -> bool:
    """As a word of its own, or as the beginning or a part of a CamelCase name, but not as a part of another's name."""
    if name.lower() not in text.lower():
        return False
    for longer in (other for other in NAMES if name in other and name != other):
        text = text.replace(longer, "").replace("".join(map(str.capitalize, longer.split("_"))), "")
    if name in WORDS:
        return bool(re.search(rf"(?:recipes|algos)[./]{name}(?![a-z0-9_])", text))
    as_word = re.search(rf"(?<![a-z0-9]){name}(?![a-z0-9])", text, re.IGNORECASE)
    in_class = re.search(rf"(?:{name.capitalize()}|{name.upper()})[A-Z]", text)
    return bool(as_word or in_class)


def test_the_rooms_declare_what_they_did() -> None:
    assert {"ppo", "sft", "toy", "llama", "qwen2", "native"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_known_in_its_own_files_only(name: str) -> None:
    wrong = []
    for place, said in package_texts().items():
        if place in own_files(name):
            continue
        allowed = ELSEWHERE.get(place)
        wrong += [
            f"{place}: {text[:60]}" for text in sorted(said) if holds(text, name) and not (allowed and allowed in text)
        ]
    assert wrong == []


@pytest.mark.parametrize(
    ("text", "name", "found"),
    [
        ("a ppo step", "ppo", True),
        ("PPOExperiment", "ppo", True),
        ("a Qwen2 block", "qwen2", True),
        ("opportunity", "ppo", False),
        ("qwen3_moe", "qwen3", False),
        ("Qwen3MoeConfig", "qwen3", False),
        ("hpcrl.recipes.generate", "generate", True),
        ("generate", "generate", False),
    ],
)
def test_a_name_is_a_word_or_begins_a_part_of_one(text: str, name: str, found: bool) -> None:
    assert holds(text, name) == found
