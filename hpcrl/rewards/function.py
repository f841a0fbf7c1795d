"""The process in which a user's reward function runs: a child of the one that talks to the worker.

It has no descriptor by which an answer could reach anybody: answers lie in memory that the two processes share, and
what it sends on its only socket merely has its parent look there. What the function prints goes to the worker's log.
The process ends with its parent; the signals that ask a run to drain do not end it, since calls in flight need it.
"""

import importlib
import importlib.util
import inspect
import mmap
import os
import socket
import struct
import sys
import traceback
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from hpcrl.foreign import plain
from hpcrl.processes import die_with_parent
from hpcrl.rewards.calling import Call, UnusableError, call_of
from hpcrl.rewards.messages import Load, Reply, ToScore
from hpcrl.rewards.results import as_answers, as_results

SHOWN_OF_AN_ERROR = 10_000
"""Characters of an error that are told, and of its traceback; the log has all of it."""


LONGEST_LINE = 1 << 30
SHORTER = (
    "If it is an environment, shorten its message; if it is a reward, return fewer numbers, or lower reward.batch_size "
    "where it scores several responses at a time."
)
NOT_SHOWN = (str(Path(__file__).parent), "<frozen importlib")
"""Files, by the beginnings of their names, whose frames a user's traceback does not need."""


class AnswerBox:
    """The newest answers, in memory that a process and its children share. Knows nothing of what they say."""

    _HEADER = struct.Struct("QQL")  # number of the question, bytes of the answer, checksum of number and answer
    _SLOT_BYTES = 1 << 18

    def __init__(self, ahead: int) -> None:
        self._slots = 2 * ahead
        self._memory = mmap.mmap(-1, self._slots * self._SLOT_BYTES)

    def put(self, number: int, answer: bytes) -> None:
        """Reply question `number`, in the place of a much older one; who looks finds the whole answer, or none.

        Whoever looks while this is being written sees some of it: a checksum tells what is whole.
        """
        at = self._slot(number)
        if self._HEADER.size + len(answer) > self._SLOT_BYTES:
            error = f"returned {len(answer)} bytes; {self._SLOT_BYTES} are the most. {SHORTER}"
            answer = msgspec.json.encode(Reply(error=error))
        start = at + self._HEADER.size
        self._memory[start : start + len(answer)] = answer
        self._HEADER.pack_into(self._memory, at, number, len(answer), self._checksum(number, answer))

    def get(self, number: int) -> bytes | None:
        """The answer to question `number`, once it is there."""
        at = self._slot(number)
        answered, size, checksum = self._HEADER.unpack_from(self._memory, at)
        start = at + self._HEADER.size
        answer = self._memory[start : start + min(size, self._SLOT_BYTES)]
        return answer if answered == number and checksum == self._checksum(number, answer) else None

    @staticmethod
    def _checksum(number: int, answer: bytes) -> int:
        return zlib.crc32(answer, number)

    def _slot(self, number: int) -> int:
        return number % self._slots * self._SLOT_BYTES


class Replies:
    """Puts answers into the box, and has the parent look."""

    def __init__(self, parent: socket.socket, box: AnswerBox) -> None:
        self._parent, self._box = parent, box
        self._pid, self._last = os.getpid(), 0

    def give(self, number: int, answer: Reply) -> None:
        """Raises OSError where the socket is gone."""
        if os.getpid() != self._pid:
            os._exit(0)  # forked by the function, and let return as if it were this process
        self._last = number
        try:
            line = msgspec.json.encode(answer)
        except UnicodeEncodeError as error:  # a text of half a character
            line = msgspec.json.encode(_told(error))
        self._box.put(number, line)
        with suppress(BlockingIOError):
            self._parent.send(b".", socket.MSG_DONTWAIT)

    def give_up(self) -> None:
        """Whether or not the parent has seen the last answer: it waits for this one, or for the next."""
        closed = msgspec.json.encode(
            Reply(error="it closed descriptors of its process that it had not opened", broken=True)
        )
        for number in (self._last, self._last + 1):
            self._box.put(number, closed)


def serve(parent: socket.socket, box: AnswerBox, parent_pid: int) -> None:
    """Reply each line of the socket, of which `Load` is the first, until there are no more."""
    die_with_parent(parent_pid)
    sys.dont_write_bytecode = True  # a run's copy of the code stays as it was copied
    replies = Replies(parent, box)
    # Lines that are read ahead would be lost to whoever reads next.
    with parent.makefile("rb", buffering=0) as lines:
        order = msgspec.json.decode(lines.readline(), type=Load)
    call, answer = _attempt(lambda: _call(order), lambda call: Reply(takes=call.takes))
    try:
        replies.give(1, answer)
        if call is None:
            return
        if call.takes.awaited:
            # Every worker with a reward function starts such a process, and few of these functions are awaited.
            import asyncio

            asyncio.run(_answer_together(parent, call, order, replies))
        else:
            _answer_in_turn(parent, call, order, replies)
    except OSError:
        replies.give_up()


