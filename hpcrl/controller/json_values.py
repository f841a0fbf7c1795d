"""What of a script is kept as JSON: its state from step to step, arguments of its computations, what came of `once`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any

from hpcrl.controller.user_code import kind_of, listed, misuse
from hpcrl.durable.once import MOST_STATE

HERE = __name__.rpartition(".")[0]
MOST_ARGUMENTS = MOST_RESULT = 1 << 16
DEEPEST = 50
"""Values within values."""


def state_text(state: Mapping[str, Any]) -> str:
    """`run.state` as it is recorded. Raises UserCodeError naming the key that cannot be."""
    if not isinstance(state, dict):
        raise misuse(f"run.state is a {type(state).__name__}; it has to stay a dict.", "Set its keys instead.")
    for key, value in state.items():
        if not isinstance(key, str):
            raise misuse(f"run.state has the key {key!r}, but its keys are texts.", f"Write it as {str(key)!r}.")
        _check(value, f"run.state[{key!r}]", 0)
    text = json.dumps(state, sort_keys=True, separators=(",", ":"))
    if len(text) > MOST_STATE:
        largest = max(state, key=lambda key: len(json.dumps(state[key])))
        raise misuse(
            f"run.state is {len(text)} bytes as JSON, and {MOST_STATE} are the most; run.state[{largest!r}] is the "
            "largest of it.",
            "Keep numbers of a step in step.log, and rows in batches.",
        )
    return text


def with_defaults(text: str, defaults: str) -> dict[str, Any]:
    """`run.state` as it was recorded. A key that it lacks, which a changed script sets above its loop, is as it is set
    there; both as JSON."""
    return {**json.loads(defaults), **json.loads(text)}


def refuse_lost(state: Mapping[str, Any], defaults: str) -> None:
    """Raises UserCodeError where a key is gone that is set above the loop, where it would be there again."""
    if gone := sorted(json.loads(defaults).keys() - state.keys()):
        raise misuse(
            f"{listed(f'run.state[{key!r}]' for key in gone)}, set above the loop, is gone in the step: a script that "
            "begins anew would find it again.",
            f"Set it to None instead: run.state[{gone[0]!r}] = None.",
        )


def arguments(call: str, given: Sequence[Any]) -> tuple[str, list[Any]]:
    """(the arguments of a computation as they are recorded, and as the function gets them): as JSON reads them again,
    but for sections of the experiment, which are handed on as they are. Raises UserCodeError."""
    found = [asdict(value) if _is_section(value) else value for value in given]
    for number, value in enumerate(found, 1):
        _check(value, f"argument {number} of {call}", 0)
    text = json.dumps(found, sort_keys=True, separators=(",", ":"))
    if len(text) > MOST_ARGUMENTS:
        raise misuse(
            f"the arguments of {call} are {len(text)} bytes as JSON, and {MOST_ARGUMENTS} are the most.",
            "Pass long values as rows, which a computation gets by its declared inputs; to run.once, pass a path.",
        )
    read = json.loads(text)
    return text, [old if _is_section(old) else new for old, new in zip(given, read, strict=True)]


def result_text(call: str, result: Any) -> str:
    """What came of `run.once` as it is recorded. Raises UserCodeError."""
    _check(result, f"what {call} returned", 0)
    text = json.dumps(result, sort_keys=True, separators=(",", ":"))
    if len(text) > MOST_RESULT:
        raise misuse(
            f"what {call} returned is {len(text)} bytes as JSON, and {MOST_RESULT} are the most.",
            "Return what the script needs of it, and keep the rest where it is.",
        )
    return text


def _is_section(value: Any) -> bool:
    """A dataclass of settings; batches, steps and futures are dataclasses too."""
    return is_dataclass(value) and not isinstance(value, type) and not type(value).__module__.startswith(HERE)


def _check(value: Any, where: str, depth: int) -> None:
    """Raises UserCodeError where JSON would not read as it was written."""
    match value:
        case None | bool() | str():
            return
        case int():
            return
        case float():
            if value - value != 0:
                raise misuse(f"{where} is {value!r}, which JSON has no number for.", "Test for it, or keep it as text.")
        case list() | tuple():
            if depth >= DEEPEST:
                raise misuse(f"{where} is deeper than {DEEPEST} values within values, or within itself.")
            for number, inner in enumerate(value):
                _check(inner, f"{where}[{number}]", depth + 1)
        case dict():
            _check_keys(value, where, depth)
        case _:
            raise misuse(
                f"{where} is of the type {kind_of(value)}, which JSON does not have: it has texts, numbers, "
                "true, false, null, lists and dicts.",
                "Convert it: x.item() for a number of numpy, x.tolist() for an array, sorted(x) for a set.",
            )


def _check_keys(value: dict[Any, Any], where: str, depth: int) -> None:
    if depth >= DEEPEST:
        raise misuse(f"{where} is deeper than {DEEPEST} values within values, or within itself.")
    for key, inner in value.items():
        if not isinstance(key, str):
            raise misuse(f"{where} has the key {key!r}, but in JSON keys are texts.", f"Write it as {str(key)!r}.")
        _check(inner, f"{where}[{key!r}]", depth + 1)
