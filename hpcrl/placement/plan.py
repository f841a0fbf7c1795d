"""Which calls are made, which workers hold which role: the whole of a run before it begins, as one JSON value."""

from typing import Any, Literal

import msgspec
import networkx

from hpcrl.config.experiment import Experiment, to_dict
from hpcrl.config.model import PlacementConfig
from hpcrl.dataflow.graph import MFC, build_graph
from hpcrl.dataflow.recipes import recipe
from hpcrl.placement.layouts import Layout, Ranks, parse_layout, parse_mesh

HOSTS = {"sft": "hpcrl.algos.host:TorchHost", "ppo": "hpcrl.algos.host:TorchHost", "toy": "hpcrl.workers.toy:ToyHost"}
"""The class that holds an algorithm's roles in a worker, as module:Class; the worker imports it by name."""


class CallPlan(msgspec.Struct, frozen=True):
    """One model function call of the graph."""

    name: str
    role: str
    kind: Literal["generate", "inference", "train_step", "evaluate"]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    input_remap: dict[str, str] = {}
    output_remap: dict[str, str] = {}
    dataset: Literal["train", "eval"] = "train"


class RolePlan(msgspec.Struct, frozen=True):
    """The workers of a role, in the order of its layout."""

    name: str
    layout: str
    ranks: tuple[int, ...]
    trainable: bool

    @property
    def arrangement(self) -> Layout:
        return parse_layout(self.layout)


class WorkerPlan(msgspec.Struct, frozen=True):
    """Where a worker sits: the slot-th worker of the node-th node."""

    rank: int
    node: int
    slot: int


class Plan(msgspec.Struct, frozen=True):
    """All that the master, the agents and the workers agree on."""

    algorithm: str
    calls: tuple[CallPlan, ...]
    dataset_keys: tuple[str, ...]
    eval_keys: tuple[str, ...]
    roles: dict[str, RolePlan]
    workers: tuple[WorkerPlan, ...]
    host: str
    experiment: dict[str, Any]

    @property
    def world(self) -> int:
        return len(self.workers)

    def call(self, name: str) -> CallPlan:
        return next(call for call in self.calls if call.name == name)

    def role_of(self, call: str) -> RolePlan:
        return self.roles[self.call(call).role]

    def dp(self, call: str) -> int:
        """How many parts the call is made in, in steps that open now: the role's data-parallel size; a train_step is
        one."""
        return 1 if self.call(call).kind == "train_step" else self.role_of(call).arrangement.dp

    def ranks(self, call: str, part: int) -> Ranks:
        """The workers of one part of a call; a train_step has all of its role's, in order.

        A step that was opened for another number of workers keeps its parts: they go round those that there are.
        """
        role = self.role_of(call)
        if self.call(call).kind == "train_step":
            return role.ranks
        return role.arrangement.data_part(part % role.arrangement.dp, role.ranks)

    def graph(self) -> networkx.DiGraph:
        calls = [MFC(**msgspec.structs.asdict(call)) for call in self.calls]
        return build_graph(calls, self.dataset_keys, self.eval_keys)

    def to_json(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self), indent=2)


def plan_from_json(text: bytes) -> Plan:
    return msgspec.json.decode(text, type=Plan)


def make_plan(experiment: Experiment) -> Plan:
    """Place the recipe's roles on the workers. The experiment is valid; nothing is read or made."""
    made = recipe(experiment)
    cluster = experiment.cluster
    workers = tuple(
        WorkerPlan(node * cluster.workers_per_node + slot, node, slot)
        for node in range(cluster.nodes)
        for slot in range(cluster.workers_per_node)
    )
    calls = tuple(_call_plan(mfc) for mfc in made.calls)
    trained = {call.role for call in calls if call.kind == "train_step"}
    names = dict.fromkeys(call.role for call in calls)
    roles = {name: _role_plan(name, getattr(experiment, name), len(workers), name in trained) for name in names}
    return Plan(
        algorithm=experiment.algorithm,
        calls=calls,
        dataset_keys=made.dataset_keys,
        eval_keys=made.eval_keys,
        roles=roles,
        workers=workers,
        host=HOSTS[experiment.algorithm],
        experiment=to_dict(experiment),
    )


def _call_plan(mfc: MFC) -> CallPlan:
    return CallPlan(
        name=mfc.name,
        role=mfc.role,
        kind=mfc.kind,
        inputs=mfc.inputs,
        outputs=mfc.outputs,
        input_remap=dict(mfc.input_remap),
        output_remap=dict(mfc.output_remap),
        dataset=mfc.dataset,
    )


def _role_plan(name: str, placement: PlacementConfig, world: int, trainable: bool) -> RolePlan:
    ranks = parse_mesh(placement.mesh, world)
    layout = Layout(dp=len(ranks)) if placement.layout is None else parse_layout(placement.layout)
    return RolePlan(name, str(layout), ranks, trainable)
