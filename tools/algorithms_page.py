"""docs/algorithms.md: every algorithm's graph, roles, rows, statistics and own settings, from the declarations alone;
its formulas and the peers' defaults, from docs/formulas; and what it has been shown to learn, from docs/gates.json.

`make docs` writes the page; a test compares it with what the declarations say now.
"""

import inspect
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any, get_type_hints

from peer_defaults import COLUMNS, DEFAULTS, compared

from hpcrl.config.control import Frequency
from hpcrl.config.experiment import ExperimentConfig
from hpcrl.config.fields import Setting, build, settings
from hpcrl.dataflow.graph import MFC, producers, topological_order
from hpcrl.plugins import names
from hpcrl.recipes.algorithm import ALGORITHMS, Algorithm, algorithm_of
from hpcrl.recipes.policy import PolicyExperiment, section_of

DOCS = Path(__file__).parent.parent / "docs"
PAGE = DOCS / "algorithms.md"
GATES = DOCS / "gates.json"
FORMULAS = DEFAULTS.parent
HEAD = """# Algorithms

Every graph, formula and default on one page, with the defaults of verl 0.9.1 and TRL 1.16. It is made by `make docs`
from the declarations in `hpcrl/recipes/` and the texts in `docs/formulas/`; do not edit it.

A call is `generate`, `inference`, `train_step`, `evaluate` or `blend` on a role. A line carries the keys that a call
reads of another, or of the rows; a dashed line carries a role's parameters from its train_step to a call that reads
them in the next step, or to one of the evaluation in the same step. Calls of the evaluation have keys with `eval_`
before each, which their roles see without it. Every setting: `hpcrl submit --algorithm NAME --help`. How to write an
algorithm: [architecture](architecture.md#where-to-write-what).
"""


def page() -> str:
    """The whole text."""
    algorithms = {name: algorithm_of(name) for name in names(ALGORITHMS)}
    parts = [HEAD, *_shared(algorithms), *_gates()]
    return "\n".join([*parts, *("\n".join(_algorithm(name, algorithm)) for name, algorithm in algorithms.items())])


def _shared(algorithms: Mapping[str, Algorithm[Any]]) -> Iterator[str]:
    """What is the same for all algorithms with a policy, and where they differ from the peers'."""
    yield from ("## Policies", "", "What all algorithms share whose policy learns from scored responses.", "")
    yield _formulas("policy")
    policies = (one for one in algorithms.values() if issubclass(one.experiment, PolicyExperiment))
    yield from _defaults("policy", next(policies))
    yield from ("### Differences from verl and TRL", "", _text("differences"))


def _gates() -> Iterator[str]:
    """What `make gates` has found; nothing before its first run."""
    if not GATES.exists():
        return
    yield from ("## What they learn", "", "Measured by `make gates`, on one CPU; each number is of a seed.", "")
    rows = []
    for gate in json.loads(GATES.read_text(encoding="utf-8")):
        seeds = gate["seeds"]
        before, after = (" · ".join(f"{seed[when]:.3g}" for seed in seeds) for when in ("before", "after"))
        steps = " · ".join(str(seed["steps"]) for seed in seeds)
        rows.append((gate.get("gate", gate["algorithm"]), gate["task"], gate["goal"], before, after, steps))
    yield from _table(["gate", "task", "goal", "before", "after", "good from step"], rows)


def _algorithm(name: str, algorithm: Algorithm[Any]) -> Iterator[str]:
    experiment = _example(algorithm)
    first, *rest = (inspect.getdoc(inspect.getmodule(algorithm.experiment)) or "").splitlines()
    yield from (f"## {name}", "", first, *rest, "")
    if (FORMULAS / f"{name}.md").exists():
        yield _formulas(name)
    yield from ("```mermaid", *_drawing(algorithm, experiment), "```", "")
    calls = [graph.calls[call] for graph in [algorithm.graph(experiment)] for call in topological_order(graph)]
    yield from _table(
        ["call", "role", "kind", "reads", "makes", "reports"], (_call(mfc, algorithm.metrics) for mfc in calls)
    )
    yield from _table(["role", "model", "section"], _roles(algorithm))
    fields, keys = (
        " and ".join(f"`{word}`" for word in words) for words in (algorithm.rows.fields, algorithm.rows.keys)
    )
    yield from (f"A row{f' is a line with {fields}, and' if fields else ''} gives {keys}.", "")
    yield from _table(["setting", "default", "what"], map(_setting, _own_settings(algorithm)))
    yield from _defaults(name, algorithm)


def _text(name: str) -> str:
    return (FORMULAS / f"{name}.md").read_text(encoding="utf-8")


