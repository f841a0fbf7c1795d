"""How a reward function is called: each parameter gets what its name says."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from hpcrl.rewards.messages import Takes
from hpcrl.rewards.response import Response, ground_truth

ARGUMENTS: Mapping[str, Callable[[Response], Any]] = MappingProxyType(
    {
        "prompt": lambda it: it.prompt,
        "response": lambda it: it.response,
        "row": lambda it: it.row,
        "messages": lambda it: list(it.messages),
        "finished": lambda it: it.finished,
        "tokens": lambda it: list(it.tokens),
        "data_source": lambda it: it.row.get("data_source"),
        "solution_str": lambda it: it.response,
        "ground_truth": lambda it: ground_truth(it.row),
        "extra_info": lambda it: dict(it.row.get("extra_info") or {}),
    }
)
"""What a parameter gets by its name; the last four are verl's. An environment alone has messages."""

TOGETHER: Mapping[str, str] = MappingProxyType(
    {f"{name}s": name for name in ("prompt", "response", "row", "data_source", "solution_str", "extra_info")}
    | {"ground_truths": "ground_truth"}
)
"""What makes a function one that scores several responses together; it gets a list by each name, and returns one."""


class UnusableError(ValueError):
    """Code that was imported, and is no function that can be called for a score."""


@dataclass(frozen=True)
class Call:
    """A function with its further arguments, and the parameters to be filled."""

    function: Callable[..., Any]
    kwargs: Mapping[str, Any]
    filled: tuple[str, ...]
    takes: Takes

    def __call__(self, responses: Sequence[Response]) -> Any:
        """What the function returns for these: one, or several where it takes them together."""
        if not self.takes.several:
            (response,) = responses
            return self.function(**{name: ARGUMENTS[name](response) for name in self.filled}, **self.kwargs)
        lists = {name: [ARGUMENTS[TOGETHER.get(name, name)](it) for it in responses] for name in self.filled}
        return self.function(**lists, **self.kwargs)


def call_of(function: Callable[..., Any], kwargs: Mapping[str, Any], answers: bool = False) -> Call:
    """How to call a function; one that `answers` is an environment's, and may have the messages.

    Raises:
        UnusableError: it has a parameter that nothing fills, or none for one of its further arguments.
    """
    parameters = inspect.signature(function).parameters.values()
    several = any(parameter.name in TOGETHER for parameter in parameters)
    known = (*TOGETHER, "finished", "tokens") if several else tuple(ARGUMENTS)
    known = known if answers else tuple(name for name in known if name != "messages")
    named = [it for it in parameters if it.kind in (it.POSITIONAL_OR_KEYWORD, it.KEYWORD_ONLY)]
    filled = tuple(it.name for it in named if it.name in known and it.name not in kwargs)
    lacking = [
        it.name
        for it in parameters
        if it.default is it.empty
        and it.kind not in (it.VAR_POSITIONAL, it.VAR_KEYWORD)
        and (it.name not in {*filled, *kwargs} or it.kind is it.POSITIONAL_ONLY)
    ]
    if lacking:
        raise UnusableError(
            f"nothing fills its parameter {lacking[0]!r}; a parameter may be called {', '.join(known)}, or be given in "
            "kwargs"
        )
    takes_any = any(it.kind is it.VAR_KEYWORD for it in parameters)
    unknown = [] if takes_any else [name for name in kwargs if name not in {it.name for it in named}]
    if unknown:
        raise UnusableError(f"its kwargs give {unknown[0]!r}, but it has no such parameter")
    awaited = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004
    return Call(function, dict(kwargs), filled, Takes(several, "tokens" in filled, awaited))
