"""The dataflow graph: model function calls, and who must come before whom. Pure description; runs nothing.

An edge has a `kind`, and `steps`, the number of steps it reaches ahead (0: within a step):

- "data": the source makes `keys` that the target reads.
- "version": a role's train_step or blend makes the parameters that the call reads. Calls on training data read those
  of the step `1 + lag` steps back (lag 0 is on-policy); blends, and calls on evaluation data, those of their own step.
- "order": a call reads parameters that this train_step or blend overwrites, hence comes before it.
"""

import difflib
import heapq
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import Literal, NamedTuple

import msgspec

from hpcrl.dataflow.dispatched import Dispatched
from hpcrl.dataflow.segment import Segment
from hpcrl.errors import ConfigurationError, Problem

Kind = Literal["generate", "inference", "train_step", "evaluate", "blend"]
Dataset = Literal["train", "eval"]
Rows = Literal["drawn", "chosen"]

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


class MFC(msgspec.Struct, frozen=True):
    """One model function call, in a recipe and in the plan. `inputs` and `outputs` are keys of the graph.

    The remaps exist for a call that appears twice under different keys: the role's code sees graph key `k` as
    `input_remap[k]`, and what it returns as `k` is `output_remap[k]` in the graph. `dataset` names the data set
    whose samples the call works on. `lag` says how many versions the parameters that a call reads may be behind,
    `method` which method of the role's class it is. A `greedy` generate takes the likeliest token each time, whatever
    the settings say of sampling.

    A train_step changes its role's parameters and has no outputs. Under `shown` are columns that it has before its
    loss, as advantages: no call reads them, and the step's archive has them of the samples that it keeps. A blend
    changes its role's by those of the role `blends`, as the train_step of this role has made them in the same step; it
    has neither rows nor outputs.

    In a recipe with a choice, `rows` says whether a generation or an inference on training data works on all rows that
    a step has drawn, or on those only that it has chosen, as its train_steps always do.
    """

    name: str
    role: str
    kind: Kind
    inputs: tuple[str, ...]
    outputs: tuple[str, ...] = ()
    input_remap: dict[str, str] = {}
    output_remap: dict[str, str] = {}
    dataset: Dataset = "train"
    lag: int = 0
    method: str = ""
    """Empty for the method that has the name of the call's kind."""
    greedy: bool = False
    rows: Rows = "drawn"
    shown: tuple[str, ...] = ()
    blends: str = ""
    dispatch: Dispatched = Dispatched()

    @property
    def segment(self) -> Segment | None:
        """What a call that draws responses draws of them; None: all at once."""
        return self.dispatch.segment

    @property
    def in_rounds(self) -> bool:
        return self.dispatch.in_rounds

    @property
    def changes(self) -> str:
        """The role whose parameters it changes; empty where it changes none."""
        return self.role if self.kind in ("train_step", "blend") else ""

    @property
    def precedes_choice(self) -> bool:
        """Whether it is made before a step has chosen its rows, where it does; the others wait for that."""
        return not self.changes and self.dataset == "train" and self.rows == "drawn"


class Edge(NamedTuple):
    """The source comes before the target."""

    source: str
    target: str
    kind: Literal["data", "version", "order"]
    steps: int = 0
    keys: tuple[str, ...] = ()


@dataclass(frozen=True)
class Graph:
    """Calls by name, and what is between them: at most one edge from one call to another. Iterates over the names."""

    calls: Mapping[str, MFC]
    edges: tuple[Edge, ...]
    dataset_keys: frozenset[str]
    eval_keys: frozenset[str]

    def __iter__(self) -> Iterator[str]:
        return iter(self.calls)

    def into(self, call: str) -> Sequence[Edge]:
        return self._into.get(call, ())

    @cached_property
    def _into(self) -> Mapping[str, Sequence[Edge]]:
        found: dict[str, list[Edge]] = {}
        for edge in self.edges:
            found.setdefault(edge.target, []).append(edge)
        return found

    def before(self, kind: str | None = None) -> dict[str, list[str]]:
        """Call → the calls that come before it in its own step, by edges of this kind or of any."""
        edges = [edge for edge in self.edges if edge.steps == 0 and kind in (None, edge.kind)]
        return {call: sorted(edge.source for edge in edges if edge.target == call) for call in self}


