"""Who may import whom, for every module of the package; imports inside functions count."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import networkx as nx
import pytest

PACKAGE = Path(__file__).parent.parent / "hpcrl"

LAYERS = (
    (
        *(
            "errors",
            "events",
            "member_events",
            "event_log",
            "costs",
            "foreign",
            "hidden_modules",
            "processes",
            "plugins",
            "scratch",
        ),
        *("stacks", "stamps", "whereabouts", "figures", "progress", "phases", "cost_fold", "garbage"),
    ),
    ("config", "dataflow", "families", "backends", "nameresolve"),
    ("data", "rewards", "ops"),
    ("recipes", "durable"),
    ("placement", "wire", "inspect"),
    ("master", "workers", "controller"),
    ("agent", "simulation"),
    ("launch",),
    ("doctor",),
    ("cli",),
    ("parallel",),
    ("models",),
    ("engines",),
    ("algos",),
)
"""From top to bottom; a part imports only from its own line or from lines above."""

TORCH_BELOW = 10
"""The first line that may import torch."""

FORBIDDEN = (
    ("dataflow", "config"),
    ("dataflow", "families"),
    ("recipes", "durable"),
    ("durable", "recipes"),
    ("master", "workers"),
    ("workers", "master"),
    ("master", "controller"),
    ("controller", "master"),
    ("workers", "controller"),
    ("agent", "simulation"),
    ("simulation", "agent"),
)
"""Pairs of one line that must not meet: the first does not import the second."""

HEAVY = frozenset({"torch", "transformers", "deepspeed", "megatron", "flash_attn", "vllm", "ray", "accelerate"})
"""Packages that need, or are, torch."""


WITHOUT_TORCH = frozenset({"transformers.utils.chat_template_utils"})
"""What of them loads none, as tests/data/test_chat.py shows."""


def is_heavy(name: str) -> bool:
    return (name.split(".")[0] in HEAVY and name not in WITHOUT_TORCH) or name.startswith("safetensors.torch")


@cache
def modules() -> dict[str, Path]:
    found = {}
    for path in sorted(set(PACKAGE.rglob("*.py")) - {PACKAGE / "__main__.py"}):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def nodes(module: str) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(modules()[module].read_text(encoding="utf-8"))))


@cache
def imports(module: str) -> frozenset[str]:
    """Full names of what a module imports anywhere in it; of hpcrl, the modules that really are."""
    return frozenset(name for node in nodes(module) for name in _imported(module, node))


def _imported(module: str, node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, f"{module} has a relative import; write it in full"
        for alias in node.names:
            inner = f"{node.module}.{alias.name}"
            yield inner if inner in modules() else str(node.module)


def own_imports(module: str) -> frozenset[str]:
    return frozenset(name for name in imports(module) if name.split(".")[0] == "hpcrl" and name != "hpcrl")


def part(module: str) -> str:
    return module.split(".")[1]


def line(module: str) -> int:
    return next(number for number, parts in enumerate(LAYERS) if part(module) in parts)


def reaches(module: str) -> set[str]:
    """Every module of hpcrl's that importing `module` could load, itself included."""
    return {module} | set(nx.descendants(graph(), module))


@cache
def graph() -> nx.DiGraph:
    edges = nx.DiGraph()
    edges.add_nodes_from(modules())
    edges.add_edges_from((module, name) for module in modules() for name in own_imports(module))
    return edges


def test_every_part_of_the_package_has_a_line():
    parts = {part(module) for module in modules() if module != "hpcrl"}
    assert parts <= {name for names in LAYERS for name in names}


def test_imports_point_upwards():
    wrong = [
        f"{module} imports {name}"
        for module in modules()
        for name in own_imports(module)
        if module != "hpcrl" and line(name) > line(module)
    ]
    assert not wrong


@pytest.mark.parametrize(("importer", "imported"), FORBIDDEN)
def test_a_part_does_not_import_its_forbidden_neighbour(importer, imported):
    wrong = [
        f"{module} imports {name}"
        for module in modules()
        for name in own_imports(module)
        if module != "hpcrl" and part(module) == importer and part(name) == imported
    ]
    assert not wrong


def test_algorithms_see_of_engines_nothing_but_the_contract():
    wrong = [
        f"{module} imports {name}"
        for module in modules()
        for name in own_imports(module)
        if module.startswith("hpcrl.algos.") and name.startswith("hpcrl.engines.") and name != "hpcrl.engines.engine"
    ]
    assert not wrong


def test_no_module_imports_itself_by_way_of_others():
    assert list(nx.simple_cycles(graph())) == []


def test_nothing_above_the_bar_reaches_torch():
    above = [module for module in modules() if module == "hpcrl" or line(module) < TORCH_BELOW]
    wrong = [
        f"{module} reaches {name} by {reached}"
        for module in above
        for reached in reaches(module)
        for name in imports(reached)
        if is_heavy(name)
    ]
    assert not wrong


def test_one_module_imports_pynvml():
    assert [module for module in modules() if "pynvml" in imports(module)] == ["hpcrl.agent.nvml"]


def test_only_parallel_talks_to_torch_distributed():
    for module in modules():
        used = any(
            isinstance(node, ast.Attribute) and node.attr == "distributed" and ast.unparse(node) == "torch.distributed"
            for node in nodes(module)
        )
        if used or any(name.startswith("torch.distributed") for name in imports(module)):
            assert module.startswith("hpcrl.parallel."), module


def test_init_files_are_empty_but_for_the_version():
    full = [name for name, path in modules().items() if path.name == "__init__.py" and path.read_text().strip()]
    assert full == ["hpcrl"]
    assert (PACKAGE / "__init__.py").read_text().strip().startswith("__version__ = ")


def test_no_module_changes_the_world_when_imported():
    """Every module above the bar can be imported, and with all of them torch is still not loaded."""
    above = [module for module in modules() if module == "hpcrl" or line(module) < TORCH_BELOW]
    code = f"import importlib, sys\nfor name in {above!r}: importlib.import_module(name)\n"
    code += f"print(sorted(set({sorted(HEAVY)!r}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


LAUNCHERS = {
    # Where nobody else is there, auto takes this machine.
    "local": ("hpcrl.launch.local", "hpcrl.launch.launchers.local", "hpcrl.launch.launchers.auto"),
    # Measuring a cluster and printing batch scripts are about Slurm itself, whoever would start a run.
    "slurm": (
        "hpcrl.launch.slurm",
        "hpcrl.launch.launchers.slurm",
        "hpcrl.doctor",
        "hpcrl.cli.template",
    ),
}
"""Each launcher, and the modules that may know it; the others read what it declares."""


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_launcher_is_named_in_its_own_files_only(launcher):
    def knows(module: str) -> bool:
        named = any(isinstance(node, ast.Constant) and node.value == launcher for node in nodes(module))
        return named or any(name.startswith(f"hpcrl.launch.{launcher}") for name in own_imports(module))

    assert [module for module in modules() if knows(module) and not module.startswith(LAUNCHERS[launcher])] == []
