"""Which calls are made, which workers hold which model: the whole of an attempt before it begins, as one JSON value."""

from collections.abc import Mapping
from typing import Any

import msgspec
import networkx

from hpcrl.config.changes import RunSettings
from hpcrl.config.experiment import ExperimentConfig, to_dict
from hpcrl.config.fields import sections_of
from hpcrl.config.model import CPUPlacementConfig
from hpcrl.dataflow.graph import MFC, build_graph, changes
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import InternalError
from hpcrl.placement.layouts import Layout, Ranks, parse_layout, parse_mesh
from hpcrl.recipes.algorithm import algorithm_of


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


class ReplicaPlan(msgspec.Struct, frozen=True):
    """The workers of a model, in the order of its layout."""

    model: ModelName
    layout: str
    ranks: Ranks
    trainable: bool

    @property
    def role(self) -> str:
        return self.model.role

    @property
    def arrangement(self) -> Layout:
        return parse_layout(self.layout)

    @property
    def parts(self) -> tuple[Part, ...]:
        layout = self.arrangement
        ranks_of = [layout.data_part(index, self.ranks) for index in range(layout.dp)]
        return tuple(Part(index, ranks, ranks[-layout.tp]) for index, ranks in enumerate(ranks_of))


class WorkerPlan(msgspec.Struct, frozen=True):
    """Where a worker sits: the slot-th worker of the node-th node. `host` is the class that holds its roles."""

    rank: int
    node: int
    slot: int
    host: str


class Plan(msgspec.Struct, frozen=True):
    """All that the master, the agents and the workers agree on."""

    algorithm: str
    calls: tuple[MFC, ...]
    dataset_keys: tuple[str, ...]
    eval_keys: tuple[str, ...]
    at: dict[str, ModelName]
    """Call → the model that makes it."""
    replicas: tuple[ReplicaPlan, ...]
    workers: tuple[WorkerPlan, ...]
    """By rank: the model workers of all nodes, then their CPU workers."""
    experiment: dict[str, Any]
    settings: int = 0
    """The version of the run's settings that `experiment` is."""
    earlier: dict[int, dict[str, Any]] = {}
    """Older versions, under which something is executed again; where and how, `experiment` says for them too."""
    inputs: dict[str, str] = {}
    """Setting → fingerprint of what it names and the workers read."""

    @property
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

    @property
    def changes(self) -> dict[str, str]:
        """train_step or blend → the role that it changes, in the order of the calls."""
        return changes(self.calls)

    def call(self, name: str) -> MFC:
        return next(call for call in self.calls if call.name == name)

    def replica(self, call: str) -> ReplicaPlan:
        """Where a call is made."""
        return self._replica(self.at[call])

    def home(self, role: str) -> ReplicaPlan:
        """Where a role is trained and saved."""
        return self._replica(ModelName(role))

    def parts(self, call: str) -> tuple[Part, ...]:
        """The groups of workers among which the samples of a call are divided."""
        return self.replica(call).parts

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

    def graph(self) -> networkx.DiGraph:
        return build_graph(self.calls, self.dataset_keys, self.eval_keys)

    def to_json(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self), indent=2)

    def _replica(self, model: ModelName) -> ReplicaPlan:
        return next(replica for replica in self.replicas if replica.model == model)


def read_plan(run: RunDirectory, attempt: int) -> Plan:
    """The plan of an attempt. Raises InternalError where it is damaged."""
    path, advice = run.plan(attempt), f"`hpcrl resume {run.root}` makes another."
    try:
        return plan_from_json(run.files.read_document(path, advice))
    except msgspec.DecodeError as error:
        raise InternalError(f"{path} is damaged: {error}.", advice) from error


def plan_from_json(text: bytes) -> Plan:
    return msgspec.json.decode(text, type=Plan)


def make_plan(experiment: ExperimentConfig, nodes: int) -> Plan:
    """Place the recipe's roles on the workers of so many nodes. The experiment is valid; nothing is read or made."""
    algorithm = algorithm_of(experiment)
    calls = algorithm.calls(experiment)
    trained = {call.role for call in calls if call.kind == "train_step"}
    roles = dict.fromkeys(call.role for call in calls)
    return Plan(
        algorithm=experiment.algorithm,
        calls=calls,
        dataset_keys=tuple(algorithm.rows.keys),
        eval_keys=algorithm.eval_keys(experiment),
        at={call.name: ModelName(call.role) for call in calls},
        replicas=tuple(_place(experiment, role, nodes, role in trained) for role in roles),
        workers=_workers(experiment, nodes),
        experiment=to_dict(experiment),
    )


def plan_under(settings: RunSettings, nodes: int, inputs: Mapping[str, str]) -> Plan:
    """The plan of an attempt, with all the settings that it executes something under, and what is read."""
    earlier = {version: to_dict(experiment) for version, experiment in settings.earlier.items()}
    plan = make_plan(settings.newest, nodes)
    return msgspec.structs.replace(plan, settings=settings.version, earlier=earlier, inputs=dict(inputs))


def cpu_roles(experiment: ExperimentConfig) -> tuple[str, ...]:
    """Whose each CPU worker of a node is, in their order: of the roles that are called and have some of their own."""
    algorithm = algorithm_of(experiment)
    sections = sections_of(experiment, CPUPlacementConfig)
    roles = dict.fromkeys(call.role for call in algorithm.calls(experiment) if call.role in sections)
    return tuple(role for role in roles for _ in range(sections[role].workers))


def workers_in_words(experiment: ExperimentConfig) -> str:
    """Those of a node: `2 workers`, `8 workers and 1 CPU worker`."""
    models, others = experiment.cluster.workers_per_node, len(cpu_roles(experiment))
    said = f"{models} worker{'s' if models > 1 else ''}"
    return f"{said} and {others} CPU worker{'s' if others > 1 else ''}" if others else said


def mesh_of(experiment: ExperimentConfig, role: str, nodes: int) -> Ranks:
    """The workers that hold a role. Raises ValueError where its mesh names none."""
    models, owners = nodes * experiment.cluster.workers_per_node, cpu_roles(experiment)
    if role in owners:
        return tuple(models + rank for rank, owner in enumerate(owners * nodes) if owner == role)
    return parse_mesh(getattr(experiment, role).mesh, models)


def _workers(experiment: ExperimentConfig, nodes: int) -> tuple[WorkerPlan, ...]:
    algorithm, slots, owners = algorithm_of(experiment), experiment.cluster.workers_per_node, cpu_roles(experiment)
    seats = [(node, slot, algorithm.host) for node in range(nodes) for slot in range(slots)]
    for node in range(nodes):
        for slot, role in enumerate(owners, slots):
            host = algorithm.roles[role].host
            assert host is not None, role
            seats.append((node, slot, host))
    return tuple(WorkerPlan(rank, *seat) for rank, seat in enumerate(seats))


def _place(experiment: ExperimentConfig, role: str, nodes: int, trainable: bool) -> ReplicaPlan:
    ranks, placement = mesh_of(experiment, role, nodes), getattr(experiment, role)
    layout = Layout(dp=len(ranks)) if placement.layout is None else parse_layout(placement.layout)
    return ReplicaPlan(ModelName(role), str(layout), ranks, trainable)
