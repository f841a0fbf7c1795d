"""Every algorithm's dataflow graph, on one page.

Evaluation (`eval_gen` → `eval_rew`, for SFT `eval_loss` too, on samples of the evaluation data set) is part of a
recipe only where the experiment evaluates. Its keys are remapped, so that the roles see the plain names.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import networkx as nx
from msgspec.structs import replace

from hpcrl.dataflow.graph import MFC, build_graph


@dataclass(frozen=True)
class Recipe:
    """The calls of an algorithm, and the keys that its data sets are to deliver."""

    calls: tuple[MFC, ...]
    dataset_keys: tuple[str, ...]
    eval_keys: tuple[str, ...] = ()

    def graph(self) -> nx.DiGraph:
        return build_graph(self.calls, self.dataset_keys, self.eval_keys)


def sft() -> Recipe:
    """Supervised fine-tuning: one call."""
    return Recipe((MFC("actor_train", "actor", "train_step", ("prompts", "answers")),), ("prompts", "answers"))


def ppo() -> Recipe:
    """PPO with actor, critic, reference and reward (Ouyang et al. 2022, arXiv:2203.02155)."""
    rollout = ("prompts", "responses", "finished", "logprobs", "ref_logprobs", "rewards", "values")
    calls = (
        MFC("actor_gen", "actor", "generate", ("prompts",), ("responses", "logprobs", "finished")),
        MFC("rew_inf", "reward", "inference", ("prompts", "responses"), ("rewards",)),
        MFC("ref_inf", "reference", "inference", ("prompts", "responses"), ("ref_logprobs",)),
        MFC("critic_inf", "critic", "inference", ("prompts", "responses"), ("values",)),
        MFC("actor_train", "actor", "train_step", rollout),
        MFC("critic_train", "critic", "train_step", rollout),
    )
    return Recipe(calls, ("prompts",))


def text_evaluation() -> Recipe:
    """Generate answers to held-out prompts, and judge them."""
    calls = (
        MFC("eval_gen", "actor", "generate", ("prompts",), ("responses", "logprobs", "finished")),
        MFC("eval_rew", "reward", "inference", ("prompts", "responses"), ("rewards",)),
    )
    return Recipe(tuple(map(_on_eval_samples, calls)), (), ("eval_prompts",))


def sft_evaluation() -> Recipe:
    """Generate and judge, and the loss on the held-out answers."""
    loss = _on_eval_samples(MFC("eval_loss", "actor", "evaluate", ("prompts", "answers"), ("losses",)))
    judged = text_evaluation()
    return Recipe((*judged.calls, loss), (), ("eval_prompts", "eval_answers"))


def toy() -> Recipe:
    """PPO's shape with one-letter keys, for roles that are a vector each."""
    calls = (
        MFC("actor_gen", "actor", "generate", ("x",), ("y",)),
        MFC("rew_inf", "reward", "inference", ("x", "y"), ("r",)),
        MFC("ref_inf", "reference", "inference", ("x", "y"), ("z",)),
        MFC("critic_inf", "critic", "inference", ("x", "y"), ("v",)),
        MFC("actor_train", "actor", "train_step", ("x", "y", "r", "z", "v")),
        MFC("critic_train", "critic", "train_step", ("x", "y", "r", "z", "v")),
    )
    return Recipe(calls, ("x",))


def toy_evaluation() -> Recipe:
    calls = (
        MFC("eval_gen", "actor", "generate", ("x",), ("y",)),
        MFC("eval_rew", "reward", "inference", ("x", "y"), ("r",)),
    )
    return Recipe(tuple(map(_on_eval_samples, calls)), (), ("eval_x",))


RECIPES: Mapping[str, tuple[Callable[[], Recipe], Callable[[], Recipe]]] = MappingProxyType(
    {"sft": (sft, sft_evaluation), "ppo": (ppo, text_evaluation), "toy": (toy, toy_evaluation)}
)
"""Algorithm → its recipe, and that of its evaluation."""


def recipe(experiment: Any) -> Recipe:
    """The recipe of `experiment.algorithm`, with evaluation where the experiment asks for it."""
    training, evaluation = (make() for make in RECIPES[experiment.algorithm])
    if not evaluates(experiment):
        return training
    return Recipe(training.calls + evaluation.calls, training.dataset_keys, evaluation.eval_keys)


def evaluates(experiment: Any) -> bool:
    """Whether some step may evaluate: it is due now and then, and there is data for it."""
    every = experiment.control.evaluate
    due = any((every.steps, every.epochs, every.seconds))
    return due and (experiment.algorithm == "toy" or bool(experiment.data.evaluate))


def _on_eval_samples(mfc: MFC) -> MFC:
    """The call under keys of its own (`eval_` before each), which the role sees without that prefix."""
    own = {key: f"eval_{key}" for key in (*mfc.inputs, *mfc.outputs)}
    return replace(
        mfc,
        inputs=tuple(own[key] for key in mfc.inputs),
        outputs=tuple(own[key] for key in mfc.outputs),
        input_remap={own[key]: key for key in mfc.inputs},
        output_remap={key: own[key] for key in mfc.outputs},
        dataset="eval",
    )
