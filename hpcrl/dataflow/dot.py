"""A dataflow graph in Graphviz's language: data from left to right, parameters back on dashed lines, evaluation apart.

Where calls have places, each box says its own, and a dashed line to a copy of a role's home names that copy. A place
that all calls share is said once, below.

What a line carries is a node on it, so that no line hides the words. "order" edges (a train_step or blend after the
reads of what it overwrites) are left out: each runs beside a dashed line, the other way.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from html import escape
from types import MappingProxyType
from typing import NamedTuple

from hpcrl.dataflow.graph import MFC, Graph, producers, topological_order

COLOURS = MappingProxyType({"actor": "#2563ab", "critic": "#b4571a", "reference": "#6b4fa0", "reward": "#2e7d4f"})
OTHER_COLOURS = ("#9b2c5e", "#1b7c85", "#7a6a10", "#4a5bd0")
GREY = "#5b6570"
DATA_SETS: Mapping[str, str] = MappingProxyType({"train": "data set", "eval": "evaluation set"})
HEAD = f"""digraph dataflow {{
rankdir=LR; nodesep=0.28; ranksep=0.45; pad=0.3; fontname=Helvetica; fontsize=10; fontcolor="{GREY}"
labelloc=b; labeljust=l
node [fontname=Helvetica; fontsize=10; shape=plaintext; margin="0.07,0"; width=0; height=0.2; penwidth=1.2]
edge [arrowsize=0.6; penwidth=1.2]; subgraph cluster_train {{ label=""; peripheries=0 }}
subgraph cluster_eval {{ label=evaluation; labelloc=t; color="#b8c0c8"; style="rounded,dotted" }}"""
LEGEND = "solid: data    dashed: parameters    thick frame: changes parameters"
OF_COPIES = "@: a copy of the role, to which its parameters are moved"
BOX = 'shape=box; style="rounded,filled"; margin="0.2,0.07"; height=0.5'
_quoted = partial(json.dumps, ensure_ascii=False)


class Place(NamedTuple):
    """Where a call is made, in words."""

    model: str
    """The role, or the copy of it that makes the call: `actor@1`."""
    where: str
    """Layout and workers: `d4p2 on 0-7`."""


def to_dot(graph: Graph, places: Mapping[str, Place] = MappingProxyType({})) -> str:
    """Equal graphs give equal text. `places` has all calls, or none where there is nothing to say of them."""
    mfcs = {call: graph.calls[call] for call in topological_order(graph)}
    others = sorted({mfc.role for mfc in mfcs.values()} - COLOURS.keys())
    of_role = {role: OTHER_COLOURS[i % len(OTHER_COLOURS)] for i, role in enumerate(others)} | dict(COLOURS)
    colours = dict.fromkeys(DATA_SETS.values(), GREY) | {call: of_role[mfc.role] for call, mfc in mfcs.items()}
    lines = [HEAD, f"label={_quoted(_legend(mfcs, places))}"]
    for lane, name in DATA_SETS.items():
        if any(mfc.dataset == lane for mfc in mfcs.values()):
            lines.append(_in(lane, GREY, [f'"{name}" [label="{name}"; fontsize=12; {BOX}]']))
    differ = len({place.where for place in places.values()}) > 1
    for call, mfc in mfcs.items():
        frame = f"{BOX}; penwidth=2.6" if mfc.changes else BOX
        words = _words(mfc, places.get(call), differ)
        lines.append(_in(mfc.dataset, colours[call], [f'"{call}" [label=<{words}>; {frame}]']))
    for (lane, source, keys), readers in _flows(graph).items():
        lines.append(_in(lane, colours[source], _flow(source, ", ".join(keys), readers)))
    for train, reader, kind, steps, _ in sorted(graph.edges):
        if kind == "version":
            lines += _version(mfcs[train], mfcs[reader], steps, colours[train], _copy(mfcs[reader], places))
    for home, reader in _moved_once(mfcs, places):
        lines += _moved(mfcs[home], mfcs[reader], colours[home], places[reader].model)
    return "\n".join([*lines, "}\n"])


def _legend(mfcs: Mapping[str, MFC], places: Mapping[str, Place]) -> str:
    copies = any(_copy(mfc, places) for mfc in mfcs.values())
    shared = {place.where for place in places.values()}
    everywhere = f"every call: {shared.pop()}" if len(shared) == 1 else ""
    return "    ".join(filter(None, (LEGEND, OF_COPIES if copies else "", everywhere)))


def _words(mfc: MFC, place: Place | None, differ: bool) -> str:
    """What stands in a call's box: its name, who makes it, and where, unless all are made there."""
    said = (
        f'<b><font point-size="12">{mfc.name}</font></b><br/>{escape(place.model if place else mfc.role)} · {mfc.kind}'
    )
    return f"{said}<br/>{escape(place.where)}" if place and differ else said


def _copy(mfc: MFC, places: Mapping[str, Place]) -> str:
    """The copy of its role that makes a call; empty where that is the role's home."""
    model = places[mfc.name].model if mfc.name in places else mfc.role
    return model if model != mfc.role else ""


def _moved_once(mfcs: Mapping[str, MFC], places: Mapping[str, Place]) -> Iterator[tuple[str, str]]:
    """(A call at home, a call of a copy), of roles that nothing changes: no line of versions leads to these copies."""
    changed = {mfc.changes for mfc in mfcs.values()}
    for call, mfc in mfcs.items():
        if mfc.role not in changed and _copy(mfc, places):
            yield next(name for name, at in places.items() if at.model == mfc.role), call


def _flows(graph: Graph) -> dict[tuple[str, str, tuple[str, ...]], dict[int, list[str]]]:
    """(Data set of the samples, who makes keys, keys) → how many columns on → the calls that read just these keys."""
    makers, column_of = graph.before("data"), dict[str, int]()
    for call in topological_order(graph):
        column_of[call] = 1 + max((column_of[maker] for maker in makers[call]), default=0)
    columns = dict(sorted(column_of.items(), key=lambda item: (item[1], item[0])))
    flows: dict[tuple[str, str, tuple[str, ...]], dict[int, list[str]]] = {}
    for call, column in columns.items():
        mfc, made = graph.calls[call], producers(graph, call)
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


def _version(train: MFC, reader: MFC, steps: int, colour: str, copy: str) -> Iterator[str]:
    """A role's parameters on their way back, or down to evaluation, which keeps its place on the left."""
    when = {0: "same step", 1: "next step"}.get(steps, f"{steps} steps on")
    name, words = _quoted(f"{train.name}: {reader.name}"), f"{_parameters(train.role, copy)}, {when}"
    yield _in(reader.dataset, colour, [f"{name} [label={_quoted(escape(words))}]"])
    yield f'"{reader.name}" -> {name}:w [color="{colour}"; style=dashed; dir=back]'
    constraint = int(reader.dataset == "train")
    yield f'{name}:e -> "{train.name}" [color="{colour}"; style=dashed; dir=none; constraint={constraint}]'


def _moved(home: MFC, reader: MFC, colour: str, copy: str) -> Iterator[str]:
    """The parameters of a role that stays as it is, on their way to a copy."""
    name = _quoted(f"{home.name}: {reader.name}, {copy}")
    yield _in(reader.dataset, colour, [f"{name} [label={_quoted(escape(_parameters(home.role, copy)))}]"])
    yield f'"{home.name}" -> {name} [color="{colour}"; style=dashed; dir=none; constraint=0]'
    yield f'{name}:e -> "{reader.name}" [color="{colour}"; style=dashed; dir=forward]'


def _parameters(role: str, copy: str) -> str:
    return f"{role} parameters" + (f" to {copy}" if copy else "")


def _in(lane: str, colour: str, statements: Iterable[str]) -> str:
    look = f'node [color="{colour}"; fontcolor="{colour}"; fillcolor="{colour}18"]; edge [color="{colour}"]'
    return f"subgraph cluster_{lane} {{ {look}; {'; '.join(statements)} }}"
