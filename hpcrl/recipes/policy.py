"""What all algorithms have in common that learn a policy from scored responses: settings, graph, checks and notices.

An algorithm's own file adds its advantages' settings, and what else it calls. Defaults are verl 0.9.1's where it has
one, else TRL 1.16's.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta

from hpcrl.config.bounds import Count, Natural, NonNegative, Positive
from hpcrl.config.classifier import ClassifierConfig
from hpcrl.config.data import DataConfig, rows_of_step
from hpcrl.config.ema import EMAConfig
from hpcrl.config.environment import ENVIRONMENT, EnvironmentConfig
from hpcrl.config.experiment import ExperimentConfig
from hpcrl.config.fields import ChangeClass, sections_of
from hpcrl.config.filter_groups import FilterGroupsConfig
from hpcrl.config.generation import GenerationConfig
from hpcrl.config.judge import JudgeConfig
from hpcrl.config.kl import KLConfig
from hpcrl.config.model import ReferenceConfig, TrainedModelConfig
from hpcrl.config.reward import RewardConfig
from hpcrl.data.batch import Batch
from hpcrl.data.choice import Choice, FirstToEnd
from hpcrl.data.form import COUNTS, FLAGS, NUMBERS
from hpcrl.dataflow.graph import MFC
from hpcrl.errors import Problem
from hpcrl.recipes.algorithm import RoleKind
from hpcrl.recipes.environment import GENERATED, masked, rounds, turn_problems, turns_of
from hpcrl.recipes.environment import MADE as TALKED
from hpcrl.recipes.in_flight import by_ends, choice_by_ends, in_flight_problems
from hpcrl.recipes.served import is_served
from hpcrl.recipes.texts import (
    JUDGED,
    MADE,
    SCORERS,
    TALKER,
    TRAINED,
    choice_by,
    evaluation,
    metric_problems,
    sampling_problems,
    scoring,
    warm_up_notices,
)

ADAPTIVE_ERROR_LIMIT = 0.2
"""An adaptive weight moves by at most this share in `horizon` samples."""

OldLogprobs = Literal["sampled", "recomputed", "own"]
"""Whose log-probabilities a ratio is over: the rollout's, those of an inference before the first update, or, where one
update makes every ratio 1, the model's own at that moment."""


@dataclass(frozen=True, kw_only=True)
class PolicyConfig:
    """How a policy learns from advantages."""

    changes: ClassVar[ChangeClass] = ChangeClass.NUMBERS

    minibatches: Count = 4
    """Optimizer steps per pass over the batch."""
    epochs: Count = 1
    """Passes over the batch per step."""
    reshuffle: bool = False
    """Cut every pass's minibatches from an order of its own, which the seed gives; false: all passes have the same."""
    clip_low: Positive = 0.2
    """Lower bound of the policy's probability ratio: 1 - clip_low."""
    clip_high: Positive = 0.2
    """Upper bound of the policy's probability ratio: 1 + clip_high."""
    dual_clip: Annotated[float, Meta(gt=1)] | None = 3.0
    """Bound of the clipped loss where the advantage is negative, as a multiple of it (above 1); null is off."""
    ratio: Literal["token", "sequence"] = "token"
    """Of each token's probability, or of the whole response's, per token in the geometric mean (GSPO)."""
    objective: Literal["clip", "cispo"] = "clip"
    """clip: the smaller of ratio · advantage, with the ratio free and bounded; cispo: the log-probability, weighed by
    the bounded ratio, through which no gradient flows."""
    old_logprobs: Literal["auto", "sampled", "recomputed"] = "auto"
    """The log-probabilities under a ratio: the rollout's, or those of an inference before training; auto: the latter
    where the actor computes in bf16, a server generates (backend vllm), or an older actor does (lag). Where a step is
    one update, the ratio is 1 and nothing is computed again. The mean distance of both is the statistic logprob_gap."""
    importance_cap: Positive | None = None
    """Weigh each token's loss by p_old / p_rollout, at most this; null is off. Needs log-probabilities of its own."""
    kl: KLConfig = KLConfig()
    """The price of leaving the reference."""
    entropy_coef: NonNegative = 0.0
    """Weight of the entropy bonus; at 0 no entropy is computed."""
    aggregation: Literal[
        "token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm", "token-sum"
    ] = "token-mean"
    """How the losses of tokens become one number; -norm divides each response's sum by generation.max_new_tokens."""
    reward_scale: float = 1.0
    """Scores become (score - reward_bias) · reward_scale."""
    reward_bias: float = 0.0
    """Scores become (score - reward_bias) · reward_scale."""
    reward_clip: Positive | None = None
    """Bound of a scaled score's size; null is off."""
    whiten_rewards: bool = False
    """Divide the tokens' rewards by their deviation over the batch; their mean stays."""
    cut: Literal["score", "penalty", "bootstrap", "mask"] = "score"
    """What a response gets that was cut at max_new_tokens: its score; that less cut_penalty; that and the critic's
    value of what comes after it; or nothing, as if it had not been drawn."""
    cut_penalty: NonNegative = 1.0
    """Taken off the scaled score of a cut response, if cut is penalty."""
    overlong_buffer: Count | None = None
    """A response that reaches into the last so many of max_new_tokens loses up to overlong_penalty, in proportion
    (DAPO); null is off."""
    overlong_penalty: NonNegative = 1.0
    """What the longest response loses of its scaled score, if there is an overlong_buffer."""
    early_stop_kl: Positive | None = None
    """Skip the rest of a step's minibatches when the KL to the rollout's policy exceeds this; null is off."""
    early_stop_ratio: Annotated[float, Meta(gt=1)] | None = None
    """Skip the rest of a step's minibatches when the mean probability ratio exceeds this; null is off."""

    @property
    def actor_waits(self) -> int:
        """The first so many steps do not train the actor."""
        return 0


