"""The toy as a script that asks for registered methods before its loop, one of each mode without samples."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from support import registered_script

from hpcrl.recipes.algorithm import RoleKind
from hpcrl.recipes.registered import Dispatch, register

FILE = "HPCRL_TEST_BEGUN"


class Vector(registered_script.Vector):
    """One that tells when it is begun."""

    @register(Dispatch.ONE_TO_ALL, rehearsed="")
    def begin(self, word: str) -> str:
        if self.index == 0 and FILE in os.environ:
            with open(Path(os.environ[FILE]), "a", encoding="utf-8") as file:
                file.write(f"{word}\n")
        return word


def loop(run: Any, e: Any) -> None:
    actor, critic = run.groups("actor", "critic")
    info, parts = critic.info(critic.ranks[0]), actor.info(actor.ranks[0]).dp_size
    stages = info.dp_size * info.pp_size
    begun = actor.begin("first")
    items = actor.item([10 * n for n in range(actor.world_size)], blocking=False)
    of_part, first = actor.of_part([*range(parts)]), actor.of_first(2)
    spread = critic.spread([*range(stages)])
    right = [
        begun == ["first"] * actor.world_size,
        items.result() == [[10 * n, rank] for n, rank in enumerate(actor.ranks)],
        of_part == [[n, n, 0] for n in range(parts)],
        first == {"sum": 3},
        actor.twice([*range(parts)]) == [2 * n for n in range(parts)],
    ]
    actor.begin("unread", blocking=False)
    for step in run.steps():
        if spread:  # each attempt's first turn: the critic was as the step before has left it
            assert spread in ([0] * stages, [[n, n, 1, step.number - 1] for n in range(stages)]), (spread, step.number)
            spread = []
        batch = step.batch()
        batch = batch.union(actor.generate(batch))
        batch = batch.union(actor.double(batch, 2.5))
        told = actor.begin(f"step {step.number}")
        change = critic.pull(batch, 0.25)
        step.log(right=sum(right), told=len(told), pulled=change.stats["pulled"], doubled=batch.mean("doubled"))


def rollout(run: Any, e: Any, step: Any) -> Any:
    (actor,) = run.groups("actor")
    batch = step.batch()
    return batch.union(actor.generate(batch))


def ahead(run: Any, e: Any) -> None:
    actor, critic = run.groups("actor", "critic")
    begun = actor.begin("first")
    for step in run.steps(prepare=rollout, lag=1):
        batch = step.prepared.union(actor.double(step.prepared, 2.5))
        critic.pull(batch, 0.25)
        step.log(begun=len(begun))


ROLES = {
    "actor": RoleKind(f"{__name__}:Vector", axes=("dp", "tp", "pp"), methods=Vector),
    "critic": registered_script.METHODS["critic"],
}
ALGORITHM: Any = replace(registered_script.ALGORITHM, script=loop, roles=ROLES)
AHEAD: Any = replace(ALGORITHM, script=ahead)
