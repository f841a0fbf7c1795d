"""What a reward function returned, as the results that it must be. Raises TypeError or ValueError where it is none."""

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

from hpcrl.rewards.response import Result

EXPECTED = (
    'one number or bool, None for a response that cannot be scored, or a mapping with a number under "score" or pairs '
    '(character, number) under "scores" (no tuple, no list)'
)

ANSWER = "(message, done, reward), or a mapping with these: a text or None, True or False, and a number"


def as_results(returned: Any, count: int, several: bool) -> list[Result]:
    """A result per response."""
    if not several:
        return [as_result(returned)]
    if hasattr(returned, "tolist"):
        returned = returned.tolist()
    if isinstance(returned, Mapping | str) or not isinstance(returned, Sequence) or len(returned) != count:
        length = f" of length {len(returned)}" if isinstance(returned, Sequence) else ""
        raise TypeError(
            f"returned {_shown(returned)}{length}; expected a list of {count}, one for each response that it was given"
        )
    return [as_result(it) for it in returned]


def as_result(returned: Any) -> Result:
    """What a function said of one response."""
    if returned is None:
        return Result()
    if not isinstance(returned, Mapping):
        return Result(_number(returned, returned))
    others = {str(name): _loggable(value) for name, value in returned.items() if name not in ("score", "scores")}
    numbers = {name: value for name, value in others.items() if value is not None}
    if "scores" in returned:
        if "score" in returned:
            raise ValueError('returned both "score" and "scores"; the score is the sum of "scores"')
        places = _places(returned["scores"])
        return Result(math.fsum(number for _, number in places), numbers, places)
    if "score" not in returned:
        raise TypeError(f"returned {_shown(returned)}; expected {EXPECTED}")
    score = returned["score"]
    return Result(None if score is None else _number(score, returned), numbers)


def as_answers(returned: Any, count: int, several: bool) -> list[Result]:
    """What an environment returned of one chat: the message after it, whether the chat is over, and its reward."""
    if isinstance(returned, Mapping):
        strange = sorted(set(map(str, returned)) - {"message", "done", "reward"})
        parts = () if strange else (returned.get("message"), returned.get("done", False), returned.get("reward", 0.0))
    else:
        parts = tuple(returned) if isinstance(returned, tuple | list) else ()
    if len(parts) != 3:
        raise TypeError(f"returned {_shown(returned)}; expected {ANSWER}")
    message, done, reward = (_plain(part) for part in parts)
    reward = 0.0 if reward is None else reward
    if not (isinstance(message, str | None) and isinstance(done, bool) and isinstance(reward, Real)):
        raise TypeError(f"returned {_shown(returned)}; expected {ANSWER}")
    if not done and message is None:
        raise ValueError(f"returned {_shown(returned)}, which is neither over nor has a message for the model")
    return [Result(_number(reward, reward), message=message or "", done=done)]


def _places(pairs: Any) -> tuple[tuple[int, float], ...]:
    try:
        found = tuple((int(_plain(end)), _plain(number)) for end, number in pairs)
    except (TypeError, ValueError):
        found = ()
        if not (isinstance(pairs, Sequence) and len(pairs) == 0):
            raise TypeError(
                f'returned the "scores" {_shown(pairs)}; expected pairs (character at which it ends, number)'
            ) from None
    return tuple((end, _number(number, number)) for end, number in found)


def _number(value: Any, returned: Any) -> float:
    value = _plain(value)
    if not isinstance(value, Real):
        raise TypeError(f"returned {_shown(returned)}; expected {EXPECTED}")
    if not math.isfinite(value):
        raise ValueError(f"returned {float(value)}; expected a finite number")
    return float(value)


def _loggable(value: Any) -> float | None:
    value = _plain(value)
    return float(value) if isinstance(value, Real) and math.isfinite(value) else None


def _plain(value: Any) -> Any:
    """numpy's bool is no Real, and numpy need not be here to know it."""
    return value.item() if type(value).__module__ == "numpy" and getattr(value, "shape", None) == () else value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 1000 else f"{text[:1000]}…"