@dataclass(frozen=True, kw_only=True)
class GroupPolicyConfig(PolicyConfig):
    """How a policy learns from advantages among the responses to a prompt."""

    filter_groups: FilterGroupsConfig = FilterGroupsConfig()
    """Train on prompts whose responses differ in score (dynamic sampling)."""


@dataclass(frozen=True, kw_only=True)
class PolicyExperiment(ExperimentConfig):
    """A policy that learns from scored responses. An algorithm adds its section, of a kind of `PolicyConfig`."""

    data: DataConfig
    """What is read and how it becomes batches."""
    actor: TrainedModelConfig
    """The policy."""
    reference: ReferenceConfig
    """The policy that the actor is held close to; not needed where nothing is held to it."""
    reward: RewardConfig
    """What scores a response."""
    reward_model: ClassifierConfig = ClassifierConfig()
    """The model of a component of the reward, where one has it."""
    judge: JudgeConfig = JudgeConfig()
    """The model that is asked about responses, where a component of the reward has it."""
    environment: EnvironmentConfig = EnvironmentConfig()
    """What the policy talks with between the turns of a response, where there is something."""
    generation: GenerationConfig = GenerationConfig()
    """How responses are sampled."""
    lag: Annotated[Natural, ChangeClass.FORK] = 0
    """Responses come from the actor of so many steps before the newest: they are drawn beside the training of those
    steps, where they are drawn by other workers. 0: from the newest."""


MADE_BY_POLICIES = {
    **MADE,
    **TALKED,
    "versions": COUNTS,
    "whole": FLAGS,
    **dict.fromkeys(("ref_logprobs", "old_logprobs", "advantages"), NUMBERS),
}


def reference_decay(experiment: Any, step: int) -> float:
    """The share of its own parameters that the reference keeps when the actor's are blended into it."""
    ema: EMAConfig = policy_of(experiment).kl.reference_ema
    return ema.at(step)


ROLES: Mapping[str, RoleKind] = {
    "reference": RoleKind("hpcrl.algos.policy:reference", "vocabulary", decay=reference_decay),
    ENVIRONMENT: TALKER,
    **SCORERS,
}
"""Those that are the same whatever the advantages are."""

METRICS: Mapping[str, tuple[str, ...]] = {
    "actor_gen": GENERATED,
    "rew_inf": JUDGED,
    "actor_train": (
        *TRAINED,
        "approx_kl",
        "ratio",
        "clip_fraction",
        "logprob_gap",
        "entropy",
        "kl",
        "kl_coef",
        "counted",
    ),
    "eval_gen": GENERATED,
    "eval_rew": JUDGED,
}


def section_of(experiment: PolicyExperiment) -> tuple[str, PolicyConfig]:
    """The algorithm's own section, and its name."""
    ((name, policy),) = sections_of(experiment, PolicyConfig).items()
    return name, policy


def policy_of(experiment: PolicyExperiment) -> Any:
    """The algorithm's own section, which its type knows better than this function."""
    return section_of(experiment)[1]