def recipe_name(name: str, calls: Collection[str]) -> str:
    """The call of a recipe that a script asks for under a name: the second time in a step that is `actor_gen_2`."""
    if name in calls:
        return name
    base, _, turn = name.rpartition("_")
    return base if turn.isdigit() and base in calls else name


def changes(calls: Iterable[MFC]) -> dict[str, str]:
    """train_step or blend → the role that it changes, in the order of the calls."""
    return {call.name: call.changes for call in calls if call.changes}


def build_graph(calls: Sequence[MFC], dataset_keys: Collection[str], eval_keys: Collection[str] = ()) -> Graph:
    """Derive the edges from keys and roles. The result does not depend on the order of `calls`.

    Raises:
        ConfigurationError: all of: odd or duplicate names, double producers, keys that nobody makes or that belong
            to the other data set, remaps and lags that do not fit, two changes of one role, cycles.
    """
    calls = sorted(calls, key=lambda mfc: mfc.name)
    from_data = {"train": frozenset(dataset_keys), "eval": frozenset(eval_keys)}
    problems = [*_name_problems(calls), *_call_problems(calls), *_key_problems(calls, from_data), *_row_problems(calls)]
    if problems:
        raise ConfigurationError(problems)
    data = tuple(_data_edges(calls))
    edges = (*data, *_version_edges(calls, {(edge.source, edge.target) for edge in data}))
    graph = Graph({mfc.name: mfc for mfc in calls}, edges, from_data["train"], from_data["eval"])
    if problems := [*_cycle_problems(graph), *_order_of_lag_problems(graph)]:
        raise ConfigurationError(problems)
    return graph


def lags_beyond_choice(graph: Graph, key: str) -> Iterator[str]:
    """Calls that are further behind than those by which steps choose: by the rows of this key, of all rows drawn.

    What changes a role waits until it is known on which rows the calls work that are behind it. So the choice of those
    rows must not wait for what follows the change.
    """
    changed = changed_by(graph)
    (maker,) = (mfc.name for mfc in graph.calls.values() if key in mfc.outputs)
    for other in sorted({maker} | _ancestors(graph.before("data"), maker)):
        decides = graph.calls[other]
        for mfc in graph.calls.values() if decides.role in changed else ():
            if mfc.role in changed and decides.lag < mfc.lag:
                yield (
                    f"{mfc.name}.lag is {mfc.lag}, but steps choose by {key!r}, for which they need {other}, whose lag "
                    f"is {decides.lag}: parameters are overwritten before it is known on which rows {mfc.name} reads "
                    f"them. Raise {other}.lag or lower {mfc.name}.lag"
                )


def changed_by(graph: Graph) -> dict[str, str]:
    """Role → the train_step or blend that changes its parameters."""
    return {mfc.changes: mfc.name for mfc in graph.calls.values() if mfc.changes}


def producers(graph: Graph, call: str) -> dict[str, tuple[str, ...]]:
    """Call → the keys of it that `call` reads. Keys of a data set are not in it."""
    return {edge.source: edge.keys for edge in graph.into(call) if edge.kind == "data"}


def topological_order(graph: Graph) -> tuple[str, ...]:
    """The calls in an order that respects every edge within a step; ties are broken by name."""
    sorter = TopologicalSorter(graph.before())
    sorter.prepare()
    ready, order = sorted(sorter.get_ready()), []
    while ready:
        order.append(heapq.heappop(ready))
        sorter.done(order[-1])
        for call in sorter.get_ready():
            heapq.heappush(ready, call)
    return tuple(order)


def _data_edges(calls: Sequence[MFC]) -> Iterator[Edge]:
    maker = {key: mfc.name for mfc in calls for key in mfc.outputs}
    for mfc in calls:
        for source in sorted({maker[key] for key in mfc.inputs if key in maker}):
            keys = tuple(key for key in mfc.inputs if maker.get(key) == source)
            yield Edge(source, mfc.name, "data", keys=keys)


def _version_edges(calls: Sequence[MFC], joined: Collection[tuple[str, str]]) -> Iterator[Edge]:
    """Reads of a version after the call that makes it, and before it overwrites that version.

    Where data goes from the reader to that call, they are `joined` already.
    """
    changed = {mfc.changes: mfc.name for mfc in calls if mfc.changes}
    for mfc in calls:
        change = changed.get(mfc.blends or mfc.role, mfc.name)
        if change == mfc.name:
            continue
        ahead = 1 if mfc.dataset == "eval" or mfc.blends else 0
        yield Edge(change, mfc.name, "version", 0 if ahead else 1 + mfc.lag)
        if (mfc.name, change) not in joined:
            yield Edge(mfc.name, change, "order", ahead)


