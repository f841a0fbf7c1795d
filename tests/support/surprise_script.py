"""PPO as a script that asks its actor, by a registered method, how surprising each token is."""

from dataclasses import replace
from typing import Any

import numpy as np

from hpcrl.recipes import ppo
from hpcrl.recipes.algorithm import RoleKind
from hpcrl.recipes.registered import Dispatch, register


class Surprise:
    """What the actor can do besides; it is imported without torch."""

    engine: Any
    experiment: Any

    @register(Dispatch.MEGATRON_COMPUTE_PROTO, inputs=("prompts", "responses"), outputs={"surprise": "float32"})
    def surprise(self, rows: Any, by: float) -> Any:
        from hpcrl.engines.engine import Sequences

        sequences = Sequences.from_rows(rows["prompts"], rows["responses"])
        packed = self.engine.forward(sequences, self.experiment.generation.temperature)
        return {"surprise": np.split(-by * packed, np.cumsum(sequences.labels)[:-1])}

    @register(Dispatch.ONE_TO_ALL, rehearsed={"beta": 0.0})
    def remembered(self) -> Any:
        return {"beta": self.state()["kl_coef"]}  # type: ignore[attr-defined]


def actor(at: Any) -> Any:
    from hpcrl.algos.policy import Policy
    from hpcrl.algos.ppo import advantages

    class Actor(Surprise, Policy):
        pass

    return Actor(at.engine(), at.experiment, advantages)


def loop(run: Any, e: Any) -> None:
    actor, critic, reference, reward = run.groups("actor", "critic", "reference", "reward")
    begun = actor.remembered()
    for step in run.steps():
        batch = step.batch()
        batch = batch.union(actor.generate(batch))
        surprise = actor.surprise(batch, 2.0, blocking=False)
        batch = batch.union(reward.score(batch), critic.values(batch), reference.logprobs(batch), surprise)
        before = {told["beta"] for told in actor.remembered()}
        rows = batch.fetch("surprise", "logprobs")
        gaps = [np.abs(a + 2.0 * b).max() for a, b in zip(rows["surprise"], rows["logprobs"], strict=True)]
        critic.update(batch)
        actor.update(batch)
        step.log(gap=max(gaps), surprise=batch.mean("surprise"), beta=before.pop(), betas=len(before), begun=len(begun))


ALGORITHM: Any = replace(
    ppo.ALGORITHM,
    script=loop,
    roles={**ppo.ALGORITHM.roles, "actor": RoleKind(f"{__name__}:actor", "vocabulary", methods=Surprise)},
)