def _call(order: Load) -> Call:
    """How to call the function, or the `step` of an environment that is a class."""
    found = load(order.function)
    if not order.answers:
        return call_of(found, order.kwargs)
    if isinstance(found, type):
        found, order = _method(found, order), msgspec.structs.replace(order, kwargs={})
    call = call_of(found, order.kwargs, answers=True)
    if call.takes.several:
        raise UnusableError("it takes several chats together; an environment answers one: step(messages, row)")
    return call


def _method(kind: type, order: Load) -> Callable[..., Any]:
    try:
        inspect.signature(kind).bind(**order.kwargs)
    except TypeError as error:
        raise UnusableError(f"{kind.__name__} is made with its kwargs, {sorted(order.kwargs)}: {error}") from None
    method = getattr(kind(**order.kwargs), "step", None)
    if not callable(method):
        raise UnusableError(f"{kind.__name__} has no method step(messages, row)")
    return method


def _answer_in_turn(parent: socket.socket, call: Call, order: Load, replies: Replies) -> None:
    decode = msgspec.json.Decoder(ToScore).decode
    with parent.makefile("rb") as lines:
        while line := lines.readline():
            asked = decode(line)
            replies.give(asked.number, _attempt(partial(call, asked.responses), _judge(call, asked, order))[1])


async def _answer_together(parent: socket.socket, call: Call, order: Load, replies: Replies) -> None:
    """Up to `order.concurrency` lines at a time, each with a time limit of its own."""
    import asyncio

    reader, _ = await asyncio.open_connection(sock=parent.dup(), limit=LONGEST_LINE)
    free = asyncio.Semaphore(order.concurrency)
    decode = msgspec.json.Decoder(ToScore).decode

    async def answer(asked: ToScore) -> None:
        found = await _attempt_awaited(call, asked, order)
        free.release()
        try:
            replies.give(asked.number, found)
        except OSError:
            replies.give_up()

    async with asyncio.TaskGroup() as tasks:
        while line := await reader.readline():
            await free.acquire()
            tasks.create_task(answer(decode(line)))


async def _attempt_awaited(call: Call, asked: ToScore, order: Load) -> Reply:
    import asyncio

    limit = asyncio.timeout(order.timeout_s)
    try:
        async with limit:
            returned = await call(asked.responses)
    except BaseException as error:
        return Reply(late=True) if limit.expired() else _told(error)
    return _attempt(lambda: returned, _judge(call, asked, order))[1]


def _judge(call: Call, asked: ToScore, order: Load) -> Callable[[Any], Reply]:
    read = as_answers if order.answers else as_results
    return lambda returned: Reply(read(returned, len(asked.responses), call.takes.several))


def load(function: str) -> Callable[..., Any]:
    """The function that "module:function", "/folder/module:function" or "/path/file.py:function" names.

    Raises:
        UnusableError: the module or file has no such function.
    """
    place, _, name = function.rpartition(":")
    module = _load_file(Path(place)) if place.endswith(".py") else _load_module(place)
    found = getattr(module, name, None)
    if not callable(found):
        there = sorted(key for key, value in vars(module).items() if callable(value) and not key.startswith("_"))
        raise UnusableError(f"{place} has no function {name!r}; it has {', '.join(there) or 'none'}")
    return found


def _attempt(act: Callable[[], Any], judge: Callable[[Any], Reply]) -> tuple[Any, Reply]:
    """The user's code may raise anything, SystemExit included; all of it is an answer."""
    try:
        result = act()
        return result, judge(result)
    except BaseException as error:
        return None, _told(error)


def _told(error: BaseException) -> Reply:
    """What went wrong; where that is long, the log has all of it."""
    if isinstance(error, UnusableError):
        return Reply(error=str(error), unusable=True)
    every = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in every if not frame.filename.startswith(NOT_SHOWN)]
    texts = f"{type(error).__name__}: {error}", "".join(traceback.format_list(frames))
    if max(map(len, texts)) > SHOWN_OF_AN_ERROR:
        print(*texts, sep="\n", file=sys.stderr, flush=True)
    error_shown, frames_shown = (plain(text, SHOWN_OF_AN_ERROR) for text in texts)
    return Reply(error=error_shown, traceback=frames_shown)


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