def _name_problems(calls: Sequence[MFC]) -> Iterator[str]:
    for name, count in Counter(mfc.name for mfc in calls).items():
        if count > 1:
            yield f"{count} calls are named {name!r}; every call needs a name of its own: rename all but one"
        if not _NAME.fullmatch(name):
            yield f"call name {name!r} becomes part of file names: use letters, digits and _ after a first letter"


def _call_problems(calls: Sequence[MFC]) -> Iterator[str | Problem]:
    changing: dict[str, str] = {}
    for mfc in calls:
        yield from _remap_problems(mfc)
        yield from _lag_problems(mfc)
        if mfc.greedy and mfc.kind != "generate":
            yield f"{mfc.name}.greedy is true, but only generate draws tokens, and it is {mfc.kind}: set it to false"
        yield from _blend_problems(mfc, calls)
        if mfc.shown and mfc.kind != "train_step":
            yield f"{mfc.name}.shown is {list(mfc.shown)}, but it is no train_step: put them among its outputs"
        others = [key for other in calls if other != mfc for key in other.shown]
        taken = {key for other in calls for key in (*other.outputs, *other.inputs)}.union(others)
        for key in sorted(taken.intersection(mfc.shown)):
            yield f"{mfc.name} shows {key!r}, which is a key of another call already: give it a name of its own"
        if not mfc.changes:
            continue
        if mfc.outputs:
            yield f"{mfc.name} is a {mfc.kind} with outputs {list(mfc.outputs)}; make them in an inference call"
        if mfc.dataset == "eval":
            yield f"{mfc.name} is a {mfc.kind} on evaluation data; set its dataset to 'train' or its kind to 'evaluate'"
        if mfc.role in changing:
            yield (
                f"{changing[mfc.role]} and {mfc.name} change role {mfc.role!r}; a role has one train_step or blend: "
                "merge them"
            )
        changing[mfc.role] = mfc.name


def _blend_problems(mfc: MFC, calls: Sequence[MFC]) -> Iterator[str]:
    if mfc.kind != "blend":
        if mfc.blends:
            yield f"{mfc.name}.blends is {mfc.blends!r}, but it is a {mfc.kind}, no blend: leave it out"
        return
    if mfc.inputs:
        yield f"{mfc.name} is a blend with inputs {list(mfc.inputs)}; it has no rows: leave them out"
    trained = [call.role for call in calls if call.kind == "train_step"]
    if mfc.blends not in trained:
        yield f"{mfc.name}.blends is {mfc.blends!r}, which no call trains: take one of {trained}"


def _remap_problems(mfc: MFC) -> Iterator[str]:
    for key in mfc.input_remap.keys() - set(mfc.inputs):
        yield f"{mfc.name}.input_remap renames {key!r}, which is not among its inputs {list(mfc.inputs)}"
    for key in set(mfc.output_remap.values()) - set(mfc.outputs):
        yield f"{mfc.name}.output_remap gives {key!r}, which is not among its outputs {list(mfc.outputs)}"
    seen_by_role = [mfc.input_remap.get(key, key) for key in mfc.inputs]
    if len(set(seen_by_role)) < len(seen_by_role):
        yield f"{mfc.name}.input_remap gives two inputs one name: {seen_by_role}; give each its own"
    if len(set(mfc.output_remap.values())) < len(mfc.output_remap):
        yield f"{mfc.name}.output_remap gives two outputs one name: {dict(mfc.output_remap)}; give each its own"


def _lag_problems(mfc: MFC) -> Iterator[str | Problem]:
    if mfc.lag < 0:
        text = f"{mfc.name}.lag is {mfc.lag}; it counts versions that a call may be behind: 0 (on-policy) or more"
        yield Problem(("lag",), text)
    if mfc.lag > 0 and (mfc.changes or mfc.dataset == "eval"):
        yield (
            f"{mfc.name}.lag is {mfc.lag}, but a train_step, a blend, or a call on evaluation data, reads the "
            "newest parameters: set it to 0"
        )


