"""Scores responses with what the configuration names. A reward that fails is an error, never a zero."""

import importlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from hpcrl.config.built_in_rewards import BUILT_IN, runs_in_process
from hpcrl.config.reward import Component, RewardConfig
from hpcrl.errors import DataError
from hpcrl.rewards.calling import call_of
from hpcrl.rewards.response import Response, Result
from hpcrl.rewards.results import as_result
from hpcrl.rewards.user_function import UserFunction


class Scorer(Protocol):
    """One component's scores of responses, in their order. Called from one thread."""

    def score(self, responses: Sequence[Response]) -> list[Result]: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Scored:
    """What a reward says of one response: `total` is the weighted sum of its components' scores, NaN where there is
    none; `scores` are theirs, unweighted, with NaN for one that gives none."""

    total: float
    scores: tuple[float, ...]
    dropped: bool = False
    """Some component failed, and the response is not to be counted."""
    places: tuple[tuple[int, float], ...] = ()
    """The shares of `total` that belong to a place in the response: (character at which it ends, number)."""
    numbers: dict[str, float] = field(default_factory=dict)
    """What functions report besides, as `component_name`."""
    error: str = ""
    """Why it is dropped."""

    @property
    def details(self) -> bytes:
        """What is told of it besides numbers that every response has, as JSON; nothing where there is nothing."""
        told = {"numbers": self.numbers, "error": self.error}
        found = {name: value for name, value in told.items() if value}
        return msgspec.json.encode(found) if found else b""


class RewardFunction:
    """The components of a run's reward: hpcrl's functions in this process, the user's in processes without torch,
    services where they are.

    Knows nothing of tokens and models. Called from one thread.
    """

    def __init__(self, reward: RewardConfig, section: str = "reward") -> None:
        self._parts = reward.parts
        self._scorers: dict[str, Scorer] = {}
        try:
            for name, component in self._parts.items():
                self._scorers[name] = _scorer(reward.key_of(section, name), component, reward)
        except BaseException:
            self.close()
            raise

    def score(self, responses: Sequence[Response]) -> list[Scored]:
        """What the reward says of each.

        Raises:
            UserCodeError: a function raised, took too long, died, or returned something that is no score, or a service
                did not answer with scores, and `on_error` does not say that such responses are dropped.
            DataError: a row does not say what is right.
            InternalError: its process was killed twice on the same response.
        """
        by_part = [scorer.score(responses) for scorer in self._scorers.values()]
        return [self._sum(results) for results in zip(*by_part, strict=True)]

    def close(self) -> None:
        """End the processes of the user's functions."""
        for scorer in self._scorers.values():
            scorer.close()

    def _sum(self, results: Sequence[Result]) -> Scored:
        weights = [part.weight for part in self._parts.values()]
        scores = tuple(math.nan if it.score is None else it.score for it in results)
        dropped = any(it.dropped for it in results)
        counted = [weight * score for weight, score in zip(weights, scores, strict=True) if not math.isnan(score)]
        return Scored(
            total=math.nan if dropped or not counted else math.fsum(counted),
            scores=scores,
            dropped=dropped,
            places=tuple((end, weights[i] * number) for i, it in enumerate(results) for end, number in it.places),
            numbers={
                f"{name}_{key}": number
                for name, it in zip(self._parts, results, strict=True)
                for key, number in it.numbers.items()
            },
            error=next((it.error for it in results if it.error), ""),
        )


class BuiltIn:
    """A function of hpcrl's that is sure to end soon."""

    def __init__(self, component: Component) -> None:
        self._call = call_of(_built_in(component.function), component.kwargs)

    def score(self, responses: Sequence[Response]) -> list[Result]:
        return [as_result(self._call([response])) for response in responses]

    def close(self) -> None:
        pass


class ModelScores:
    """What a model, a role of its own, has said. A judge may have given no mark; of a classifier that is an error."""

    def __init__(self, role: str) -> None:
        self._role = role

    def score(self, responses: Sequence[Response]) -> list[Result]:
        scores = [response.model_scores[self._role] for response in responses]
        for response, score in zip(responses, scores, strict=True):
            if self._role != "judge" and not math.isfinite(score):
                raise DataError(f"the reward model has given {score} {response.named}")
        return [Result(None if math.isnan(score) else score) for score in scores]

    def close(self) -> None:
        pass


def _scorer(key: str, component: Component, reward: RewardConfig) -> Scorer:
    function = component.function
    if component.role:
        return ModelScores(component.role)
    if component.service:
        # It brings asyncio, which every `hpcrl plan` would load.
        from hpcrl.rewards.service import Service

        return Service(key, component, reward)
    if function not in BUILT_IN:
        return UserFunction(key, function, component.kwargs, reward)
    if runs_in_process(function, component.kwargs):
        return BuiltIn(component)
    return UserFunction(key, _place(function), component.kwargs, reward)


def _place(function: str) -> str:
    return f"hpcrl.rewards.{function}:score"


def _built_in(function: str) -> Callable[..., float]:
    module, _, name = _place(function).partition(":")
    found: Callable[..., float] = getattr(importlib.import_module(module), name)
    return found
