"""What algorithms over texts have in common: their evaluation, the statistics of their calls, checks and notices."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from hpcrl.config.data import DataConfig, rows_of_step
from hpcrl.config.environment import ENVIRONMENT, EnvironmentConfig
from hpcrl.config.fields import sections_of
from hpcrl.config.filter_groups import FilterGroupsConfig
from hpcrl.config.generation import GenerationConfig
from hpcrl.config.model import TrainedModelConfig
from hpcrl.config.reward import RewardConfig
from hpcrl.data.batch import Batch
from hpcrl.data.choice import Choice
from hpcrl.data.form import BYTES, FLAGS, NUMBERS, TOKENS, Form
from hpcrl.dataflow.graph import MFC
from hpcrl.errors import Problem
from hpcrl.recipes.algorithm import JUDGE, RoleKind, on_eval
from hpcrl.recipes.environment import rounds

WHOLE_DISTRIBUTION: Mapping[str, float] = MappingProxyType(
    {"min_new_tokens": 0, "top_k": 0, "top_p": 1, "greedy": False}
)
"""The sampling options under which a response is drawn from the very distribution that training differentiates."""

REWARD = RoleKind("hpcrl.workers.rewards:reward", host="hpcrl.workers.reward_host:RewardHost")
"""The role that scores responses by the functions of its section, a RewardConfig."""

JUDGED = ("reward", "accuracy", "dropped", "not_scorable")
SCORED_PAIR = ("prompts", "chosen", "rejected", "margins")
SCORED = ("accuracy", "margin", "chosen", "rejected")
TRAINED = ("loss", "lr", "grad_norm", "skipped")

ALONE = EnvironmentConfig()
"""No environment: a response is one turn."""

SCORES = ("rewards", "reward_components", "token_rewards", "reward_details")
"""What it makes. `rewards` [1] is NaN where a sample has none and is not to be counted; `reward_components`
[components] are the scores that it is the weighted sum of; `token_rewards` [T] adds up to it where some of it belongs
to a place in the response, and is [0] where all of it is at the end; `reward_details` [bytes] is JSON, where there is
something to tell: the `numbers` that functions report besides, and the `error` for which a response was dropped."""

SCORING = MFC("rew_inf", "reward", "inference", ("prompts", "responses", "finished"), SCORES)
"""Score the responses of training."""

JUDGING = MFC("rm_inf", "reward_model", "inference", ("prompts", "responses"), ("model_scores",))
"""Have the reward model score them, where a component of the reward is its."""

ASKING = MFC("judge_gen", "judge", "generate", ("prompts", "responses"), ("judge_scores", "judge_texts"))
"""Ask the judge about them, where a component of the reward is its. `judge_scores` [1] is NaN where its answer has no
mark; `judge_texts` [bytes] is the answer."""

ASKED = {"reward_model": JUDGING, "judge": ASKING}
"""Role whose model may be a component of the reward → the call of it."""

TALKER = RoleKind("hpcrl.workers.environment:environment", host=REWARD.host)
"""An environment, where responses have several turns."""

REWARD_MODEL = RoleKind("hpcrl.algos.classifier:reward_model")
"""The role of that model; its section is a ClassifierConfig."""

SCORERS: Mapping[str, RoleKind] = MappingProxyType(
    {
        "reward": REWARD,
        "reward_model": REWARD_MODEL,
        "judge": RoleKind("hpcrl.algos.judge:judge", "vocabulary"),
    }
)
"""All roles that score responses. The judge is a model that is asked; its section is a JudgeConfig."""


SCORED_BY: Mapping[str, str] = MappingProxyType(
    {**{role: call.outputs[0] for role, call in ASKED.items()}, ENVIRONMENT: "environment_scores"}
)
"""Role that may be a component of the reward → the key of its scores."""


def scoring(reward: RewardConfig, environment: EnvironmentConfig = ALONE) -> tuple[MFC, ...]:
    """The calls that score the responses of training. A score of an environment that is not there is read by none: it
    is refused as a setting, not as a graph."""
    asked = [call for role, call in ASKED.items() if role in reward.roles]
    there = [role for role in reward.roles if role != ENVIRONMENT or environment.function is not None]
    scores = (key for role, key in SCORED_BY.items() if role in there)
    return *asked, msgspec.structs.replace(SCORING, inputs=(*SCORING.inputs, *scores))


def evaluation(
    generation: GenerationConfig, reward: RewardConfig, environment: EnvironmentConfig = ALONE
) -> tuple[MFC, ...]:
    """Generate responses to held-out prompts, greedily unless they have a temperature of their own, and judge them."""
    return tuple(map(on_eval, judgement(generation, reward, environment)))


def judgement(
    generation: GenerationConfig, reward: RewardConfig, environment: EnvironmentConfig = ALONE
) -> tuple[MFC, ...]:
    """The calls of an evaluation, on whatever samples."""
    greedy = generation.evaluation.temperature is None
    made, (*models, score) = ("responses", "logprobs", "finished"), scoring(reward, environment)
    return (
        *rounds(environment, MFC("eval_gen", "actor", "generate", ("prompts",), made, greedy=greedy)),
        *(msgspec.structs.replace(call, name=f"eval_{short_name(call)}") for call in models),
        msgspec.structs.replace(score, name="eval_rew", method=JUDGE),
    )


def short_name(asked: MFC) -> str:
    """What the call of a reward's model is called after what it is made on: rm, judge."""
    return asked.name.partition("_")[0]


