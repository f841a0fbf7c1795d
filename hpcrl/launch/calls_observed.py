"""What the rows of a run's attempts say of passes, updates, links and disks, each beside what is reckoned of it."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import msgspec

from hpcrl.config.model import lora_of
from hpcrl.costs import CallCost, StepCost, decode
from hpcrl.dataflow.graph import MFC
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import HpcrlError
from hpcrl.families.foreign import ForeignConfig
from hpcrl.figures import Figures, Seconds
from hpcrl.inspect.lines import Tail
from hpcrl.launch.calibrating import FIRST, like
from hpcrl.placement.costs import CostModel, read_costs
from hpcrl.placement.disk import estimate_disk
from hpcrl.placement.flops import flops_of
from hpcrl.placement.judges import models_held
from hpcrl.placement.layouts import Layout
from hpcrl.placement.phase_costs import PASSES, Spent, spent, updating
from hpcrl.placement.placing import Placed
from hpcrl.placement.plan import Plan, ReplicaPlan, read_plan
from hpcrl.placement.profile_fit import Key, Kind, Observed, key_of, observed
from hpcrl.placement.rates import Link, Links, Rates
from hpcrl.placement.search_inputs import lengths_asked
from hpcrl.placement.workload import workload_of
from hpcrl.recipes.algorithm import experiment_from

NOTHING = Link(0, 1e18)
"""As if a link took no time."""


@dataclass
class Seen:
    """Of runs: kinds of passes, and links by name, with all that was seen of each."""

    passes: defaultdict[tuple[Key, Kind], list[Observed]] = field(default_factory=lambda: defaultdict(list))
    links: defaultdict[str, list[Observed]] = field(default_factory=lambda: defaultdict(list))
    """near_exchange, near_send, far_exchange, far_send, host."""
    disk: list[tuple[float, float]] = field(default_factory=list)
    """Bytes and seconds."""
    whole: set[str] = field(default_factory=set)
    """Calls whose passes are all that they do, so that these say what the whole takes."""


class _Attempt(NamedTuple):
    experiment: Any
    plan: Plan
    costs: CostModel


def look(run: RunDirectory, base: Rates, seen: Seen) -> None:
    """All attempts of a run, beside what these rates say."""
    for number in run.numbers():
        rows = [decode(text) for text in Tail(run.costs(number)).each()]
        if not rows:
            continue
        try:
            plan = read_plan(run, number)
        except HpcrlError:
            continue  # what its calls were is not known
        _look(_attempt(run, plan, base), rows[FIRST:] or rows, seen)


def _attempt(run: RunDirectory, plan: Plan, base: Rates) -> _Attempt:
    experiment = like(experiment_from(plan.experiment), run)
    workload = workload_of(experiment, lengths_asked(experiment))
    return _Attempt(experiment, plan, read_costs(experiment, base, workload))


def _look(of: _Attempt, rows: list[StepCost], seen: Seen) -> None:
    for call in of.plan.calls:
        made = [row.calls[call.name] for row in rows if call.name in row.calls]
        if call.dataset == "train" and _is_known(of, call):
            _look_at_call(of, call, [it for it in made if it.spans and it.slowest is not None], seen)
    for replica in of.plan.replicas:
        made = [row.calls[str(replica.model)] for row in rows if str(replica.model) in row.calls]
        if not replica.is_home:
            _look_at_move(of, replica, made, seen)
    _look_at_disk(of, rows, seen)


def _look_at_call(of: _Attempt, call: MFC, made: list[CallCost], seen: Seen) -> None:
    replica, tokens = of.plan.replica(call.name), of.plan.micro_batches.get(call.name, 0)
    place, layout = replica.placed, replica.arrangement
    key = key_of(of.costs.models[call.role], replica.backend, models_held(of.experiment)[call.role].dtype, layout.tp)
    usual: dict[int, dict[Any, Spent]] = {}
    if layout.pp == 1 and made:
        seen.whole.add(call.name)
    for cost in made:
        figures, stage = cost.slowest, _stage(cost, replica, layout)
        assert figures is not None, "the caller has asked"
        if stage not in usual:
            usual[stage] = spent(of.costs, call, place, tokens, stage)
        for kind, seconds in _passes(call, figures, layout.pp).items():
            if kind in usual[stage] and seconds > 0:
                seen.passes[key, kind].append(_beside(usual[stage][kind], call, figures, seconds))
    _look_at_links(of, call, key, [it.slowest.seconds for it in made if it.slowest is not None], seen)


def _look_at_links(of: _Attempt, call: MFC, key: Key, taken: list[Seconds], seen: Seen) -> None:
    """What is exchanged and let go, and updates, which are what else a worker does that has the whole model."""
    replica, tokens = of.plan.replica(call.name), of.plan.micro_batches.get(call.name, 0)
    place, layout = replica.placed, replica.arrangement
    exchanged = _ideal(of.costs, "exchange", call, place, tokens)
    released = of.costs.release_nanoseconds(call.role, place) * (replica.between == "host")
    updates = updating(of.costs, call, place) * (call.kind == "train_step" and layout.tp == layout.pp == 1)
    for seconds in taken:
        rest = seconds.optimizer - seconds.collective * (layout.dp > 1)
        for reckoned, took, found in (
            (exchanged, seconds.collective, seen.links[f"{_side(of, replica)}_exchange"]),
            (released, seconds.release, seen.links["host"]),
            (updates, rest, seen.passes[key, "update"]),
        ):
            if reckoned and took > 0:
                found.append(Observed(reckoned, 0.0, 0, took * 1e9))


def _passes(call: MFC, figures: Figures, stages: int) -> dict[Kind, float]:
    """Seconds by kind of pass. Of a worker that has all layers, what is in no other phase comes with passes forward, or
    with rounds: losses, draws."""
    of = figures.seconds
    rest = of.execute - of.backward - of.optimizer - of.release
    if call.kind == "generate":
        return {"prefill": of.prefill, "decode": rest - of.prefill if stages == 1 else of.decode}
    forward = rest if stages == 1 else of.forward
    return {"taught": forward, "backward": of.backward} if call.kind == "train_step" else {"forward": forward}


def _beside(usual: Spent, call: MFC, figures: Figures, seconds: float) -> Observed:
    if call.kind == "generate":
        return observed(usual, figures.tokens, figures.rounds, seconds)._replace(passes=0)
    return observed(usual, figures.tokens, figures.micro_batches, seconds)


def _stage(cost: CallCost, replica: ReplicaPlan, layout: Layout) -> int:
    """Of the worker that took longest."""
    slowest = max(cost.spans, key=lambda span: span.seconds).slowest
    index = replica.ranks.index(slowest) if slowest in replica.ranks else 0
    return index // (layout.dp * layout.tp)


def _look_at_move(of: _Attempt, replica: ReplicaPlan, made: list[CallCost], seen: Seen) -> None:
    """What beside the links a move takes counts as reckoned."""
    if replica.role not in of.costs.models:
        return
    home, side = of.plan.home(replica.role).placed, _side(of, replica)
    whole, rest = (
        float(costs.moves(replica.role, [home], [replica.placed])[0, 0])
        for costs in (of.costs, _without(of.costs, side, "send"))
    )
    for cost in made:
        took = max((span.seconds for span in cost.spans), default=0.0) * 1e9
        if took and whole > rest:
            seen.links[f"{side}_send"].append(Observed(whole - rest, 0.0, 0, max(took - rest, 0.05 * (whole - rest))))


def _look_at_disk(of: _Attempt, rows: list[StepCost], seen: Seen) -> None:
    """Spills and saves, each by one worker."""
    sizes = estimate_disk(of.experiment).checkpoint
    for row in rows:
        spills = Counter(it.name for it in row.beside if it.kind == "spill")
        for it in row.beside:
            took = it.end_s - it.begin_s
            if it.kind == "spill" and it.name in row.calls:
                seen.disk.append((row.calls[it.name].bytes / spills[it.name], took))
            if it.kind == "save" and it.name in sizes:
                seen.disk.append((sizes[it.name] / len(of.plan.home(it.name).ranks), took))


def _ideal(costs: CostModel, kind: str, call: MFC, place: Placed, tokens: int) -> float:
    """What links take of a call."""
    free = _without(_without(costs, "near", kind), "far", kind)
    return float(costs.call_nanoseconds(call, place, tokens) - free.call_nanoseconds(call, place, tokens))


def _without(costs: CostModel, side: str, kind: str) -> CostModel:
    """As if these links took nothing."""
    links: Links = msgspec.structs.replace(getattr(costs.rates, side), alone=None, **{kind: NOTHING})
    return replace(costs, rates=msgspec.structs.replace(costs.rates, **{side: links}), _made={})


def _side(of: _Attempt, replica: ReplicaPlan) -> str:
    """Which links its workers, and those of its home, have between them."""
    slots = of.experiment.cluster.workers_per_node
    ranks = (*replica.ranks, *of.plan.home(replica.role).ranks)
    return "near" if len({rank // slots for rank in ranks}) == 1 else "far"


def _is_known(of: _Attempt, call: MFC) -> bool:
    """Whether it is passes of a model whose parts are: not of adapters, whose blocks are others, nor of one of which
    each worker has a part of every parameter."""
    model, replica = of.costs.models.get(call.role), of.plan.replica(call.name)
    if model is None or isinstance(model, ForeignConfig) or flops_of(model) is None:
        return False
    if call.kind not in PASSES or call.method or replica.sharded or replica.served or not replica.backend:
        return False
    return call.kind != "train_step" or lora_of(models_held(of.experiment)[call.role]) is None
