"""Which calls are made, which workers hold which model: the whole of an attempt before it begins, as one JSON value."""

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

import msgspec

from hpcrl.backends.backend import CutBy
from hpcrl.config.changes import RunSettings, with_nodes
from hpcrl.config.experiment import ExperimentConfig, to_dict
from hpcrl.config.model import Between, shared_with
from hpcrl.dataflow.graph import MFC, Graph, build_graph, changes, recipe_name
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import InternalError
from hpcrl.placement.abilities import cut_by, server_of
from hpcrl.placement.candidate import Candidate, candidate_of
from hpcrl.placement.layouts import Axis, Layout, Ranks, neighbours, parse_layout
from hpcrl.placement.placing import Placed, cpu_roles
from hpcrl.placement.shards import Cut, cut_of
from hpcrl.recipes.algorithm import SCRIPT_HOST, algorithm_of

SUMMED: tuple[Axis, ...] = ("dp", "tp")
"""Along these gradients and activations are added up."""


class ModelName(msgspec.Struct, frozen=True, order=True):
    """A role's model at one place. Replica 0 is its home: there it is trained and saved."""

    role: str
    replica: int = 0

    def __str__(self) -> str:
        return f"{self.role}@{self.replica}" if self.replica else self.role


class Part(msgspec.Struct, frozen=True):
    """The workers of one data-parallel index. The head is the first of the last stage: it gets rows and has results."""

    index: int
    ranks: Ranks
    head: int


class ReplicaPlan(msgspec.Struct, frozen=True, dict=True):
    """The workers of a model, in the order of its layout."""

    model: ModelName
    layout: str
    ranks: Ranks
    trainable: bool
    between: Between = "keep"
    """What becomes of its parameters between its calls."""
    backend: str = ""
    """What holds it there; empty of a role whose backend is no setting."""
    sharded: bool = False
    """Whether several data-parallel ranks have a part of each parameter: then all of them compute in step."""
    served: bool = False
    """Whether a server of its own, beside the first worker of each part, makes its responses."""
    python: str = ""
    """What runs these servers; empty: what runs hpcrl."""
    of: str = ""
    """The role whose model it is, without its adapters, on the same workers; empty of one that has its own."""

    @property
    def placed(self) -> Placed:
        """Where and how it is."""
        return Placed(self.arrangement, self.ranks, self.backend)

    @property
    def is_home(self) -> bool:
        """Whether it is where its role is trained or blended, and saved; the others are moved to, and have no
        optimizer."""
        return self.model.replica == 0

    @property
    def role(self) -> str:
        return self.model.role

    @property
    def cut_by(self) -> CutBy | Literal[""]:
        """What of each parameter they have a part of: its rows or its elements; empty where each has its whole cut."""
        return cut_by(self.backend) if self.sharded else ""

    @cached_property
    def arrangement(self) -> Layout:
        return parse_layout(self.layout)

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        layout = self.arrangement
        ranks_of = [layout.data_part(index, self.ranks) for index in range(layout.dp)]
        return tuple(Part(index, ranks, ranks[-layout.tp]) for index, ranks in enumerate(ranks_of))

    def cut(self, rank: int) -> Cut:
        """What one of its workers has of the model."""
        return cut_of(self.arrangement, self.places[rank])

    @cached_property
    def places(self) -> Mapping[int, int]:
        """Worker → its place in the order of the layout."""
        return {rank: place for place, rank in enumerate(self.ranks)}


class WorkerPlan(msgspec.Struct, frozen=True):
    """Where a worker sits: the slot-th worker of the node-th node. `host` is the class that holds its roles."""

    rank: int
    node: int
    slot: int
    host: str


