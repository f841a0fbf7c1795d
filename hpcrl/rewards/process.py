"""The process in which a user's reward function runs: JSON lines in, JSON lines out, on two pipes of its own.

What the function prints goes to the worker's log. The process ends with its parent; the signals that ask a run to
drain do not end it, since calls in flight still need it.
"""

import ctypes
import importlib
import importlib.util
import math
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from numbers import Real
from pathlib import Path
from types import ModuleType
from typing import IO, Any

import msgspec

from hpcrl.rewards.messages import Load, Scored, ToScore

PR_SET_PDEATHSIG = 1


def main(requests: int, answers: int, parent: int) -> None:
    """Answer each line of the pipe `requests` with one on the pipe `answers`; end when there are no more."""
    _stay_while_it_lives(parent)
    with open(requests, "rb") as lines, open(answers, "wb") as out:
        order = msgspec.json.decode(lines.readline(), type=Load)
        function, answer = _attempt(lambda: load(order.function), lambda _: 0.0)
        _send(out, answer)
        for line in lines if function else ():
            wanted = msgspec.json.decode(line, type=ToScore)
            call = partial(function, wanted.prompt, wanted.response, wanted.record, **order.kwargs)
            _send(out, _attempt(call, as_score)[1])


def load(function: str) -> Callable[..., Any]:
    """The function that "module:function" or "/path/file.py:function" names.

    Raises:
        ValueError: the module or file has no such function.
    """
    place, _, name = function.rpartition(":")
    module = _load_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    found = getattr(module, name, None)
    if not callable(found):
        there = sorted(key for key, value in vars(module).items() if callable(value) and not key.startswith("_"))
        raise ValueError(f"{place} has no function {name!r}; it has {', '.join(there) or 'none'}")
    return found


def as_score(result: Any) -> float:
    """What a reward function returned, as the finite number that it must be.

    Raises:
        TypeError, ValueError: it is none.
    """
    value: Any = result.get("score") if isinstance(result, Mapping) else result
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
        value = value.item()  # numpy's bool is no Real, and numpy need not be here to know it
    if not isinstance(value, Real):
        raise TypeError(
            f'returned {result!r}; expected one number or bool, or a mapping with one under "score" (no tuple, no list)'
        )
    if not math.isfinite(value):
        raise ValueError(f"returned {float(value)}; expected a finite number")
    return float(value)


def _attempt(act: Callable[[], Any], judge: Callable[[Any], float]) -> tuple[Any, Scored]:
    """The user's code may raise anything, SystemExit included; all of it is an answer."""
    try:
        result = act()
        return result, Scored(score=judge(result))
    except BaseException as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
        return None, Scored(error=f"{type(error).__name__}: {error}", traceback="".join(traceback.format_list(frames)))


def _send(out: IO[bytes], answer: Scored) -> None:
    out.write(msgspec.json.encode(answer) + b"\n")
    out.flush()


def _load_file(path: Path) -> ModuleType:
    """The file as a module of its own name, with its neighbours importable, as if Python had been started on it."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.parent))
    spec.loader.exec_module(module)
    return module


def _stay_while_it_lives(parent: int) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda *_: None)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
