"""The toy as a script that calls registered methods, one of each mode."""

from dataclasses import replace
from typing import Any

import numpy as np

from hpcrl.recipes import toy
from hpcrl.recipes.algorithm import RoleKind
from hpcrl.recipes.registered import Custom, Dispatch, Execute, register
from hpcrl.workers.host import Outcome, Work
from hpcrl.workers.toy import ToyRole


def ends_first(batch: Any, parts: int) -> list[Any]:
    """The last sample to the first part, the others to the last; the first one to nobody."""
    if len(batch) < 2:
        return []
    last, others = batch[len(batch) - 1 :], batch[1 : len(batch) - 1]
    if parts == 1:
        return [batch.concat([last, others])]
    return [last, *[batch[:0]] * (parts - 2), others]


def joined(pieces: list[Any]) -> Any:
    return pieces[0].concat([piece for piece in pieces if len(piece)])


class Vector(ToyRole):
    """A toy role with methods of its own."""

    @register(Dispatch.ONE_TO_ALL, rehearsed=[0, 0])
    def told(self, word: str, number: int) -> Any:
        return [word * number, self.at.ranks[self.index]]

    @register(Dispatch.ALL_TO_ALL, rehearsed=0)
    def item(self, given: int) -> Any:
        return [given, self.at.ranks[self.index]]

    @register(Dispatch.DP_COMPUTE, rehearsed=0)
    def of_part(self, given: int) -> Any:
        return [given, self.part.index, self.version]

    @register(Dispatch.MEGATRON_COMPUTE, rehearsed=0)
    def twice(self, given: int) -> Any:
        return 2 * given

    @register(Dispatch.ONE_TO_ALL, Execute.RANK_ZERO, rehearsed={"sum": 0})
    def of_first(self, add: int) -> Any:
        return {"sum": 1 + add}

    @register(Dispatch.DP_COMPUTE_PROTO, inputs=("y",), outputs={"doubled": "float64"})
    def double(self, rows: Any, by: float) -> Any:
        return {"doubled": [by * row for row in rows["y"]]}

    @register(Dispatch.MEGATRON_COMPUTE_PROTO, inputs=("y", "doubled"), outputs={"gap": "float64", "low": "bool"})
    def gaps(self, rows: Any) -> Any:
        gaps = [(b - a)[:1] for a, b in zip(rows["y"], rows["doubled"], strict=True)]
        return {"gap": gaps, "low": [gap < 0 for gap in gaps]}

    @register(Custom(ends_first, joined), inputs=("y",), outputs={"own": "float64"})
    def by_ends(self, rows: Any) -> Any:
        return {"own": [row[::-1].copy() for row in rows["y"]]}


class Learner(ToyRole):
    """One that has a train_step of its own."""

    @register(Dispatch.PP_AS_DP, rehearsed=0)
    def spread(self, given: int) -> Any:
        return [given, self.part.index, self.at.arrangement.pp, self.version]

    @register(Dispatch.PP_AS_DP_PROTO, inputs=("y",), outputs={"halved": "float64"})
    def halve(self, rows: Any) -> Any:
        return {"halved": [0.5 * row for row in rows["y"]]}

    @register(Dispatch.ONE_TO_ALL, rehearsed=[0, 0.0])
    def weight(self) -> Any:
        return [self.part.index, float(np.sum(self.w))]

    @register(Dispatch.DP_COMPUTE_PROTO, Execute.RANK_ZERO, inputs=("gap",), outputs={"ranked": "float64"})
    def centred(self, rows: Any) -> Any:
        mean = sum(float(gap[0]) for gap in rows["gap"]) / max(len(rows["gap"]), 1)
        return {"ranked": [gap - mean for gap in rows["gap"]]}

    @register(Dispatch.DP_COMPUTE_PROTO, inputs=("y", "doubled"), changes=True)
    def pull(self, work: Work, lr: float) -> Outcome:
        lr = lr if work.record is None else work.record["lr"]
        target = np.zeros(self.piece.size)
        for row in work.batch.rows("doubled"):
            target = target + row[self.piece.first : self.piece.stop]
        mean = self.exchange.sum(target, self.column) / sum(work.whole)
        self.w = self.w - lr * (self.w - mean)
        return Outcome(stats={"pulled": (float(lr), 1.0)}, record={"lr": lr})


def loop(run: Any, e: Any) -> None:
    actor, critic = run.groups("actor", "critic")
    parts = actor.info(actor.ranks[0]).dp_size
    info = critic.info(critic.ranks[0])
    stages = info.dp_size * info.pp_size
    for step in run.steps():
        batch = step.batch()
        batch = batch.union(actor.generate(batch))
        told = actor.told("a", 3)
        items = actor.item([10 * n for n in range(actor.world_size)], blocking=False)
        of_part = actor.of_part([*range(parts)])
        twice = actor.twice([*range(parts)])
        first = actor.of_first(step.number)
        spread = critic.spread([*range(stages)])
        halved = critic.halve(batch)
        batch = batch.union(actor.double(batch, 2.5))
        batch = batch.union(actor.gaps(batch))
        batch = batch.union(critic.centred(batch))
        own = actor.by_ends(batch)
        pull = critic.pull if step.number % 2 else critic.update  # the same
        change = pull(batch, 0.25)
        weights = [weight for part, weight in critic.weight() if part == 0]
        run.state["weight"] = run.state.get("weight", 0.0) + sum(weights)
        step.log(
            told=told == [["aaa", rank] for rank in actor.ranks],
            items=items.result() == [[10 * n, rank] for n, rank in enumerate(actor.ranks)],
            of_part=of_part == [[n, n, 0] for n in range(parts)],
            twice=twice == [2 * n for n in range(parts)],
            spread=spread == [[n, n, 1, step.number - 1] for n in range(stages)],
            halved=halved.mean("halved") - 0.5 * batch.mean("y"),
            first=first["sum"],
            gap=batch.mean("gap"),
            low=batch.mean("low"),
            centred=batch.mean("ranked"),
            own=own.mean("own"),
            left_out=len(batch) - len(own),
            pulled=change.stats["pulled"],
            weight=run.state["weight"],
        )
        if step.evaluates:
            held_out = step.held_out()
            held_out = held_out.union(actor.generate(held_out))
            step.log(doubled=actor.double(held_out, 2.0).mean("doubled") - 2.0 * held_out.mean("y"))


def few(run: Any, e: Any) -> None:
    """It does the same however many workers there are."""
    (actor,) = run.groups("actor")
    for step in run.steps():
        batch = step.batch()
        batch = batch.union(actor.generate(batch))
        told = actor.told("a", 2)
        step.log(told=len(told), doubled=actor.double(batch, 2.0).mean("doubled"))


METHODS = {
    "actor": RoleKind(f"{__name__}:Vector", axes=("dp", "tp", "pp"), methods=Vector),
    "critic": RoleKind(f"{__name__}:Learner", axes=("dp", "tp", "pp"), methods=Learner),
}
CALLS = ("actor_gen", "critic_inf", "eval_gen")


def recipe(experiment: Any) -> Any:
    return tuple(call for call in toy.CALLS if call.name in CALLS)


ALGORITHM: Any = replace(
    toy.ALGORITHM,
    script=loop,
    recipe=recipe,
    roles=METHODS,
    metrics={"critic_pull": ("pulled",)}
    | {call: names for call, names in toy.ALGORITHM.metrics.items() if call in CALLS},
)
FEW: Any = replace(ALGORITHM, script=few)
