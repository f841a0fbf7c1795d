"""What each worker holds of the models, and receives, sends and releases around each call, in words and bytes."""

from collections.abc import Iterable, Iterator, Mapping

from hpcrl.config.experiment import ExperimentConfig
from hpcrl.config.model import models_of
from hpcrl.families.config import DecoderConfig
from hpcrl.placement.holdings import Holding, holdings, part_holdings, served_holdings
from hpcrl.placement.memory import BYTES, Models, head_model, of_worker
from hpcrl.placement.moving import Transfer, moves
from hpcrl.placement.plan import Plan, ReplicaPlan
from hpcrl.placement.shards import WHOLE, Cut
from hpcrl.placement.sizes import size_in_words
from hpcrl.placement.worker_memory import waiting
from hpcrl.recipes.algorithm import algorithm_of

ORDINALS = ("first", "second")


def part_of(role: str, cut: Cut) -> str:
    """`second half of actor`, `tensor part 1 of 2 of stage 3 of 4 of actor`; what is not cut is just named."""
    words = [f"tensor part {cut.tensor + 1} of {cut.tp} of"] if cut.tp > 1 else []
    if cut.pp == 2:
        words += [*(["the"] if words else []), f"{ORDINALS[cut.stage]} half of"]
    elif cut.pp > 2:
        words += [f"stage {cut.stage + 1} of {cut.pp} of"]
    return " ".join([*words, role])


class Movements:
    """Of a plan. Reads each model's config.json once."""

    def __init__(self, plan: Plan, experiment: ExperimentConfig, models: Models) -> None:
        self._plan = plan
        self._models = models
        self._configs = models_of(experiment)
        algorithm = algorithm_of(experiment)
        away = {replica.role for replica in plan.replicas if not replica.is_home}
        self._shapes: Mapping[str, DecoderConfig] = {
            role: head_model(role, config, algorithm) for role, config in self._configs.items() if role in away
        }
        self._nodes = tuple(worker.node for worker in plan.workers)
        self._held = {
            replica.model: _held(self._shapes[replica.role], replica, len(plan.workers))
            for replica in plan.replicas
            if replica.role in self._shapes
        }

    def holds(self, rank: int) -> Iterator[str]:
        """What stays on a worker, a model each."""
        for replica in self._plan.replicas:
            if rank in replica.ranks and (replica.is_home or replica.between == "keep"):
                size = of_worker(self._models, replica, rank).lasting
                part = part_of(str(replica.model), replica.cut(rank))
                if replica.of:
                    yield f"{replica.role}, which is {replica.of} without its adapters"
                    continue
                yield f"{part} ({size_in_words(size)}{self._on_host(replica, rank)})" if size else part

    def _on_host(self, replica: ReplicaPlan, rank: int) -> str:
        """What a home has in its host's memory: always, and of its size between calls."""
        if not replica.is_home:
            return ""
        always = of_worker(self._models, replica, rank).offloaded
        waits = waiting(self._models, replica, rank) - always
        said = f", {size_in_words(waits)} of it in the memory of its host between calls" if waits else ""
        return said + (f", {size_in_words(always)} always in the memory of its host" if always else "")

    def around(self, rank: int) -> Iterator[str]:
        """What a worker receives, sends and releases, a copy each."""
        for replica in self._plan.replicas:
            if replica.is_home:
                continue
            calls = ", ".join(call for call, model in self._plan.at.items() if model == replica.model)
            if words := ", ".join(self._of_copy(replica, rank)):
                yield f"{words} for {calls}" + self._afterwards(replica, rank)

    def _of_copy(self, replica: ReplicaPlan, rank: int) -> Iterator[str]:
        if replica.role not in self._shapes:
            if rank in replica.ranks:
                yield f"receives {part_of(replica.role, replica.cut(rank))}"
            return
        home, size = self._plan.home(replica.role), BYTES[self._configs[replica.role].dtype]
        planned = moves(self._held[home.model], self._held[replica.model], self._nodes, rank)
        if received := sum(_numel(it.receives) for it in planned.rounds):
            yield f"receives {_lacking(home, replica, rank)} ({size_in_words(received * size)})"
        elif copied := sum(rectangles.numel for rectangles in planned.copied[:1]):
            yield f"copies {part_of(replica.role, _cut(replica, rank))} ({size_in_words(copied * size)})"
        if sent := sum(_numel(it.sends) for it in planned.rounds):
            yield f"sends {size_in_words(sent * size)} of {replica.role}"

    def _afterwards(self, replica: ReplicaPlan, rank: int) -> str:
        if replica.served and rank in {part.head for part in replica.parts}:
            return ", then gives it to its server"
        if rank not in replica.ranks or replica.between == "keep":
            return ""
        size = of_worker(self._models, replica, rank).parameters
        what = size_in_words(size) if size else "it"
        return f", then {'releases' if replica.between == 'drop' else 'keeps in the memory of its host'} {what}"


def _lacking(home: ReplicaPlan, replica: ReplicaPlan, rank: int) -> str:
    """What a worker of a copy is to have and has not."""
    cut = _cut(replica, rank)
    if rank not in home.ranks or cut.tp * cut.pp > 1:
        return part_of(replica.role, cut)
    own = home.cut(rank)
    return f"its {ORDINALS[1 - own.stage]} half" if (own.tp, own.pp) == (1, 2) else f"the rest of {replica.role}"


def _cut(replica: ReplicaPlan, rank: int) -> Cut:
    """What a worker of a copy is given; who has a server is given all of it."""
    return WHOLE if replica.served else replica.cut(rank)


def _numel(transfers: Iterable[Transfer]) -> int:
    return sum(transfer.rectangles.numel for transfer in transfers)


def _held(model: DecoderConfig, replica: ReplicaPlan, world: int) -> tuple[Holding, ...]:
    """What each worker has of a replica in its buffer."""
    if by := replica.cut_by:
        return part_holdings(model, replica.ranks, world, by)
    if replica.served:
        return served_holdings(model, replica.arrangement, replica.ranks, world)
    return holdings(model, replica.arrangement, replica.ranks, world)
