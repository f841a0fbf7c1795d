"""What a model talks with between its turns: a tool, a game, a user who is played."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta

from hpcrl.config.bounds import Count, Natural, Positive
from hpcrl.config.fields import ChangeClass, FunctionText
from hpcrl.config.generation import GenerationConfig
from hpcrl.config.model import CPUPlacementConfig
from hpcrl.errors import Problem

ENVIRONMENT = "environment"
"""The role, and the component of a reward that is what it has given."""
MOST_TURNS = 64
"""Each has two calls, that are placed and checked before a run begins."""


@dataclass(frozen=True, kw_only=True)
class EnvironmentConfig(CPUPlacementConfig):
    """A function of (messages, row), called after each turn of the model's. Knows nothing of tokens."""

    changes: ClassVar[ChangeClass] = ChangeClass.NUMBERS

    function: Annotated[FunctionText | None, ChangeClass.FORK] = None
    """"module:NAME" or "/path/file.py:NAME": a function, or a class with a method `step` (docs/environments.md); null:
    a response is one turn."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Further named arguments of the function, or those that the class is made with."""
    max_turns: Annotated[int, Meta(ge=1, le=MOST_TURNS), ChangeClass.FORK] = 4
    """Turns of the model's at most. generation.max_new_tokens bounds all of them and the answers between them."""
    speaks_as: str = "user"
    """As whom its answers stand in the chat template: user, or tool where the template knows tools."""
    timeout_s: Annotated[Positive, ChangeClass.PLACEMENT] = 60.0
    """An answer that takes longer is an error."""
    on_error: Literal["fail", "retry"] = "fail"
    """What follows where it cannot answer: fail ends the run; retry tries it three times before that."""
    processes: Annotated[Count, ChangeClass.PLACEMENT] = 1
    """Processes in which it runs at the same time, on each worker that has it."""
    concurrency: Annotated[Count, ChangeClass.PLACEMENT] = 32
    """Answers on which an asynchronous function works at the same time in each of its processes."""

    trial_rows: Annotated[Natural, ChangeClass.PLACEMENT] = 3
    """Rows of the training data on whose answers it is tried before the start, where you submit; 0 tries none."""

    batch_size: ClassVar[int] = 1
    """It answers one chat at a time."""

    def functions(self, role: str) -> Iterator[tuple[str, str]]:
        """Setting → the function that it names, of a section of this name."""
        if self.function is not None:
            yield f"{role}.function", self.function


def ends_of(experiment: Any) -> tuple[str, ...]:
    """The strings that end a whole response: where it has several turns, they end these."""
    generation: GenerationConfig | None = getattr(experiment, "generation", None)
    environment: EnvironmentConfig | None = getattr(experiment, ENVIRONMENT, None)
    talks = environment is not None and environment.function is not None
    return () if generation is None or talks else tuple(generation.stop)


def environment_problems(role: str, config: EnvironmentConfig) -> Iterator[Problem]:
    """What is wrong with a section of this name, whatever the function does."""
    if config.function is not None and not config.function.rpartition(":")[0]:
        key = f"{role}.function"
        yield Problem((key,), f'{key} = {config.function} must be "file.py:NAME" or "module:NAME".', f"Set {key}.")
    if config.function is None and config.kwargs:
        key = f"{role}.kwargs"
        yield Problem((key,), f"{key} belongs to {role}.function, which is not set.", f"Set {role}.function.")