def _formulas(name: str) -> str:
    return f"### Formulas\n\n{_text(name)}"


def ours(name: str, algorithm: Algorithm[Any]) -> Mapping[str, Any]:
    """An algorithm's defaults; of `policy` also those of its own section, by their names there."""
    defaults = {setting.key: setting.default for setting in settings(algorithm.experiment)}
    if name != "policy":
        return defaults
    own = f"{section_of(_example(algorithm))[0]}."
    return {key.removeprefix(own): value for key, value in defaults.items()}


def _defaults(name: str, algorithm: Algorithm[Any]) -> Iterator[str]:
    """Nothing where no peer has them."""
    known = ours(name, algorithm)
    rows = [one.row(known[one.setting]) for one in compared(name)]
    if rows:
        yield from ("### Defaults", "")
        yield from _table(COLUMNS, rows)


def _example(algorithm: Algorithm[Any]) -> Any:
    """An experiment that evaluates, with stand-ins for what has to be set. Nothing of it is checked or read."""
    nested: dict[str, Any] = {}
    for setting in settings(algorithm.experiment):
        section = nested
        *sections, last = setting.key.split(".")
        for part in sections:
            section = section.setdefault(part, {})
        section[last] = _value(setting)
    experiment = build(algorithm.experiment, nested)
    return replace(experiment, control=replace(experiment.control, evaluate=Frequency(steps=1)))


def _value(setting: Setting) -> Any:
    if setting.required or setting.like or setting.key == "data.evaluate":
        return 1 if setting.type in (int, float) else "…"
    return setting.default


def _drawing(algorithm: Algorithm[Any], experiment: Any) -> Iterator[str]:
    """Mermaid's text, which GitHub draws."""
    graph = algorithm.graph(experiment)
    yield "flowchart LR"
    calls = {call: graph.calls[call] for call in topological_order(graph)}
    rows = {"train": "rows", "eval": "eval_rows"}
    for dataset, node in rows.items():
        yield f"  subgraph {dataset}{'uation' if dataset == 'eval' else ''}"
        yield f'    {node}(["rows"])'
        for mfc in calls.values():
            if mfc.dataset == dataset:
                left, right = ("[[", "]]") if mfc.kind == "train_step" else ("[", "]")
                yield f'    {mfc.name}{left}"{mfc.name}<br/>{mfc.role} · {_kind(mfc)}"{right}'
        yield "  end"
    for call, mfc in calls.items():
        made = producers(graph, call)
        given = [key for key in mfc.inputs if not any(key in keys for keys in made.values())]
        for source, keys in {rows[mfc.dataset]: given, **made}.items():
            if keys:
                yield f'  {source} -- "{", ".join(keys)}" --> {call}'
    for train, reader, kind, steps, _ in sorted(graph.edges):
        if kind == "version":
            yield f"  {train} -. {steps} steps on .-> {reader}" if steps > 1 else f"  {train} -.-> {reader}"


def _call(mfc: MFC, metrics: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    makes = ", ".join(mfc.outputs) or f"{mfc.role}'s parameters" + "".join(f"; shows {key}" for key in mfc.shown)
    return mfc.name, mfc.role, _kind(mfc), ", ".join(mfc.inputs), makes, ", ".join(metrics.get(mfc.name, ()))


def _kind(mfc: MFC) -> str:
    return f"{mfc.kind} ({mfc.method})" if mfc.method else mfc.kind


def _roles(algorithm: Algorithm[Any]) -> Iterator[tuple[str, ...]]:
    hints = get_type_hints(algorithm.experiment)
    for role, kind in algorithm.roles.items():
        yield role, "none" if kind.head is None else f"with a {kind.head} head", hints[role].__name__


def _own_settings(algorithm: Algorithm[Any]) -> Iterator[Setting]:
    """Those of the sections that the algorithm's own file defines; what its roles and others have is in the help."""
    for name, hint in get_type_hints(algorithm.experiment).items():
        own = is_dataclass(hint) and hint.__module__ == algorithm.experiment.__module__
        if own and name not in algorithm.roles and name not in ExperimentConfig.__dataclass_fields__:
            assert isinstance(hint, type)
            yield from settings(hint, prefix=f"{name}.")


def _setting(setting: Setting) -> tuple[str, ...]:
    default = "required" if setting.required else "null" if setting.default is None else str(setting.default)
    return f"`{setting.key}`", default.lower() if isinstance(setting.default, bool) else default, setting.help


def _table(columns: Iterable[str], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """Nothing where there are no rows."""
    titles, lines = list(columns), list(rows)
    if lines:
        yield from (f"| {' | '.join(titles)} |", f"|{'---|' * len(titles)}")
        yield from (f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in lines)
        yield ""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)
