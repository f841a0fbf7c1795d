"""How long everything lasts that a simulated run does, for one plan: calls and moves by the cost model, the rest by
bytes over links and disks. Values, in integer nanoseconds."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil

from hpcrl.config.fields import section
from hpcrl.config.generation import GenerationConfig
from hpcrl.config.model import models_of
from hpcrl.families.reader import parameter_count
from hpcrl.placement.costs import ROW_BYTES, CostModel
from hpcrl.placement.disk import estimate_disk
from hpcrl.placement.memory import BYTES
from hpcrl.placement.plan import ModelName, Plan
from hpcrl.placement.rates import Link
from hpcrl.placement.waiting import waiting_in

APPEND_NS = 2_000_000
"""An fsync of the journal."""
FORK_NS = 50_000_000
MESSAGE_NS = 100_000
"""From one process to another."""
BESIDE_LOAD_NS = 2_000_000_000
"""Of a start, what reads no weights: joining the peers, compiling."""

ROWS, DISK = Link(200_000, 1e9), Link(1_000_000, 1e9)


@dataclass(frozen=True)
class Durations:
    """Of a plan, on workers that are as fast as they should be."""

    calls: Mapping[str, int]
    """Call → what its slowest part lasts; all parts count as long."""
    moves: Mapping[ModelName, int] = field(default_factory=dict)
    """Replica → what bringing its parameters there lasts."""
    moved_bytes: Mapping[ModelName, int] = field(default_factory=dict)
    copies: Mapping[str, int] = field(default_factory=dict)
    """Role → what copying a worker's share of its state lasts, before it is written behind the work."""
    shard_bytes: Mapping[str, int] = field(default_factory=dict)
    """Role → of one worker's share."""
    export_bytes: Mapping[str, int] = field(default_factory=dict)
    """The same of an export."""
    loads: Mapping[int, int] = field(default_factory=dict)
    """Worker → what loading its roles lasts; from a checkpoint as from base weights."""
    fetch: Link = ROWS
    """Rows from another worker."""
    disk: Link = DISK
    """Of one worker."""
    row_bytes: int = ROW_BYTES
    """Of a token in all keys that a call makes, or reads."""
    read_ns: int = 1_000_000
    """Rows of the data set."""
    fork_ns: int = FORK_NS
    message_ns: int = MESSAGE_NS
    append_ns: int = APPEND_NS


def _share_of_round(costs: CostModel) -> float:
    """What a round draws of responses in flight, as a share of what a step trains on."""
    generation = section(costs.experiment, "generation", GenerationConfig)
    assert generation is not None and generation.in_flight is not None and generation.segment is not None
    responses = costs.workload.responses
    drawn = generation.in_flight * costs.workload.per_row * min(generation.segment, float(responses.mean()))
    return min(1.0, drawn / float(responses.sum()))


def durations_of(costs: CostModel, plan: Plan) -> Durations:
    """By a cost model."""
    placed = {replica.model: replica.placed for replica in plan.replicas}
    calls = {}
    for call in plan.calls:
        at = placed[plan.replica(call.name).model]
        lasts = costs.call_nanoseconds(call, at, plan.micro_batches.get(call.name, 0))
        drawn = round(lasts * _share_of_round(costs)) if call.in_rounds else lasts
        calls[call.name] = drawn + waiting_in(costs, plan, call)
    away = [replica for replica in plan.replicas if not replica.is_home]
    moves = {
        it.model: int(costs.moves(it.role, [placed[ModelName(it.role)]], [placed[it.model]])[0, 0])
        + costs.waiting_nanoseconds(it.role, "move", placed[ModelName(it.role)])
        for it in away
    }
    disk, rates = estimate_disk(costs.experiment), costs.rates
    shards = {role: ceil(size / len(plan.home(role).ranks)) for role, size in disk.checkpoint.items()}
    return Durations(
        calls=calls,
        moves=moves,
        moved_bytes={it.model: _weights(costs, it.role) for it in away},
        copies={role: round(rates.host.nanoseconds(size)) for role, size in shards.items()},
        shard_bytes=shards,
        export_bytes={role: ceil(size / len(plan.home(role).ranks)) for role, size in disk.export.items()},
        loads=_loads(costs, plan, shards),
        fetch=rates.far.send,
        disk=rates.disk,
    )


def _loads(costs: CostModel, plan: Plan, shards: Mapping[str, int]) -> dict[int, int]:
    """Each worker reads its share of every model that it has: of a role that changes, state and all."""
    found = dict.fromkeys((worker.rank for worker in plan.workers), 0)
    for replica in plan.replicas:
        if replica.is_home or replica.role not in shards:
            cut = replica.arrangement
            size = shards.get(replica.role) or _weights(costs, replica.role) / (cut.tp * cut.pp)
            for rank in replica.ranks:
                found[rank] += round(costs.rates.disk.nanoseconds(size))
    return {rank: BESIDE_LOAD_NS + lasts for rank, lasts in found.items()}


def _weights(costs: CostModel, role: str) -> int:
    """Bytes of a role's parameters; 0 of one without a model."""
    config = models_of(costs.experiment).get(role)
    if config is None or role not in costs.models:
        return 0
    return parameter_count(costs.models[role]) * BYTES[config.dtype]
