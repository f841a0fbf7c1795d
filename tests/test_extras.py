"""An extra is there for code that uses it."""

import ast
import configparser
import importlib.metadata
import re
from pathlib import Path

from hpcrl.cli.draw import PROGRAMS

ROOT = Path(__file__).parents[1]


def extras():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    return {name: text.split() for name, text in setup["options.extras_require"].items()}


def imported():
    """What hpcrl imports anywhere, and the programs and distributions that it names."""
    trees = [ast.parse(path.read_text()) for path in (ROOT / "hpcrl").rglob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    found = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return {name.split(".")[0] for name in found | {str(n.module) for n in nodes if isinstance(n, ast.ImportFrom)}}


def modules_of(requirement):
    """What a distribution puts at the top level, or its name where it brings a program only."""
    name = re.split(r"[^\w.-]", requirement)[0]
    try:
        files = importlib.metadata.files(name) or ()
    except importlib.metadata.PackageNotFoundError:  # for GPUs alone: it is built on a machine that has CUDA
        assert name in ("flash-attn",)
        return {name.replace("-", "_")}
    return {file.parts[0].removesuffix(".py") for file in files if not file.parts[0].endswith((".dist-info", ".."))}


def test_every_extra_is_used_by_the_package():
    used = imported()
    unused = [
        f"{extra}: {requirement}"
        for extra, requirements in extras().items()
        if extra not in ("dev", "draw")
        for requirement in requirements
        if not modules_of(requirement) & used
    ]
    assert unused == []


def test_the_extra_of_drawing_brings_a_program_that_is_called():
    (distribution,) = extras()["draw"]
    brought = {file.name for file in importlib.metadata.files(distribution) or ()}
    assert brought & set(PROGRAMS)


def test_all_extras_but_those_for_gpus_are_installed_together_where_the_tests_run():
    """Then their versions agree: with one another's, and with the pins."""
    found = extras()
    development = set(found.pop("dev"))
    apart = {name for name, requirements in found.items() if not development.issuperset(requirements)}
    assert apart == {"flash"}


def test_every_extra_that_a_message_names_exists():
    texts = [path.read_text() for path in (ROOT / "hpcrl").rglob("*.py")] + [(ROOT / "README.md").read_text()]
    named = {name for text in texts for name in re.findall(r'MissingExtraError\("\w+", "(\w+)"\)|\.\[(\w+)\]', text)}
    assert {first or second for first, second in named} <= extras().keys()