class Plan(msgspec.Struct, frozen=True, dict=True):
    """All that the master, the agents and the workers agree on."""

    algorithm: str
    calls: tuple[MFC, ...]
    dataset_keys: tuple[str, ...]
    eval_keys: tuple[str, ...]
    at: dict[str, ModelName]
    """Call → the model that makes it."""
    replicas: tuple[ReplicaPlan, ...]
    workers: tuple[WorkerPlan, ...]
    """By rank: the model workers of all nodes, then their CPU workers, then the run's script, where it has one."""
    experiment: dict[str, Any]
    micro_batches: dict[str, int] = {}
    """Call → the most tokens in one of its forward passes on a worker; of those that a model of hpcrl's makes."""
    settings: int = 0
    """The version of the run's settings that `experiment` is."""
    earlier: dict[int, dict[str, Any]] = {}
    """Older versions, under which something is executed again; where and how, `experiment` says for them too."""
    inputs: dict[str, str] = {}
    """Setting → fingerprint of what it names and the workers read."""

    @cached_property
    def nodes(self) -> int:
        return len({worker.node for worker in self.workers})

    @property
    def trained(self) -> tuple[ReplicaPlan, ...]:
        """The homes of the trained roles."""
        return tuple(replica for replica in self.replicas if replica.trainable)

    @property
    def changed(self) -> tuple[ReplicaPlan, ...]:
        """The homes of the roles that train_steps or blends change: what is saved."""
        return tuple(self.home(role) for role in dict.fromkeys(self.changes.values()))

    @cached_property
    def in_rounds(self) -> str:
        """The call that steps make as often as it takes to choose; empty where there is none."""
        return next((call.name for call in self.calls if call.in_rounds), "")

    @property
    def changes(self) -> dict[str, str]:
        """train_step or blend → the role that it changes, in the order of the calls."""
        return changes(self.calls)

    def call(self, name: str) -> MFC:
        """The call of the recipe; a script's second one in a step has a name of its own."""
        return self._calls.get(name) or self._calls[recipe_name(name, self._calls)]

    def replica(self, call: str) -> ReplicaPlan:
        """Where a call is made."""
        return self.placed(self.at[self.call(call).name])

    def placed(self, model: ModelName) -> ReplicaPlan:
        return self._replicas[model]

    @cached_property
    def _calls(self) -> Mapping[str, MFC]:
        return {call.name: call for call in self.calls}

    @cached_property
    def _replicas(self) -> Mapping[ModelName, ReplicaPlan]:
        return {replica.model: replica for replica in self.replicas}

    def home(self, role: str) -> ReplicaPlan:
        """Where a role is trained and saved."""
        return self.placed(ModelName(role))

    def cuts(self, replica: ReplicaPlan) -> str:
        """How a model is cut, as a train_step's record has it: `d2t2p1`, `d2t2p1, experts whole`."""
        whole = self.experiment[replica.role].get("experts") == "whole"
        return f"{replica.layout}, experts whole" if whole else replica.layout

    def neighbours(self, replica: ReplicaPlan, axes: Collection[Axis] = SUMMED) -> tuple[int, ...]:
        """How many workers of one add up among themselves on each node, along any of these axes of a model."""
        nodes = [worker.node for worker in self.workers]
        groups = [group for axis in axes for group in replica.arrangement.groups(axis, replica.ranks)]
        return tuple(sorted({neighbours(group, nodes) for group in groups} - {1}))

    @property
    def host(self) -> str:
        """The class that holds the roles of model workers."""
        return self.workers[0].host

    def parts(self, call: str) -> tuple[Part, ...]:
        """The groups of workers among which the samples of a call are divided."""
        return self._parts[self.call(call).name]

    @cached_property
    def _parts(self) -> Mapping[str, tuple[Part, ...]]:
        return {call.name: self._parts_of(call) for call in self.calls}

    def _parts_of(self, call: MFC) -> tuple[Part, ...]:
        replica = self.placed(self.at[call.name])
        match call.dispatch.goes_to:
            case "ranks":
                return tuple(Part(index, (rank,), rank) for index, rank in enumerate(replica.ranks))
            case "first":
                return (Part(0, (replica.parts[0].head,), replica.parts[0].head),)
        return replica.parts

    def part(self, call: str, index: int) -> Part:
        """The workers of one part of a call.

        A step that was opened for another number of workers keeps its parts: they go round those that there are.
        """
        parts = self.parts(call)
        return parts[index % len(parts)]

    def units(self, call: str) -> int:
        """In how many units the call is made, in steps that open now: one a part, but what changes a role is one."""
        return 1 if self.call(call).changes else len(self.parts(call))

    def working(self, call: str, unit: int) -> tuple[Part, ...]:
        """The parts that work on one unit of a call: one, or all where it changes its role."""
        return self.parts(call) if self.call(call).changes else (self.part(call, unit),)

    def in_step(self, call: str) -> tuple[Part, ...]:
        """The parts that make a call in step, each unit with the others; none where parts don't wait for each other."""
        replica, mfc = self.replica(call), self.call(call)
        goes_to = mfc.dispatch.goes_to
        together = goes_to == "ranks" or (replica.sharded and goes_to == "parts")
        return self.parts(call) if together and not mfc.changes else ()

    def ranks(self, call: str, unit: int) -> Ranks:
        """The workers of one unit of a call, in the order of their layout."""
        return self.replica(call).ranks if self.call(call).changes else self.part(call, unit).ranks

    def peers(self, rank: int) -> Ranks:
        """The workers under the same host as this one, itself among them: who may join a process group."""
        host = self.workers[rank].host
        return tuple(worker.rank for worker in self.workers if worker.host == host)

    def ranks_on(self, node: int) -> Ranks:
        """The workers of a node."""
        return tuple(worker.rank for worker in self.workers if worker.node == node)

    def graph(self) -> Graph:
        return build_graph(self.calls, self.dataset_keys, self.eval_keys)

    def to_json(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self), indent=2)


def read_plan(run: RunDirectory, attempt: int) -> Plan:
    """The plan of an attempt. Raises InternalError where it is damaged."""
    path, advice = run.plan(attempt), f"`hpcrl resume {run.root}` makes another."
    try:
        return plan_from_json(run.files.read_document(path, advice))
    except msgspec.DecodeError as error:
        raise InternalError(f"{path} is damaged: {error}.", advice) from error


def plan_from_json(text: bytes) -> Plan:
    return msgspec.json.decode(text, type=Plan)


