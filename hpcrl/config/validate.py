"""Whether the values of a configuration make sense, together. Reads nothing but the existence of files."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hpcrl.config.condition import Condition
from hpcrl.config.experiment import Experiment, PPOExperiment, SFTExperiment, ToyExperiment
from hpcrl.config.fields import settings
from hpcrl.config.generation import GenerationConfig
from hpcrl.config.model import ModelConfig
from hpcrl.recipes.ppo import ADAPTIVE_ERROR_LIMIT

OURS = (
    "--array",
    "--comment",
    "--output",
    "--error",
    "--chdir",
    "--signal",
    "--open-mode",
    "--job-name",
    "--dependency",
)
"""The options of sbatch without which hpcrl could not find or restart its jobs."""

REWARDS: Mapping[str, Mapping[str, tuple[str, Callable[[Any], bool]]]] = MappingProxyType(
    {
        "gsm8k": {
            "method": ("one of strict, flexible", lambda value: value in ("strict", "flexible")),
            "format_score": ("a finite number", lambda value: _is_number(value) and math.isfinite(value)),
        },
        "exact": {},
    }
)
"""The reward functions that hpcrl brings, and what each of their kwargs may be."""

WHOLE_DISTRIBUTION: Mapping[str, float] = MappingProxyType(
    {"min_new_tokens": 0, "top_k": 0, "top_p": 1, "greedy": False}
)
"""The sampling options under which a response is drawn from the very distribution that training differentiates."""


@dataclass(frozen=True)
class Problem:
    """What is wrong, and the settings that it is about."""

    keys: tuple[str, ...]
    text: str


Check = Callable[[Experiment], Iterable[Problem]]


def validate(experiment: Experiment) -> list[str]:
    """Everything that is wrong with the values, each with the value, the expectation and the knob."""
    return [problem.text for problem in collect(experiment, CHECKS, [])]


def notices(experiment: Experiment) -> Iterator[str]:
    """What is allowed, as in a short trial of a long recipe, but hardly meant for a whole run."""
    steps = experiment.control.steps
    if isinstance(experiment, ToyExperiment) or steps is None:
        return
    optimizers, of, updates = {"actor": experiment.actor.optimizer}, "control.steps", steps
    if isinstance(experiment, PPOExperiment):
        optimizers["critic"] = experiment.critic.optimizer
        of += " · ppo.minibatches · ppo.epochs"
        updates *= experiment.ppo.minibatches * experiment.ppo.epochs
    for role, optimizer in optimizers.items():
        if optimizer.warmup_steps >= updates:
            yield (
                f"{role}.optimizer.warmup_steps = {optimizer.warmup_steps} is no less than {of} = {updates}, the "
                f"updates of the run, so the rate never reaches {role}.optimizer.lr."
            )


def collect(experiment: Experiment, checks: Sequence[Check], found: Sequence[Problem]) -> list[Problem]:
    """`found` and what the checks find; a check is not heard about a value that was already found wrong."""
    found = list(found)
    for check in checks:
        wrong = {key for problem in found for key in problem.keys}
        found += [problem for problem in check(experiment) if not _concerns(problem, wrong)]
    return found


def _concerns(problem: Problem, wrong: Iterable[str]) -> bool:
    return any(bad == key or bad.startswith(key + ".") for bad in wrong for key in problem.keys)


def bound_problems(experiment: Experiment) -> Iterator[Problem]:
    """Values that are wrong whatever the others are."""
    for setting in settings(type(experiment)):
        value = setting.of(experiment)
        if expectation := setting.broken_bound(value):
            yield Problem((setting.key,), f"{setting.key} = {value} must be {expectation}. Set {setting.key}.")


def combined_problems(experiment: Experiment) -> Iterator[Problem]:
    """Values that do not go together, and files that are not there."""
    yield from _cluster_problems(experiment)
    yield from _length_problems(experiment)
    yield from _evaluation_problems(experiment)
    if isinstance(experiment, ToyExperiment):
        yield from _toy_problems(experiment)
        return
    yield from _data_problems(experiment)
    yield from _model_problems("actor", experiment.actor)
    yield from _generation_problems(experiment)
    yield from _reward_problems(experiment)
    if isinstance(experiment, PPOExperiment):
        yield from _model_problems("critic", experiment.critic)
        yield from _model_problems("reference", experiment.reference)
        yield from _minibatch_problems(experiment)
        yield from _kl_problems(experiment)
    elif experiment.data.samples_per_prompt != 1:
        yield Problem(
            ("data.samples_per_prompt",),
            f"data.samples_per_prompt = {experiment.data.samples_per_prompt} must be 1: sft learns each row's "
            "answer. Set data.samples_per_prompt.",
        )


CHECKS: tuple[Check, ...] = (bound_problems, combined_problems)
"""All that can be said of the values alone."""


def _cluster_problems(experiment: Experiment) -> Iterator[Problem]:
    cluster = experiment.cluster
    yield from _slurm_problems(experiment)
    for name in ("lost_after_s", "orphan_timeout_s"):
        patience_s = getattr(cluster, name)
        if patience_s < 3 * cluster.heartbeat_s:
            yield Problem(
                (f"cluster.{name}", "cluster.heartbeat_s"),
                f"cluster.{name} = {patience_s:g} must be at least three heartbeats, 3 · {cluster.heartbeat_s:g} s, so "
                f"that one late heartbeat loses nobody. Raise cluster.{name} or lower cluster.heartbeat_s.",
            )


def _slurm_problems(experiment: Experiment) -> Iterator[Problem]:
    """Only what Slurm itself would say too late, or not at all."""
    cluster, slurm = experiment.cluster, experiment.cluster.slurm
    if slurm.container != "none" and not slurm.container_image:
        yield Problem(
            ("cluster.slurm.container", "cluster.slurm.container_image"),
            f"cluster.slurm.container = {slurm.container} needs an image. Set cluster.slurm.container_image.",
        )
    if cluster.template is not None and not Path(cluster.template).is_file():
        yield Problem(
            ("cluster.template",),
            f"cluster.template = {cluster.template} must be a file; `hpcrl template array` prints one to begin with. "
            "Set cluster.template.",
        )
    for name in ("flags", "master_flags"):
        for flag in getattr(slurm, name):
            if flag.partition("=")[0] in OURS or not flag.startswith("-"):
                yield Problem(
                    (f"cluster.slurm.{name}",),
                    f"cluster.slurm.{name} has {flag!r}: it must be an option of sbatch, like --switches=1, and "
                    f"none of {', '.join(OURS)}, which hpcrl needs for itself. Set cluster.slurm.{name}.",
                )


def _length_problems(experiment: Experiment) -> Iterator[Problem]:
    control = experiment.control
    if (control.steps is None) == (control.epochs is None):
        found = "both are null" if control.steps is None else f"they are {control.steps} and {control.epochs}"
        yield Problem(
            ("control.steps", "control.epochs"),
            f"Either control.steps or control.epochs must be set, but {found}. Set one and leave the other null.",
        )
    if control.stop_when is not None:
        try:
            Condition.parse(control.stop_when)
        except ValueError as error:
            yield Problem(("control.stop_when",), f"control.stop_when = {error}. Set control.stop_when.")


def _data_problems(experiment: SFTExperiment | PPOExperiment) -> Iterator[Problem]:
    data = experiment.data
    for key, path in (("data.train", data.train), ("data.evaluate", data.evaluate)):
        if path is not None and not Path(path).is_file():
            yield Problem((key,), f"{key} = {path} must be a file of JSON lines, but there is none. Set {key}.")
    key = "actor.path" if data.tokenizer is None else "data.tokenizer"
    folder = Path(data.tokenizer or experiment.actor.path)
    if folder.is_dir() and not (folder / "tokenizer.json").is_file():
        yield Problem(
            (key, "data.tokenizer"), f"{key} = {folder} must hold tokenizer.json, but does not. Set data.tokenizer."
        )
    if data.tokenizer is not None and not folder.is_dir():
        yield Problem((key,), f"{key} = {folder} must be a folder with tokenizer.json, but there is none. Set {key}.")


def _evaluation_problems(experiment: Experiment) -> Iterator[Problem]:
    control = experiment.control
    has_rows = isinstance(experiment, ToyExperiment) or experiment.data.evaluate is not None
    rhythm = control.evaluate
    periodic = any(every is not None for every in (rhythm.steps, rhythm.epochs, rhythm.seconds))
    if periodic and not has_rows:
        yield Problem(
            ("control.evaluate", "data.evaluate"),
            "control.evaluate asks for evaluations, but data.evaluate is null. "
            "Set data.evaluate or leave control.evaluate out.",
        )
    if (control.stop_when or "").lstrip().startswith("eval_") and not (periodic and has_rows):
        yield Problem(
            ("control.stop_when", "control.evaluate", "data.evaluate"),
            f"control.stop_when = {control.stop_when!r} waits for evaluations, but none is made. "
            f"Set {'' if has_rows else 'data.evaluate and '}control.evaluate.",
        )


def _model_problems(role: str, model: ModelConfig) -> Iterator[Problem]:
    folder = Path(model.path)
    config, *weights = (folder / name for name in ("config.json", "model.safetensors", "model.safetensors.index.json"))
    if config.is_file() and any(file.is_file() for file in weights):
        return
    lacking = "no model.safetensors or its index" if config.is_file() else "no config.json"
    what = f"it has {lacking}" if folder.is_dir() else "there is none"
    yield Problem(
        (f"{role}.path",),
        f"{role}.path = {folder} must be a folder with config.json and *.safetensors, but {what}. Set {role}.path.",
    )


def _generation_problems(experiment: SFTExperiment | PPOExperiment) -> Iterator[Problem]:
    generation = experiment.generation
    if isinstance(experiment, PPOExperiment):
        yield from _sampling_problems(generation)
    elif generation.min_new_tokens > generation.max_new_tokens:
        yield Problem(
            ("generation.min_new_tokens", "generation.max_new_tokens"),
            f"generation.min_new_tokens = {generation.min_new_tokens} must be at most generation.max_new_tokens = "
            f"{generation.max_new_tokens}. Lower the first or raise the second.",
        )


def _sampling_problems(generation: GenerationConfig) -> Iterator[Problem]:
    """Training and the reference take log-probabilities over the whole vocabulary, so a rollout must too."""
    for name, needed in WHOLE_DISTRIBUTION.items():
        value = getattr(generation, name)
        if value != needed:
            yield Problem(
                (f"generation.{name}",),
                f"generation.{name} = {str(value).lower()} must be {str(needed).lower()} for ppo: training takes "
                "log-probabilities over the whole vocabulary, so ratios and KL would be wrong. "
                f"Set generation.{name}.",
            )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _reward_problems(experiment: SFTExperiment | PPOExperiment) -> Iterator[Problem]:
    function = experiment.reward.function
    if function in REWARDS:
        yield from _kwargs_problems(function, experiment.reward.kwargs)
        return
    place, _, name = function.rpartition(":")
    if not place or not name.isidentifier():
        yield Problem(
            ("reward.function",),
            f'reward.function = {function} must be one of {", ".join(REWARDS)}, or "module:function", or '
            '"/path/file.py:function". Set reward.function.',
        )
    elif place.endswith(".py") and not Path(place).is_file():
        yield Problem(
            ("reward.function",), f"reward.function = {function} names a file that is not there. Set reward.function."
        )


def _kwargs_problems(function: str, kwargs: Mapping[str, Any]) -> Iterator[Problem]:
    """What a function of hpcrl's takes is known; a user's says itself what it does not take."""
    known = REWARDS[function]
    for name, value in kwargs.items():
        expectation, holds = known.get(name, ("", lambda _: False))
        what = f"must be {expectation}" if expectation else f"is not known; it takes {', '.join(known) or 'none'}"
        if not holds(value):
            yield Problem(
                ("reward.kwargs",), f"reward.kwargs.{name} = {value} of {function} {what}. Set reward.kwargs."
            )


def _minibatch_problems(experiment: PPOExperiment) -> Iterator[Problem]:
    rows = experiment.data.batch_size * experiment.data.samples_per_prompt
    if experiment.ppo.minibatches > rows:
        yield Problem(
            ("ppo.minibatches", "data.batch_size", "data.samples_per_prompt"),
            f"ppo.minibatches = {experiment.ppo.minibatches} must be at most data.batch_size · data.samples_per_prompt "
            f"= {rows}, so that none is empty. Lower ppo.minibatches or raise data.batch_size.",
        )


def _kl_problems(experiment: PPOExperiment) -> Iterator[Problem]:
    """An adaptive weight is multiplied once a step, by a factor that must stay above 0."""
    kl = experiment.ppo.kl
    if not kl.adaptive:
        return
    samples = experiment.data.batch_size * experiment.data.samples_per_prompt
    if kl.coef == 0:
        yield Problem(
            ("ppo.kl.coef",),
            "ppo.kl.coef = 0 must be above 0 where ppo.kl.adaptive is true: it is multiplied from step to step, and "
            "would stay 0. Set ppo.kl.coef or ppo.kl.adaptive.",
        )
    if kl.horizon <= ADAPTIVE_ERROR_LIMIT * samples:
        yield Problem(
            ("ppo.kl.horizon", "data.batch_size", "data.samples_per_prompt"),
            f"ppo.kl.horizon = {kl.horizon:g} must be above {ADAPTIVE_ERROR_LIMIT} · data.batch_size · "
            f"data.samples_per_prompt = {ADAPTIVE_ERROR_LIMIT * samples:g}, or one step could turn the adaptive "
            "ppo.kl.coef negative. Raise ppo.kl.horizon.",
        )


def _toy_problems(experiment: ToyExperiment) -> Iterator[Problem]:
    toy = experiment.toy
    if toy.batch_size > toy.rows:
        yield Problem(
            ("toy.batch_size", "toy.rows"),
            f"toy.batch_size = {toy.batch_size} must be at most toy.rows = {toy.rows}. Lower the first.",
        )