def old_logprobs(experiment: PolicyExperiment) -> OldLogprobs:
    """Where the log-probabilities under a ratio come from."""
    policy: PolicyConfig = policy_of(experiment)
    older = experiment.lag > 0 or experiment.generation.in_flight is not None
    served = any(is_served(experiment, call) for call in turns_of(experiment.environment, "actor_gen"))
    apart = experiment.actor.dtype == "bf16" or served or older
    if not (policy.old_logprobs == "recomputed" or (policy.old_logprobs == "auto" and apart)):
        return "sampled"
    return "own" if batch(experiment).updates == 1 else "recomputed"


def rollout_keys(experiment: PolicyExperiment) -> tuple[str, ...]:
    """What a train_step reads of a rollout."""
    keys = ("prompts", "responses", "finished", "logprobs", "rewards", "token_rewards")
    again = ("old_logprobs",) * (old_logprobs(experiment) == "recomputed")
    return (*keys, *masked(experiment.environment), *again, *("ref_logprobs",) * policy_of(experiment).kl.used)


def calls(experiment: PolicyExperiment, own: Sequence[MFC] = (), keys: Sequence[str] = ()) -> tuple[MFC, ...]:
    """The graph of a step, with an algorithm's own calls, of which the actor reads these keys."""
    texts = ("prompts", "responses")
    made = ("responses", "logprobs", "finished")
    found = [
        *rounds(experiment.environment, MFC("actor_gen", "actor", "generate", ("prompts",), made, lag=experiment.lag)),
        *scoring(experiment.reward, experiment.environment),
    ]
    if old_logprobs(experiment) == "recomputed":
        found.append(MFC("actor_inf", "actor", "inference", texts, ("old_logprobs",), rows="chosen"))
    kl: KLConfig = policy_of(experiment).kl
    if kl.used:
        found.append(MFC("ref_inf", "reference", "inference", texts, ("ref_logprobs",), rows="chosen"))
    if kl.used and kl.reference_ema.decay is not None:
        found.append(MFC("ref_blend", "reference", "blend", (), blends="actor"))
    train = MFC("actor_train", "actor", "train_step", (*rollout_keys(experiment), *keys), shown=("advantages",))
    every = (*found, train, *own, *evaluation(experiment.generation, experiment.reward, experiment.environment))
    return by_ends(experiment.generation, every, "actor_gen")


def batch(experiment: PolicyExperiment) -> Batch:
    data, policy = experiment.data, policy_of(experiment)
    return Batch(
        rows=rows_of_step(data),
        per_row=data.samples_per_prompt,
        minibatches=policy.minibatches,
        passes=policy.epochs,
        reshuffled=policy.reshuffle,
        shuffled=data.shuffle,
        drop_last=data.drop_last,
    )


def choice(experiment: PolicyExperiment) -> Choice | FirstToEnd | None:
    """How steps choose the prompts that they train on: those that end first, or those whose samples differ."""
    if (by_end := choice_by_ends(experiment.generation)) is not None:
        return by_end
    name, section = section_of(experiment)
    if not isinstance(section, GroupPolicyConfig):
        return None
    return choice_by(section.filter_groups, f"{name}.filter_groups", experiment.reward)


def check(experiment: PolicyExperiment) -> Iterator[Problem]:
    """What is wrong whatever the advantages are."""
    name, policy = section_of(experiment)
    yield from sampling_problems(name, experiment.generation)
    samples = batch(experiment).samples
    if policy.minibatches > samples:
        yield Problem(
            (f"{name}.minibatches", "data.batch_size", "data.samples_per_prompt"),
            f"{name}.minibatches = {policy.minibatches} must be at most data.batch_size · "
            f"data.samples_per_prompt = {samples}, so that none is empty.",
            f"Lower {name}.minibatches or raise data.batch_size.",
        )
    yield from _kl_problems(name, policy.kl, samples)
    yield from _length_problems(name, policy, experiment.generation.max_new_tokens)
    yield from turn_problems(experiment.environment, experiment)
    groups = policy.filter_groups if isinstance(policy, GroupPolicyConfig) else FilterGroupsConfig()
    metric = None if groups.metric is None else f"{name}.filter_groups.metric"
    yield from in_flight_problems(experiment, batch(experiment).rows, experiment.environment, metric)
    if isinstance(policy, GroupPolicyConfig):
        yield from metric_problems(policy.filter_groups, f"{name}.filter_groups", experiment.reward)
    if policy.importance_cap is not None and old_logprobs(experiment) == "sampled":
        yield Problem(
            (f"{name}.importance_cap", f"{name}.old_logprobs", "actor.dtype"),
            f"{name}.importance_cap = {policy.importance_cap:g} bounds p_old / p_rollout, but with {name}.old_logprobs "
            f"= {policy.old_logprobs} (actor.dtype = {experiment.actor.dtype}) both are the rollout's.",
            f"Set {name}.old_logprobs to recomputed, or {name}.importance_cap to null.",
        )


