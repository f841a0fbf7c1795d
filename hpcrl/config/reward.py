"""What scores a response."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from hpcrl.config.bounds import Count, Natural, Positive, Share
from hpcrl.config.built_in_rewards import BUILT_IN
from hpcrl.config.fields import ChangeClass, ComponentsMapping, FunctionText
from hpcrl.config.model import CPUPlacementConfig

REPORTED = ("reward", "accuracy", "dropped", "not_scorable")
"""The statistics of every call that scores; no component has the name of one."""


class Component(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One thing that scores a response; a reward is the sum of its components' scores, each times its weight."""

    function: str = ""
    """One of hpcrl's functions or the user's."""
    kwargs: dict[str, Any] = {}
    """Its further named arguments."""
    service: str = ""
    """In the place of a function: where responses are sent, as http://host:port/path."""
    role: str = ""
    """In the place of a function: the role that scores: reward_model, judge or environment."""
    token_variable: str = ""
    """The environment variable with the token that a service asks for."""
    weight: float = 1.0

    @property
    def kinds(self) -> tuple[str, ...]:
        """Which of function, service and role it has: one."""
        return tuple(kind for kind in ("function", "service", "role") if getattr(self, kind))

    @property
    def kind(self) -> str:
        return self.kinds[0]


@dataclass(frozen=True, kw_only=True)
class RewardConfig(CPUPlacementConfig):
    """A function of (prompt, response, row), or several that add up. Knows nothing of models."""

    changes: ClassVar[ChangeClass] = ChangeClass.NUMBERS

    function: Annotated[FunctionText | None, ChangeClass.FORK] = None
    """exact (the whole text), gsm8k (the last "#### NUMBER"), math (the last \\boxed{}), format, length, by_source,
    "module:function" or "/path/file.py:function"; the short form of one component."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Further named arguments of the function."""
    components: Annotated[ComponentsMapping, ChangeClass.FORK] = field(default_factory=dict)
    """In the place of function: for each score NAME: {function: …, kwargs: {…}, weight: 1.0}, or NAME: {service:
    http://host:port/path, token_variable: NAME, weight: 1.0}, or NAME: {role: reward_model, weight: 1.0},
    {role: judge} or {role: environment} (docs/rewards.md). The reward is their weighted sum, and each is reported under
    its name."""
    right_component: str | None = None
    """The component by whose score `accuracy` counts a response as right; null: by the reward."""
    right_at: float = 1.0
    """The least score with which `accuracy` counts a response as right."""
    timeout_s: Annotated[Positive, ChangeClass.PLACEMENT] = 60.0
    """A response, or a batch of them, whose score takes longer is an error, never a zero."""
    on_error: Literal["fail", "drop", "retry"] = "fail"
    """What follows where a response cannot be scored: fail ends the run; retry tries it three times before that; drop
    leaves the response out of everything that is computed, and shows it in the worker's log."""
    max_dropped: Share = 0.1
    """The share of a step's responses of which no more may be dropped; the run ends at more."""
    processes: Annotated[Count, ChangeClass.PLACEMENT] = 1
    """Processes, on each worker that scores, in which a function that is not hpcrl's runs at the same time."""
    concurrency: Annotated[Count, ChangeClass.PLACEMENT] = 32
    """Responses on which an asynchronous function works at the same time in each of its processes, or requests that a
    service is sent at the same time by each worker that scores."""
    batch_size: Annotated[Count, ChangeClass.PLACEMENT] = 64
    """Most responses in one call of a function that scores several together, or in one request to a service."""
    trial_rows: Annotated[Natural, ChangeClass.PLACEMENT] = 3
    """Rows of the training data on which the function is tried before the start, where you submit; 0 tries none."""

    @property
    def parts(self) -> Mapping[str, Component]:
        """Name → component, in their order; the one of the short form is called `reward`."""
        if self.function is not None:
            return {"reward": Component(function=self.function, kwargs=dict(self.kwargs))}
        return {name: component_of(value) for name, value in self.components.items()}

    def functions(self, role: str) -> Iterator[tuple[str, str]]:
        """Setting → the function that it names, of a section of this name."""
        if self.function is not None:
            yield f"{role}.function", self.function
        for name, component in self.parts.items() if self.function is None else ():
            if component.function:
                yield self.key_of(role, name), component.function

    def key_of(self, role: str, name: str) -> str:
        """The setting that says what a component is, of a section of this name."""
        if self.function is not None:
            return f"{role}.function"
        return f"{role}.components.{name}.{self.parts[name].kind}"

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles whose models are components. Where a component is none, the checks of a configuration say so."""
        values = self.components.values() if self.function is None else ()
        return tuple(role for role in map(role_of, values) if role)

    @property
    def needs_answers(self) -> bool:
        """Whether rows must say what is right. A user's function says itself what it needs of a row."""
        return any(BUILT_IN[it.function].needs_answer for it in self.parts.values() if it.function in BUILT_IN)

    @property
    def named_scores(self) -> tuple[str, ...]:
        """What a call that scores reports besides `REPORTED`, as far as it is known before the start."""
        return tuple(self.components)


def component_of(value: Any) -> Component:
    """A component as the configuration has it. Raises msgspec.ValidationError."""
    return msgspec.convert(value, Component)


def role_of(value: Any) -> str:
    """The role whose model a component is; empty where it is none, or no component."""
    try:
        return component_of(value).role
    except msgspec.ValidationError:
        return ""
