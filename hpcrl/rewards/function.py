"""The process in which a user's reward function runs: a child of the one that talks to the worker.

It has no descriptor by which an answer could reach anybody: answers lie in memory that the two processes share, and
what it sends on its only socket merely has its parent look there. What the function prints goes to the worker's log.
The process ends with its parent; the signals that ask a run to drain do not end it, since calls in flight need it.
"""

import importlib
import importlib.util
import math
import mmap
import os
import socket
import struct
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from numbers import Real
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

import msgspec

from hpcrl.foreign import plain
from hpcrl.processes import die_with_parent
from hpcrl.rewards.messages import AHEAD, Load, Scored, ToScore

SHOWN_OF_AN_ERROR = 10_000
"""Characters of an error that are told, and of its traceback; the log has all of it."""


NOT_SHOWN = (__file__, "<frozen importlib")
"""Files, by the beginnings of their names, whose frames a user's traceback does not need."""


class AnswerBox:
    """The newest answers, in memory that a process and its children share. Knows nothing of what they say."""

    _HEADER = struct.Struct("QQ")
    _SLOT_BYTES = 1 << 18

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 2 * AHEAD * self._SLOT_BYTES)

    def put(self, number: int, answer: bytes) -> None:
        """Answer question `number`, in the place of a much older one; who looks finds the whole answer, or none."""
        at = self._slot(number)
        start = at + self._HEADER.size
        self._memory[start : start + len(answer)] = answer
        self._HEADER.pack_into(self._memory, at, number, len(answer))

    def get(self, number: int) -> bytes | None:
        """The answer to question `number`, once it is there."""
        at = self._slot(number)
        answered, size = self._HEADER.unpack_from(self._memory, at)
        start = at + self._HEADER.size
        return self._memory[start : start + size] if answered == number else None

    def _slot(self, number: int) -> int:
        return number % (2 * AHEAD) * self._SLOT_BYTES


class Replies:
    """Puts answers into the box, and has the parent look."""

    def __init__(self, parent: socket.socket, box: AnswerBox) -> None:
        self._parent, self._box = parent, box
        self._pid, self._last = os.getpid(), 0

    def give(self, number: int, answer: Scored) -> None:
        """Raises OSError where the socket is gone."""
        if os.getpid() != self._pid:
            os._exit(0)  # forked by the function, and let return as if it were this process
        self._last = number
        self._box.put(number, msgspec.json.encode(answer))
        with suppress(BlockingIOError):
            self._parent.send(b".", socket.MSG_DONTWAIT)

    def give_up(self) -> None:
        """Whether or not the parent has seen the last answer: it waits for this one, or for the next."""
        closed = msgspec.json.encode(Scored(error="it closed descriptors of its process that it had not opened"))
        for number in (self._last, self._last + 1):
            self._box.put(number, closed)


def serve(parent: socket.socket, box: AnswerBox, parent_pid: int) -> None:
    """Answer each line of the socket, of which `Load` is the first, until there are no more or one has gone wrong."""
    die_with_parent(parent_pid)
    sys.dont_write_bytecode = True  # a run's copy of the code stays as it was copied
    replies = Replies(parent, box)
    with parent.makefile("rb") as lines:
        try:
            _answer(lines, replies)
        except OSError:
            replies.give_up()


def _answer(lines: BinaryIO, replies: Replies) -> None:
    order = msgspec.json.decode(lines.readline(), type=Load)
    function, answer = _attempt(lambda: load(order.function), lambda _: 0.0)
    replies.give(1, answer)
    decode = msgspec.json.Decoder(ToScore).decode
    while not answer.error and (line := lines.readline()):
        wanted = decode(line)
        call = partial(function, wanted.prompt, wanted.response, wanted.record, **order.kwargs)
        answer = _attempt(call, as_score)[1]
        replies.give(wanted.number, answer)


def load(function: str) -> Callable[..., Any]:
    """The function that "module:function", "/folder/module:function" or "/path/file.py:function" names.

    Raises:
        ValueError: the module or file has no such function.
    """
    place, _, name = function.rpartition(":")
    module = _load_file(Path(place)) if place.endswith(".py") else _load_module(place)
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
            f'returned {result!r}; expected one number or bool, or a mapping with one under "score" (no tuple, no '
            "list): the function is called for one response at a time"
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
        every = traceback.extract_tb(error.__traceback__)
        frames = [frame for frame in every if not frame.filename.startswith(NOT_SHOWN)]
        texts = f"{type(error).__name__}: {error}", "".join(traceback.format_list(frames))
        if max(map(len, texts)) > SHOWN_OF_AN_ERROR:
            print(*texts, sep="\n", file=sys.stderr, flush=True)
        error_shown, frames_shown = (plain(text, SHOWN_OF_AN_ERROR) for text in texts)
        return None, Scored(error=error_shown, traceback=frames_shown)


def _load_module(place: str) -> ModuleType:
    """The module, looked for in its folder first."""
    folder, _, name = place.rpartition("/")
    if folder:
        sys.path.insert(0, folder)
    return importlib.import_module(name)


def _load_file(path: Path) -> ModuleType:
    """The file as a module of its own name, with its neighbours importable, as if Python had been started on it."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.parent))
    spec.loader.exec_module(module)
    return module
