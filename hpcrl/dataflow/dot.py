"""A dataflow graph in Graphviz's language: data from left to right, parameters back on dashed lines, evaluation apart.

What a line carries is a node on it, so that no line hides the words. "order" edges (a train_step or blend after the
reads of what it overwrites) are left out: each runs beside a dashed line, the other way.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from html import escape
from types import MappingProxyType

import networkx as nx

from hpcrl.dataflow.graph import mfc_of, producers, topological_order

COLOURS = MappingProxyType({"actor": "#2563ab", "critic": "#b4571a", "reference": "#6b4fa0", "reward": "#2e7d4f"})
OTHER_COLOURS = ("#9b2c5e", "#1b7c85", "#7a6a10", "#4a5bd0")
GREY = "#5b6570"
DATA_SETS: Mapping[str, str] = MappingProxyType({"train": "data set", "eval": "evaluation set"})
HEAD = f"""digraph dataflow {{
rankdir=LR; nodesep=0.28; ranksep=0.45; pad=0.3; fontname=Helvetica; fontsize=10; fontcolor="{GREY}"
label="solid: data    dashed: parameters    thick frame: changes parameters"; labelloc=b; labeljust=l
node [fontname=Helvetica; fontsize=10; shape=plaintext; margin="0.07,0"; width=0; height=0.2; penwidth=1.2]
edge [arrowsize=0.6; penwidth=1.2]; subgraph cluster_train {{ label=""; peripheries=0 }}
subgraph cluster_eval {{ label=evaluation; labelloc=t; color="#b8c0c8"; style="rounded,dotted" }}"""
BOX = 'shape=box; style="rounded,filled"; margin="0.2,0.07"; height=0.5'
_quoted = partial(json.dumps, ensure_ascii=False)


def to_dot(graph: nx.DiGraph) -> str:
    """Equal graphs give equal text."""
    mfcs = {call: mfc_of(graph, call) for call in topological_order(graph)}
    others = sorted({mfc.role for mfc in mfcs.values()} - COLOURS.keys())
    of_role = {role: OTHER_COLOURS[i % len(OTHER_COLOURS)] for i, role in enumerate(others)} | dict(COLOURS)
    colours = dict.fromkeys(DATA_SETS.values(), GREY) | {call: of_role[mfc.role] for call, mfc in mfcs.items()}
    lines = [HEAD]
    for lane, name in DATA_SETS.items():
        if any(mfc.dataset == lane for mfc in mfcs.values()):
            lines.append(_in(lane, GREY, [f'"{name}" [label="{name}"; fontsize=12; {BOX}]']))
    for call, mfc in mfcs.items():
        words = f'<b><font point-size="12">{call}</font></b><br/>{escape(mfc.role)} · {mfc.kind}'
        frame = f"{BOX}; penwidth=2.6" if mfc.changes else BOX
        lines.append(_in(mfc.dataset, colours[call], [f'"{call}" [label=<{words}>; {frame}]']))
    for (lane, source, keys), readers in _flows(graph).items():
        lines.append(_in(lane, colours[source], _flow(source, ", ".join(keys), readers)))
    for train, reader, steps in sorted(graph.edges(data="steps")):
        if graph.edges[train, reader]["kind"] == "version":
            lines += _version(mfcs[train].role, train, reader, steps, colours[train], mfcs[reader].dataset)
    return "\n".join([*lines, "}\n"])


def _flows(graph: nx.DiGraph) -> dict[tuple[str, str, tuple[str, ...]], dict[int, list[str]]]:
    """(Data set of the samples, who makes keys, keys) → how many columns on → the calls that read just these keys."""
    data = nx.subgraph_view(graph, filter_edge=lambda *ends: graph.edges[ends]["kind"] == "data")
    columns = {call: at for at, calls in enumerate(nx.topological_generations(data), 1) for call in sorted(calls)}
    flows: dict[tuple[str, str, tuple[str, ...]], dict[int, list[str]]] = {}
    for call, column in columns.items():
        mfc, made = mfc_of(graph, call), producers(graph, call)
        given = tuple(key for key in mfc.inputs if not any(key in keys for keys in made.values()))
        for source, keys in {**({DATA_SETS[mfc.dataset]: given} if given else {}), **made}.items():
            readers = flows.setdefault((mfc.dataset, source, keys), {})
            readers.setdefault(column - columns.get(source, 0), []).append(call)
    return flows


def _flow(source: str, keys: str, readers: Mapping[int, Iterable[str]]) -> Iterator[str]:
    """One line out of a call or data set. It passes columns of calls, and forks before each in which it is read."""
    end = _quoted(f"{source}: {keys}")
    yield f'{end} [label={_quoted(escape(keys))}]; "{source}":e -> {end}:w [dir=none; weight=4]'
    for column, calls in readers.items():
        if column > 1:
            fork = _quoted(f"{source}: {keys}, {column}")
            yield f"{fork} [shape=point; width=0.01]; {end}:e -> {fork} [dir=none]"
            end = fork
        yield f"{end}:e -> {{ {' '.join(map(_quoted, calls))} }}"


def _version(role: str, train: str, reader: str, steps: int, colour: str, lane: str) -> Iterator[str]:
    """A role's parameters on their way back, or down to evaluation, which keeps its place on the left."""
    when = {0: "same step", 1: "next step"}.get(steps, f"{steps} steps on")
    name, words = _quoted(f"{train}: {reader}"), _quoted(escape(f"{role} parameters, {when}"))
    yield _in(lane, colour, [f"{name} [label={words}]"])
    yield f'"{reader}" -> {name}:w [color="{colour}"; style=dashed; dir=back]'
    yield f'{name}:e -> "{train}" [color="{colour}"; style=dashed; dir=none; constraint={int(lane == "train")}]'


def _in(lane: str, colour: str, statements: Iterable[str]) -> str:
    look = f'node [color="{colour}"; fontcolor="{colour}"; fillcolor="{colour}18"]; edge [color="{colour}"]'
    return f"subgraph cluster_{lane} {{ {look}; {'; '.join(statements)} }}"