def make_plan(
    experiment: ExperimentConfig, candidate: Candidate, nodes: int, seats: Sequence[int] | None = None
) -> Plan:
    """The recipe's roles and calls where the candidate has them, on so many nodes; `seats` are their numbers, where
    they are not the first. Both are valid; nothing is read or made."""
    algorithm = algorithm_of(experiment)
    calls = algorithm.executed(experiment)
    at, replicas = _replicas(experiment, candidate, calls)
    spots = {call.name: candidate.at(placed_as(call), call.role) for call in calls}
    return Plan(
        algorithm=experiment.algorithm,
        calls=calls,
        dataset_keys=tuple(algorithm.rows.keys),
        eval_keys=algorithm.eval_keys(experiment),
        at=at,
        micro_batches={call: spot.micro_batch_tokens for call, spot in spots.items() if spot.micro_batch_tokens},
        replicas=replicas,
        workers=_workers(experiment, range(nodes) if seats is None else seats),
        experiment=to_dict(experiment),
    )


def placed_as(call: MFC) -> str:
    """The call of the recipe that says where a call is made: all segments of one are made where it is."""
    return call.name if call.segment is None else call.segment.of


def plan_for(experiment: ExperimentConfig, nodes: int | None = None) -> Plan:
    """The plan that the settings of roles and `calls` say, on so many nodes, or on the most that the settings have. The
    experiment is valid."""
    nodes = experiment.cluster.most_nodes if nodes is None else nodes
    experiment = with_nodes(experiment, nodes)
    return make_plan(experiment, candidate_of(experiment, nodes), nodes)


def plan_under(settings: RunSettings, seats: Sequence[int], inputs: Mapping[str, str]) -> Plan:
    """The plan of an attempt on the nodes of these numbers, with all the settings that it executes something under, and
    what is read."""
    settings = settings.on(len(seats))
    earlier = {version: to_dict(experiment) for version, experiment in settings.earlier.items()}
    experiment = settings.newest
    plan = make_plan(experiment, candidate_of(experiment, len(seats)), len(seats), seats)
    return msgspec.structs.replace(plan, settings=settings.version, earlier=earlier, inputs=dict(inputs))


def workers_in_words(experiment: ExperimentConfig) -> str:
    """Those of a node: `2 workers`, `8 workers and 1 CPU worker`."""
    models, others = experiment.cluster.workers_per_node, len(cpu_roles(experiment))
    said = f"{models} worker{'s' if models > 1 else ''}"
    return f"{said} and {others} CPU worker{'s' if others > 1 else ''}" if others else said


def _workers(experiment: ExperimentConfig, nodes: Sequence[int]) -> tuple[WorkerPlan, ...]:
    algorithm, slots, owners = algorithm_of(experiment), experiment.cluster.workers_per_node, cpu_roles(experiment)
    seats = [(node, slot, algorithm.host) for node in nodes for slot in range(slots)]
    for node in nodes:
        for slot, role in enumerate(owners, slots):
            host = algorithm.roles[role].host
            assert host is not None, role
            seats.append((node, slot, host))
    if algorithm.script is not None:
        seats.append((nodes[0], slots + len(owners), SCRIPT_HOST))
    return tuple(WorkerPlan(rank, *seat) for rank, seat in enumerate(seats))


def _replicas(
    experiment: ExperimentConfig, candidate: Candidate, calls: Sequence[MFC]
) -> tuple[dict[str, ModelName], tuple[ReplicaPlan, ...]]:
    """Which model makes each call, and all models: of each role its home, then the others in the order of the calls."""
    changed = {call.changes: call.kind == "train_step" for call in calls if call.changes}
    places: dict[str, list[Placed]] = {}
    asked: dict[ModelName, Between] = {}
    at: dict[str, ModelName] = {}
    for call in calls:
        of_role = places.setdefault(call.role, [candidate.homes[call.role].place])
        spot = candidate.at(placed_as(call), call.role)
        if spot.place not in of_role:
            of_role.append(spot.place)
        at[call.name] = ModelName(call.role, of_role.index(spot.place))
        if spot.between is not None:
            asked[at[call.name]] = spot.between
    named = {ModelName(role, number): place for role, of_role in places.items() for number, place in enumerate(of_role)}
    replicas = (
        ReplicaPlan(
            model,
            str(place.layout),
            place.ranks,
            trainable=model.replica == 0 and changed.get(model.role, False),
            between=asked.get(model) or _usual(model, named, changed),
            backend=place.backend,
            sharded=place.layout.dp > 1 and bool(place.backend and cut_by(place.backend)),
            served=server_of(place.backend) is not None,
            python=place.python,
            of=shared_with(experiment, model.role),
        )
        for model, place in named.items()
    )
    return at, tuple(replicas)


def _usual(model: ModelName, places: Mapping[ModelName, Placed], changed: Collection[str]) -> Between:
    """What becomes of a replica between its calls where nobody says it: what is sent anew before the next call goes at
    once, other parameters make room where somebody else needs it."""
    if model.replica == 0:
        return "keep"
    if model.role in changed:
        return "drop"
    ranks = set(places[model].ranks)
    shared = any(ranks & set(place.ranks) for other, place in places.items() if other != model)
    return "host" if shared else "keep"