def critic_problems(experiment: PolicyExperiment) -> Iterator[Problem]:
    """What an algorithm without a critic cannot do."""
    name, policy = section_of(experiment)
    if policy.cut == "bootstrap":
        yield Problem(
            (f"{name}.cut",),
            f"{name}.cut = bootstrap needs a critic's value of what comes after a response, and {name} has no critic.",
            f"Set {name}.cut.",
        )


def group_check(experiment: PolicyExperiment) -> Iterator[Problem]:
    """What is wrong with an algorithm that compares responses to one prompt, and has no critic."""
    yield from check(experiment)
    yield from critic_problems(experiment)
    yield from group_problems(experiment)


def group_problems(experiment: PolicyExperiment) -> Iterator[Problem]:
    """A response that is compared with the others to its prompt has to have some."""
    name, samples = section_of(experiment)[0], experiment.data.samples_per_prompt
    if samples < 2:
        yield Problem(
            ("data.samples_per_prompt",),
            f"data.samples_per_prompt = {samples} must be at least 2 for {name}: each response is compared with the "
            "others to its prompt.",
            "Raise data.samples_per_prompt.",
        )


def _kl_problems(name: str, kl: KLConfig, samples: int) -> Iterator[Problem]:
    """An adaptive weight is multiplied once a step, by a factor that must stay above 0."""
    if not kl.adaptive:
        return
    if kl.coef == 0:
        yield Problem(
            (f"{name}.kl.coef",),
            f"{name}.kl.coef = 0 must be above 0 where {name}.kl.adaptive is true: it is multiplied from step to step, "
            "and would stay 0.",
            f"Set {name}.kl.coef or {name}.kl.adaptive.",
        )
    if kl.horizon <= ADAPTIVE_ERROR_LIMIT * samples:
        yield Problem(
            (f"{name}.kl.horizon", "data.batch_size", "data.samples_per_prompt"),
            f"{name}.kl.horizon = {kl.horizon:g} must be above {ADAPTIVE_ERROR_LIMIT} · data.batch_size · "
            f"data.samples_per_prompt = {ADAPTIVE_ERROR_LIMIT * samples:g}, or one step could turn the adaptive "
            f"{name}.kl.coef negative.",
            f"Raise {name}.kl.horizon.",
        )


def _length_problems(name: str, policy: PolicyConfig, longest: int) -> Iterator[Problem]:
    if policy.overlong_buffer is not None and policy.overlong_buffer > longest:
        yield Problem(
            (f"{name}.overlong_buffer", "generation.max_new_tokens"),
            f"{name}.overlong_buffer = {policy.overlong_buffer} must be at most generation.max_new_tokens = {longest}, "
            "of which it is the end.",
            f"Lower {name}.overlong_buffer.",
        )


def notices(experiment: PolicyExperiment) -> Iterator[str]:
    name, policy = section_of(experiment)
    yield from warm_up_notices(experiment, batch(experiment).updates, f" · {name}.minibatches · {name}.epochs")
    if policy.kl.mode == "none" and policy.kl != KLConfig():
        yield f"{name}.kl has no effect: {name}.kl.mode is none. Set it to reward or loss for a penalty."
    if experiment.lag and policy.importance_cap is None and old_logprobs(experiment) != "sampled":
        yield f"lag = {experiment.lag}, but no token is weighed by how likely it has become: see {name}.importance_cap."
    if not policy.kl.used and experiment.reference.path != experiment.actor.path:
        yield f"reference is not loaded: nothing is held to it, since {name}.kl.mode is none or {name}.kl.coef is 0."


def without_effect(experiment: PolicyExperiment) -> Mapping[str, str]:
    name, policy = section_of(experiment)
    if not policy.kl.adaptive:
        return {}
    return {f"{name}.kl.coef": "it is the first value of an adaptive weight, which goes on from its recorded value"}


def uncomputed(experiment: PolicyExperiment) -> Mapping[str, str]:
    name, policy = section_of(experiment)
    found = {}
    if not policy.entropy_coef:
        found["actor_train/entropy"] = f"{name}.entropy_coef = 0"
    if not policy.kl.used:
        setting = f"{name}.kl.mode = none" if policy.kl.mode == "none" else f"{name}.kl.coef = 0"
        found |= dict.fromkeys(("actor_train/kl", "actor_train/kl_coef"), setting)
    return found
