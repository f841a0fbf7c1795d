"""ReMax: the baseline is the reward of the greedy response to a prompt (Li et al. 2024, arXiv:2310.10505).

Without a critic. Each sample has a greedy response of its own, so that one sample of each prompt is usual.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from hpcrl.config.fields import NameText
from hpcrl.data.form import BYTES, FLAGS, NUMBERS, TOKENS
from hpcrl.data.rows.prompts import PROMPTS
from hpcrl.dataflow.graph import MFC
from hpcrl.dataflow.renamed import under_other_keys
from hpcrl.errors import Problem
from hpcrl.recipes import policy, updates
from hpcrl.recipes.algorithm import Algorithm, RoleKind
from hpcrl.recipes.environment import GENERATED, rounds
from hpcrl.recipes.environment import MADE as TALKED
from hpcrl.recipes.policy import PolicyConfig, PolicyExperiment
from hpcrl.recipes.texts import JUDGED, scoring, short_name


@dataclass(frozen=True, kw_only=True)
class RemaxConfig(PolicyConfig):
    """ReMax."""


@dataclass(frozen=True, kw_only=True)
class RemaxExperiment(PolicyExperiment):
    """ReMax: actor and a reward function."""

    algorithm: NameText = "remax"
    """What to run."""
    remax: RemaxConfig = RemaxConfig()
    """ReMax's hyper-parameters."""


def on_greedy(call: MFC) -> MFC:
    """The call on greedy responses: what it makes of a response, and reads of one, has a name of its own."""
    return under_other_keys(call, {key: f"base_{key}" for key in (*call.inputs, *call.outputs) if key != "prompts"})


def greedy(experiment: RemaxExperiment) -> tuple[MFC, ...]:
    """Generate the greedy response to each prompt, and score it."""
    responses = ("responses", "finished")
    base = MFC("base_gen", "actor", "generate", ("prompts",), responses, greedy=True, lag=experiment.lag)
    *judging, score = scoring(experiment.reward, experiment.environment)
    judged = [msgspec.structs.replace(call, name=f"base_{short_name(call)}") for call in judging]
    scored = msgspec.structs.replace(score, name="base_rew", outputs=("rewards",))
    return tuple(map(on_greedy, (*rounds(experiment.environment, base), *judged, scored)))


def recipe(experiment: RemaxExperiment) -> tuple[MFC, ...]:
    return policy.calls(experiment, greedy(experiment), ("base_responses", "base_finished", "base_rewards"))


def check(experiment: RemaxExperiment) -> Iterator[Problem]:
    yield from policy.check(experiment)
    yield from policy.critic_problems(experiment)


ALGORITHM = Algorithm(
    experiment=RemaxExperiment,
    recipe=recipe,
    roles={"actor": RoleKind("hpcrl.algos.remax:actor", "vocabulary"), **policy.ROLES},
    rows=PROMPTS,
    made={
        **policy.MADE_BY_POLICIES,
        **{f"base_{key}": form for key, form in TALKED.items()},
        "base_logprobs": NUMBERS,
        "base_responses": TOKENS,
        "base_finished": FLAGS,
        "base_rewards": NUMBERS,
        "base_model_scores": NUMBERS,
        "base_judge_scores": NUMBERS,
        "base_judge_texts": BYTES,
    },
    batch=updates.batch,
    choice=policy.choice,
    check=check,
    notices=policy.notices,
    without_effect=policy.without_effect,
    uncomputed=policy.uncomputed,
    metrics={**policy.METRICS, "base_gen": GENERATED, "base_rew": JUDGED},
)
