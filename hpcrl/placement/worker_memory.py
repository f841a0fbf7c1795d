"""What each worker has in memory while it makes each of its calls, and while parameters move to a copy before them:
models that stay, the one at work, what it takes."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hpcrl.config.model import Between
from hpcrl.dataflow.graph import MFC, Kind
from hpcrl.placement.memory import Memory, Models, of_worker
from hpcrl.placement.pass_memory import STAGED_BYTES
from hpcrl.placement.plan import ModelName, Plan, ReplicaPlan

STATE = ("parameters", "gradients", "optimizer")
MOVED = ("parameters",)
NEEDED = {"train_step": STATE, "blend": ("parameters", "optimizer")}
"""What of a model a call of a kind works with; any other reads the parameters alone."""


@dataclass(frozen=True)
class Load:
    """Bytes of one worker during one call, or one move."""

    rank: int
    call: str
    """Or `move to actor@1`; empty for a worker that makes none."""
    parts: tuple[tuple[str, float], ...]
    """Model → what it has there of parameters, gradients and optimizer."""
    passing: float
    """What the call takes besides."""

    @property
    def lasting(self) -> float:
        return sum(size for _, size in self.parts)

    @property
    def bytes(self) -> float:
        return self.lasting + self.passing


def loads_of(plan: Plan, models: Models, rank: int, device: str) -> tuple[Load, ...]:
    """A worker's moves and calls, in the order of the plan; one worker makes one at a time."""
    here = [replica for replica in plan.replicas if rank in replica.ranks]
    return tuple(_loads(plan, models, rank, here, device)) or (Load(rank, "", (), 0.0),)


def _loads(plan: Plan, models: Models, rank: int, here: Sequence[ReplicaPlan], device: str) -> Iterator[Load]:
    def load(name: str, needed: Mapping[ModelName, Collection[str]], passing: float) -> Load:
        sizes = ((str(it.model), _present(models, it, rank, device, needed.get(it.model, ()))) for it in here)
        return Load(rank, name, tuple((model, size) for model, size in sizes if size), passing)

    moved = set()
    for call in plan.calls:
        at, home = plan.replica(call.name), plan.home(call.role)
        ours = [of_worker(models, side, rank) for side in (home, at) if rank in side.ranks]
        sides = [it.parameters or it.merging for it in ours]
        if at != home and sides and at.model not in moved:
            moved.add(at.model)
            merged = of_worker(models, home, rank).merging if rank in home.ranks else 0.0
            yield load(f"move to {at.model}", dict.fromkeys((home.model, at.model), MOVED), staged(sides) + merged)
        if rank in at.ranks:
            yield load(call.name, _needed(call, at), taken(call.kind, of_worker(models, at, rank)))


def staged(sides: Sequence[float], most: int = STAGED_BYTES) -> float:
    """What a move takes at most beside the buffers that it goes from and to, of so many bytes: what is packed of them,
    of each for two exchanges."""
    return sum(min(2 * most, size) for size in sides)


def _present(models: Models, replica: ReplicaPlan, rank: int, device: str, needed: Collection[str]) -> float:
    """Bytes that a worker has of a model of which these kinds are at work."""
    memory = of_worker(models, replica, rank)
    present = sum(
        getattr(memory, kind) for kind in STATE if kind in needed or stays(between(replica, memory, kind), device)
    )
    return present + (memory.offloaded if device != "cuda" else 0.0)


def _needed(call: MFC, at: ReplicaPlan) -> dict[ModelName, tuple[str, ...]]:
    """What of which models a call works with. A blend reads another role's masters too."""
    needed = NEEDED.get(call.kind, ("parameters",))
    return {ModelName(at.of) if at.of else at.model: needed} | (
        {ModelName(call.blends): needed} if call.kind == "blend" else {}
    )


def between(replica: ReplicaPlan, memory: Memory, kind: str) -> Between:
    """What becomes of parameters, gradients or optimizer between calls; a role's setting that says nothing of a kind
    has it go with the parameters."""
    if not replica.is_home:
        return replica.between
    of: Between = getattr(memory.between, kind, memory.between.parameters)
    return of


def stays(how: Between, device: str) -> bool:
    """Whether it is in a worker's memory between calls; without a GPU that is the host's."""
    return how == "keep" or (how == "host" and device != "cuda")


def waiting(models: Models, replica: ReplicaPlan, rank: int) -> float:
    """Bytes of a model for which a worker has room in its host's memory, always or between calls."""
    memory = of_worker(models, replica, rank)
    return memory.offloaded + sum(getattr(memory, kind) for kind in STATE if between(replica, memory, kind) == "host")


def host_memory(plan: Plan, models: Models, rank: int, device: str) -> float:
    """Bytes of host memory that a worker on a GPU takes for what is, or waits, there; it is pinned, and kept once
    taken."""
    return sum(size for _, size in waiting_models(plan, models, rank)) if device == "cuda" else 0.0


def waiting_models(plan: Plan, models: Models, rank: int) -> Iterator[tuple[ModelName, float]]:
    """The models of which a worker has something in its host's memory, or room for it, and how many bytes."""
    for replica in plan.replicas:
        if rank in replica.ranks and (size := waiting(models, replica, rank)):
            yield replica.model, size


def taken(kind: Kind, memory: Memory) -> float:
    """What a call of this kind takes besides the model."""
    match kind:
        case "generate":
            return memory.generating
        case "blend":
            return 0.0
        case "train_step":
            return memory.computing
    return memory.computing if memory.predicting is None else memory.predicting


def peaks(plan: Plan, models: Models, device: str, *, lasting: bool = False) -> tuple[Load, ...]:
    """By rank: the call, or move, in which a worker has most; of equal ones what trains. With `lasting`, what they take
    besides the models is left out."""
    found = []
    for worker in plan.workers:
        loads = loads_of(plan, models, worker.rank, device)
        loads = tuple(replace(load, passing=0.0) for load in loads) if lasting else loads
        found.append(max(loads, key=lambda load: (load.bytes, load.call in plan.changes)))
    return tuple(found)
