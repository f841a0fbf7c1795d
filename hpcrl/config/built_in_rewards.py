"""The reward functions that hpcrl brings: what each of them may be told, and what it needs of a row.

The functions themselves are `hpcrl.rewards.NAME:score`, whose named arguments are the fields here.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Any, Literal

from msgspec import Meta

from hpcrl.config.bounds import Count, Positive
from hpcrl.config.fields import Setting, settings

Sources = Mapping[str, Any]
"""The `data_source` of rows → the function that scores them."""


@dataclass(frozen=True, kw_only=True)
class Exact:
    """1 where the response is the row's answer, but for white space around it, else 0."""


@dataclass(frozen=True, kw_only=True)
class Gsm8k:
    """1 where the number after the last "####" is the row's, as in verl."""

    method: Literal["strict", "flexible"] = "strict"
    """strict: the number after the last "#### "; flexible: the last number, as it stands."""
    format_score: Annotated[float, Meta(description="a finite number")] = 0.0
    """The score of a wrong number."""


@dataclass(frozen=True, kw_only=True)
class Math:
    r"""1 where what is in the last \boxed{} is the row's answer."""

    method: Literal["text", "verify"] = "text"
    """text: equal as LaTeX texts once both are normalised, as in verl; verify: equal as mathematics, by math-verify
    (extra `math`), which also finds answers outside of a box."""


@dataclass(frozen=True, kw_only=True)
class Format:
    """1 where the whole response matches a regular expression, else 0."""

    pattern: str
    """A regular expression of Python's; its dot matches line breaks too."""


@dataclass(frozen=True, kw_only=True)
class Length:
    """0 for short responses, falling to -1 for long ones, as DAPO's overlong penalty does."""

    most: Count
    """Tokens from which on the score is -1."""
    buffer: Positive = 1.0
    """The last tokens before that, over which it falls from 0."""


@dataclass(frozen=True, kw_only=True)
class BySource:
    """The score of the function that fits the row's `data_source`; verl's names are known."""

    sources: Sources = field(default_factory=dict)
    """Further names: data_source → one of the other functions here."""


@dataclass(frozen=True)
class BuiltIn:
    """What is known of a function before it is loaded."""

    options: type
    """Its named arguments, as a dataclass."""
    needs_answer: bool = True
    """Whether rows must say what is right."""
    in_process: bool = True
    """Whether it is sure to end soon; else it runs where it can be killed."""


BUILT_IN: Mapping[str, BuiltIn] = MappingProxyType(
    {
        "gsm8k": BuiltIn(Gsm8k),
        "exact": BuiltIn(Exact),
        "math": BuiltIn(Math),
        "format": BuiltIn(Format, needs_answer=False, in_process=False),
        "length": BuiltIn(Length, needs_answer=False),
        "by_source": BuiltIn(BySource),
    }
)


def runs_in_process(function: str, kwargs: Mapping[str, Any]) -> bool:
    """Whether a function of hpcrl's is scored by the worker itself. math-verify may take for ever."""
    return BUILT_IN[function].in_process and kwargs.get("method") != "verify"


def option_problems(key: str, function: str, kwargs: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with the arguments of a function of hpcrl's, each as a sentence without its end."""
    known = {setting.key: setting for setting in settings(BUILT_IN[function].options)}
    for name, value in kwargs.items():
        if name not in known:
            takes = ", ".join(known) or "none"
            yield f"{key}.{name} = {value} of {function} is not known; it takes {takes}"
        elif expectation := _wrong(known[name], value):
            yield f"{key}.{name} = {value} of {function} must be {expectation}"
    for name, setting in known.items():
        if setting.required and name not in kwargs:
            yield f"{key}.{name} of {function} is not set; it must be {setting.expectation}: {setting.help.rstrip('.')}"


def _wrong(setting: Setting, value: Any) -> str | None:
    """What a value has to be and is not."""
    if setting.type in (int, float) and type(value) not in (int, setting.type):
        return setting.expectation
    if setting.key == "pattern" and isinstance(value, str):
        return _no_pattern(value)
    if setting.key == "sources" and isinstance(value, Mapping):
        named = [name for name, kind in BUILT_IN.items() if kind.options is not BySource and not _required(kind)]
        return None if set(value.values()) <= set(named) else f"a mapping of names to {', '.join(named)}"
    if bound := setting.broken_bound(value):
        return bound if setting.type in (int, float) else setting.expectation
    return None


def _required(kind: BuiltIn) -> bool:
    return any(setting.required for setting in settings(kind.options))


def _no_pattern(text: str) -> str | None:
    try:
        re.compile(text)
    except re.error as error:
        return f"a regular expression ({error})"
    return None
