"""docs/architecture.md names what is there: modules, classes, functions, files, settings, layers and stations."""

import ast
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from support.stations import STATIONS, resolve
from test_layers import LAYERS, PACKAGE, TORCH_BELOW, modules

from hpcrl.config.experiment import ExperimentConfig
from hpcrl.config.fields import settings
from hpcrl.config.model import TrainedModelConfig
from hpcrl.durable.paths import RunPaths
from hpcrl.errors import ExitCode

ROOT = PACKAGE.parent
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
PROSE = re.sub(r"^```\n.*?^```$", "", PAGE, flags=re.MULTILINE | re.DOTALL)
NAMED = sorted(set(re.findall(r"`([^`\n]+)`", PROSE)))
PATH, DOTTED, CLASS = r"[\w./]*/[\w./]*|\w+\.py", r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", r"[A-Z][a-z]\w*|MFC"


def block(first_word: str) -> str:
    (found,) = [text for text in BLOCKS if text.startswith(first_word)]
    return found


def section(title: str) -> str:
    return re.split(r"^## ", PROSE.split(f"## {title}\n")[1], flags=re.MULTILINE)[0]


def rows_of_table(title: str) -> list[list[str]]:
    """The cells of each row of a section's table, without its head."""
    lines = [line for line in section(title).splitlines() if line.startswith("|")]
    return [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines[2:]]


@cache
def classes() -> dict[str, frozenset[str]]:
    """Every class of the package by its name: its methods, properties and fields."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in modules().values()]
    return {
        node.name: frozenset(_members(node)) for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)
    }


def _members(of: ast.ClassDef) -> Iterator[str]:
    for node in of.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


@cache
def keys() -> frozenset[str]:
    """The settings that every run has, and those of a model that is trained."""
    sections = [*settings(ExperimentConfig), *settings(TrainedModelConfig, prefix="actor.")]
    return frozenset(setting.key for setting in sections)


def is_there(name: str) -> bool:
    """Whether what a name on the page says is there. Words, commands and patterns say nothing."""
    if re.fullmatch(PATH, name) and not name.startswith("/"):
        path = re.sub(r"\w+\.py$", "", name) if "NAME" in name else name
        return any((folder / path).exists() for folder in (ROOT, PACKAGE))
    if name.endswith((".json", ".jsonl")):
        return name in block("RUN/")
    if re.fullmatch(DOTTED, name):
        owner, _, member = name.partition(".")
        return name in keys() or member in classes().get(owner, ()) or _resolves(name)
    return name in classes() if re.fullmatch(CLASS, name) else True


def _resolves(name: str) -> bool:
    try:
        resolve(name)
    except AttributeError:
        return False
    return True


@pytest.mark.parametrize("name", NAMED)
def test_what_the_page_names_is_there(name: str) -> None:
    assert is_there(name)


@pytest.mark.parametrize(
    "name", ["durable.spills.no_such", "Dispatcher.no_such", "NoSuchClass", "no/such.py", "cluster.no"]
)
def test_what_is_not_there_is_found(name: str) -> None:
    assert not is_there(name)


def test_the_stations_are_those_that_a_run_is_followed_by() -> None:
    told = [(station, function) for station, _, function, _ in rows_of_table("One sample, one request")]
    assert told == [(name, station.function) for name, station in STATIONS.items()]


def test_the_layers_are_those_that_imports_obey() -> None:
    lines = block("errors ·").splitlines()
    bar = next(index for index, line in enumerate(lines) if line.startswith("─"))
    assert bar == TORCH_BELOW and lines[bar].endswith(" torch")
    assert [tuple(line.split(" · ")) for line in lines[:bar] + lines[bar + 1 :]] == list(LAYERS)


def test_every_room_is_described() -> None:
    described = {name for room, _ in rows_of_table("Rooms") for name in re.findall(r"\w+", room)}
    assert described == {name for line in LAYERS for name in line}


def test_the_run_directory_is_drawn_with_every_name_in_it() -> None:
    drawn = block("RUN/")
    assert [name for name in names_in_a_run() if name not in drawn] == []


def names_in_a_run() -> Iterator[str]:
    given = {
        "nonce": "<nonce>",
        "job": "<job>",
        "name": "000000",
        "role": "<role>",
        "call": "actor_gen",
        "kind": "<program>",
    }
    paths = RunPaths(Path("RUN"))
    for name, method in inspect.getmembers(paths, inspect.ismethod):
        parameters = inspect.signature(method).parameters
        if name in ("renumbered", "worker_log", "stacks", "__init__"):
            continue
        numbers = {"step": 12, "attempt": 0, "number": 0, "part": 0, "version": 1, "worker": 0, "node": 0}
        yield method(**{parameter: {**given, **numbers}[parameter] for parameter in parameters}).name
    yield from (value.name for name in dir(paths) if isinstance(value := getattr(paths, name), Path))


def test_every_exit_code_is_explained() -> None:
    told = {int(code) for codes, _ in rows_of_table("Exit codes") for code in codes.split()}
    assert told == {int(code) for code in ExitCode}
