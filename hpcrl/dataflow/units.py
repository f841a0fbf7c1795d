"""The units of a step: what a graph says that each consumes, reads and changes. Pure."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from hpcrl.dataflow.graph import MFC, Graph, changed_by, producers, topological_order
from hpcrl.dataflow.tasks import Task, Unit, Version

Parts = Mapping[str, Sequence[Sequence[str]]]
"""call → the sample ids of each of its parts"""


def units_of(
    graph: Graph,
    step: int,
    calls: Collection[str],
    parts: Parts,
    told: Collection[Unit] = (),
    replicas: Mapping[str, int] = {},
    oldest: int = 0,
    known: Mapping[str, Mapping[str, Unit]] = {},
) -> list[Task]:
    """The units of some calls in a step, each after those that it consumes, calls in topological order.

    A part without ids is no unit; a train_step is one unit of all its parts, even of none, a blend one without samples.
    Those that were `told` are left out. `replicas` says at which of its role's replicas a call is made, where not at
    home. No version is older than that of step `oldest`. `known` are the units of other calls, by sample.

    Raises ValueError where a call is not in the graph or has no parts, a sample is in two parts, or nobody makes it for
    who consumes it.
    """
    unknown = sorted(set(calls) - set(graph)) or sorted(set(calls) - parts.keys())
    if unknown:
        raise ValueError(f"step {step}: calls {unknown} are not in the graph or have no partition")
    changed, cuts = changed_by(graph), _Cuts()
    made = {call: _Made({}, (), units) for call, units in known.items()}
    tasks: list[Task] = []
    for call in topological_order(graph):
        if call not in calls:
            continue
        mfc = graph.calls[call]
        cut = cuts.of(step, call, parts[call])
        samples = _samples(step, mfc, call, cut)
        made[call] = _Made(samples, cut.whole)
        makers = {producer: made.get(producer, _Made({}, ())) for producer in producers(graph, call)}
        reads = _version(mfc, step, changed, replicas.get(call, 0), oldest)
        until = step + max((each.lag for each in graph.calls.values() if each.role == mfc.changes), default=0)
        new = [(unit, ids) for unit, ids in samples.items() if unit not in told]
        tasks += [Task(unit, _consumed(unit, ids, makers), reads, mfc.changes, until) for unit, ids in new]
    return tasks


def units_in_rounds(
    graph: Graph,
    step: int,
    call: str,
    rounds: Parts,
    told: Collection[Unit] = (),
    before: Mapping[str, Unit] = {},
    replicas: Mapping[str, int] = {},
    oldest: int = 0,
) -> tuple[list[Task], dict[str, Unit]]:
    """The units of a call that a step makes in rounds, whose names and parts these are, in their order; and which of
    them is the last that each sample has. Each consumes what the rounds before have made of its samples, as of some the
    step before did, in these units. Else as `units_of`."""
    mfc, made = graph.calls[call], dict(before)
    reads = _version(mfc, step, changed_by(graph), replicas.get(call, 0), oldest)
    tasks: list[Task] = []
    for name, parts in rounds.items():
        samples = _samples(step, mfc, name, _Cuts().of(step, name, parts))
        new = [(unit, ids) for unit, ids in samples.items() if unit not in told]
        tasks += [Task(unit, tuple(sorted({made[each] for each in ids if each in made})), reads) for unit, ids in new]
        made |= {sample: unit for unit, ids in samples.items() for sample in ids}
    return tasks, {sample: unit for sample, unit in made.items() if unit.step == step}


class _Cut(NamedTuple):
    """The samples of each part, and all."""

    parts: list[frozenset[str]]
    whole: frozenset[str]


class _Cuts:
    """Of a step's calls, most of which have their samples cut alike: these have one object."""

    def __init__(self) -> None:
        self._known: list[tuple[Sequence[Sequence[str]], _Cut]] = []

    def of(self, step: int, call: str, parts: Sequence[Sequence[str]]) -> _Cut:
        if (known := next((cut for other, cut in self._known if other == parts), None)) is not None:
            return known
        ids = [frozenset(part) for part in parts]
        cut = _Cut(ids, frozenset[str]().union(*ids))
        if sum(map(len, ids)) != len(cut.whole):
            raise ValueError(f"step {step} {call}: a sample is in two parts")
        self._known.append((parts, cut))
        return cut


class _Made:
    """Which unit of a call makes a sample: those of a step that have these, or what is known of it."""

    def __init__(
        self, units: Mapping[Unit, frozenset[str]], whole: Collection[str], known: Mapping[str, Unit] | None = None
    ) -> None:
        self._units = units
        self._whole = whole
        self._by_part = {samples: unit for unit, samples in units.items()}
        self._by_sample = known

    def makers_of(self, ids: frozenset[str]) -> Collection[Unit]:
        """Those that share a sample with these. Raises KeyError where nobody makes one of them."""
        if not ids:
            return ()
        if (alone := self._by_part.get(ids)) is not None:
            return (alone,)
        if ids == self._whole:
            return self._units
        if self._by_sample is None:
            self._by_sample = {sample: unit for unit, samples in self._units.items() for sample in samples}
        # Samples of one part have one object: to hash it once for each would take longer than all else.
        return {id(made): made for made in map(self._by_sample.__getitem__, ids)}.values()

    def lacks(self, ids: frozenset[str]) -> list[str]:
        known = self._by_sample or {}
        return sorted(sample for sample in ids if sample not in known)


def _samples(step: int, mfc: MFC, name: str, cut: _Cut) -> dict[Unit, frozenset[str]]:
    """Unit of a call → its samples."""
    of_units = [cut.whole] if mfc.changes else cut.parts
    return {Unit(step, name, part): samples for part, samples in enumerate(of_units) if samples or mfc.changes}


def _consumed(unit: Unit, ids: frozenset[str], makers: Mapping[str, _Made]) -> tuple[Unit, ...]:
    """The parts of each producer that share a sample with a unit."""
    found: set[Unit] = set()
    for producer, maker in makers.items():
        try:
            found.update(maker.makers_of(ids))
        except KeyError:
            raise ValueError(f"{unit} needs {maker.lacks(ids)[:5]} of {producer}, which has no such samples") from None
    return tuple(sorted(found))


def _version(mfc: MFC, step: int, changed: Collection[str], replica: int, oldest: int) -> Version | None:
    """Calls on evaluation data, and blends, read what their own step has made, others what it is to change.

    What nothing changes has one version, and is read at home whenever it may be.
    """
    if mfc.blends:
        return Version(mfc.blends, step)
    if mfc.changes or (mfc.role not in changed and not replica):
        return None
    newest = step if mfc.dataset == "eval" else step - 1 - mfc.lag
    return Version(mfc.role, max(newest, oldest) if mfc.role in changed else 0, replica)


def furthest_behind(graph: Graph) -> int:
    """How many versions a call may be behind at most."""
    return max((graph.calls[call].lag for call in graph), default=0)


def window(graph: Graph, room: int = 2) -> int:
    """How many steps are open at a time: one more for every version that a call may be behind."""
    return room + furthest_behind(graph)