def _key_problems(calls: Sequence[MFC], from_data: Mapping[str, Collection[str]]) -> Iterator[str]:
    """Every key has one origin, and a call reads only keys of its own samples."""
    for key in sorted(set(from_data["train"]) & set(from_data["eval"])):
        yield f"key {key!r} comes from both data sets; name the evaluation's otherwise, as in 'eval_{key}'"
    makers: dict[str, list[MFC]] = {}
    for mfc in calls:
        for key in mfc.outputs:
            makers.setdefault(key, []).append(mfc)
    for key, made_by in sorted(makers.items()):
        yield from _producer_problems(key, [mfc.name for mfc in made_by], from_data)
    for mfc in calls:
        for key in mfc.inputs:
            sources = {source for source, keys in from_data.items() if key in keys}
            sources |= {maker.dataset for maker in makers.get(key, ())}
            yield from _input_problems(mfc, key, sources, sorted({*makers, *from_data[mfc.dataset]}))


def _producer_problems(key: str, names: Sequence[str], from_data: Mapping[str, Collection[str]]) -> Iterator[str]:
    if len(names) > 1:
        yield f"key {key!r} is made by {' and '.join(names)}; rename it in all but one of them with output_remap"
    if any(key in keys for keys in from_data.values()):
        yield f"key {key!r} is made by {names[0]}, but comes from the data set; rename it there with output_remap"


def _input_problems(mfc: MFC, key: str, sources: Collection[str], known: Sequence[str]) -> Iterator[str]:
    if not sources:
        near = difflib.get_close_matches(key, known, n=1)
        guess = f"did you mean {near[0]!r}? " if near else ""
        yield (
            f"{mfc.name} needs key {key!r}, which no call makes and no data set has: {guess}"
            f"Add it to the outputs of a call, or take one of {list(known)}"
        )
    elif mfc.dataset not in sources:
        other = next(iter(sources))
        yield (
            f"{mfc.name} works on {mfc.dataset} samples, but key {key!r} is of {other} samples: "
            f"change its dataset to {other!r}, or read a key of its own samples"
        )


def _row_problems(calls: Sequence[MFC]) -> Iterator[str]:
    """A call on all rows drawn reads none that are made of the chosen ones."""
    late = {key: mfc.name for mfc in calls if mfc.rows == "chosen" for key in mfc.outputs}
    for mfc in calls:
        for key in mfc.inputs if mfc.precedes_choice else ():
            if key in late:
                yield (
                    f"{mfc.name} works on all rows drawn, but {late[key]} makes key {key!r} of the chosen ones only: "
                    f"change the rows of {mfc.name} to 'chosen', or those of {late[key]} to 'drawn'"
                )


def _cycle_problems(graph: Graph) -> Iterator[str]:
    try:
        TopologicalSorter(graph.before()).prepare()
    except CycleError as error:
        cycle: list[str] = error.args[1][:-1]
        first = cycle.index(min(cycle))
        calls = [*cycle[first:], *cycle[: first + 1]]
        path = " → ".join(calls)
        reasons = [f"{target} {_why(graph, source, target)} {source}" for source, target in pairwise(calls)]
        yield f"the calls {path} wait for each other ({'; '.join(reasons)}): drop one of these dependencies"


def _order_of_lag_problems(graph: Graph) -> Iterator[str]:
    """What changes a role waits for the calls that are behind it, so these must not wait for calls that follow it."""
    changed, makers = changed_by(graph), graph.before("data")
    for mfc in graph.calls.values():
        for other in sorted(_ancestors(makers, mfc.name)) if mfc.role in changed else ():
            before = graph.calls[other]
            if before.role in changed and before.lag < mfc.lag:
                yield (
                    f"{mfc.name}.lag is {mfc.lag}, but it works on what {other} makes, whose lag is {before.lag}: "
                    f"parameters are overwritten before {mfc.name} could read them. Raise {other}.lag or lower "
                    f"{mfc.name}.lag"
                )


def _ancestors(before: Mapping[str, Collection[str]], call: str) -> set[str]:
    found, seen = set[str](), [call]
    while seen:
        new = set(before[seen.pop()]) - found
        found |= new
        seen += new
    return found


def _why(graph: Graph, source: str, target: str) -> str:
    edge = next(edge for edge in graph.into(target) if edge.source == source)
    if edge.kind == "data":
        return f"reads {', '.join(edge.keys)} of"
    return "reads the parameters after" if edge.kind == "version" else "overwrites the parameters read by"