MADE: Mapping[str, Form] = MappingProxyType(
    {
        "responses": TOKENS,
        "logprobs": NUMBERS,
        "finished": FLAGS,
        **dict.fromkeys((*SCORES, *JUDGING.outputs, *ASKING.outputs), NUMBERS),
        "reward_details": BYTES,
        "judge_texts": BYTES,
    }
)
"""The keys of generation and judgement."""


def sampling_problems(algorithm: str, generation: GenerationConfig) -> Iterator[Problem]:
    """Training and a reference take log-probabilities over the whole vocabulary, so a rollout must too."""
    for name, needed in WHOLE_DISTRIBUTION.items():
        value = getattr(generation, name)
        if value != needed:
            yield Problem(
                (f"generation.{name}",),
                f"generation.{name} = {str(value).lower()} must be {str(needed).lower()} for {algorithm}: training "
                "takes log-probabilities over the whole vocabulary, so ratios and KL would be wrong.",
                f"Set generation.{name}.",
            )


def learnt(data: DataConfig) -> Batch:
    """Steps that learn rows as they are, each once."""
    return Batch(
        rows=rows_of_step(data),
        tokens=data.batch_tokens,
        even=data.balance,
        shuffled=data.shuffle,
        drop_last=data.drop_last,
    )


def read_in_order(data: DataConfig, per_row: int = 1) -> Batch:
    """Steps that read rows in the order of the file: nothing learns from their order."""
    return Batch(
        rows=rows_of_step(data), tokens=data.batch_tokens, per_row=per_row, shuffled=False, drop_last=data.drop_last
    )


def one_sample_problems(experiment: Any, because: str) -> Iterator[Problem]:
    """Algorithms that generate nothing take each row once."""
    count = experiment.data.samples_per_prompt
    if count != 1:
        yield Problem(
            ("data.samples_per_prompt",),
            f"data.samples_per_prompt = {count} must be 1 for {experiment.algorithm}: {because}.",
            "Set data.samples_per_prompt.",
        )


def choice_by(groups: FilterGroupsConfig, setting: str, reward: RewardConfig) -> Choice | None:
    """How steps choose by what `SCORING` makes, as a section of this name says."""
    if groups.metric is None:
        return None
    component = reward.right_component if groups.metric == "accuracy" else groups.metric
    parts = list(reward.components) if reward.function is None else ["reward"]
    column = parts.index(component) if component in parts and component != "reward" else None
    return Choice(
        key="rewards" if column is None else "reward_components",
        column=column,
        right_at=reward.right_at if groups.metric == "accuracy" else None,
        max_rounds=groups.max_rounds,
        on_shortage=groups.on_shortage,
        setting=f"{setting}.metric",
    )


def metric_problems(groups: FilterGroupsConfig, setting: str, reward: RewardConfig) -> Iterator[Problem]:
    """A metric that no reward has."""
    known = dict.fromkeys(["reward", "accuracy", *reward.components])
    if groups.metric is not None and groups.metric not in known:
        yield Problem(
            (f"{setting}.metric", "reward.components"),
            f"{setting}.metric = {groups.metric} must be one of {', '.join(known)}: what responses are scored by.",
            f"Set {setting}.metric.",
        )


def warm_up_notices(experiment: Any, updates: int, of: str = "") -> Iterator[str]:
    """Rates that never reach their peak, in a run whose steps have so many `updates`; `of` says what these are of."""
    steps = experiment.control.steps
    for role, model in sections_of(experiment, TrainedModelConfig).items():
        if steps is not None and model.optimizer.warmup_steps >= steps * updates:
            yield (
                f"{role}.optimizer.warmup_steps = {model.optimizer.warmup_steps} is no less than control.steps{of} = "
                f"{steps * updates}, the updates of the run, so the rate never reaches {role}.optimizer.lr."
            )
