"""A line of a log: what it says, how bad it is, of which call it tells."""

import json
import re
import time
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple, get_args

import msgspec

from hpcrl.events import (
    CallStalled,
    CommandRefused,
    DrainBegun,
    Event,
    NodeLeaving,
    NotDeterministic,
    NumericsChanged,
    ReplayDrifted,
    RowsLeftOut,
    StateGrows,
)
from hpcrl.foreign import LONGEST, plain
from hpcrl.inspect.clocks import MASTER, Clock
from hpcrl.inspect.older import TAGS
from hpcrl.member_events import MasterLost, MessageLost

NO_ATTEMPT = -1
"""Of what the jobs printed: a job may see several attempts."""

LEVELS = ("error", "warning", "info")
"""error: what failed, tracebacks. warning: also losses, ends of attempts, and all of stderr. info: everything."""
_WARNINGS = (
    CallStalled
    | CommandRefused
    | DrainBegun
    | MasterLost
    | MessageLost
    | NodeLeaving
    | NotDeterministic
    | NumericsChanged
    | ReplayDrifted
    | RowsLeftOut
    | StateGrows
)


def _name_of(kind: type) -> str:
    return str(kind.__struct_config__.tag)  # type: ignore[attr-defined]


KNOWN = frozenset(map(_name_of, get_args(Event))) | TAGS
"""Names of events; a line of any other is shown as it is."""
LATEST = 1e10
"""Seconds since 1970 of any line."""
_LEVEL_OF: Mapping[str, str] = MappingProxyType(
    dict.fromkeys(map(_name_of, get_args(_WARNINGS)), "warning") | {"failed": "error"}
)
_LEVELS_OF_ENDINGS = {"failed": "error", "done": "info"}
_STEP_AND_CALL = re.compile(r"step (\d+) (\w+)")


class LogLine(NamedTuple):
    """One line of one process. `step` and `call` are those that it tells of; None and "" of most."""

    time: float
    attempt: int
    process: str
    text: str
    kind: str = "event"
    level: str = "info"
    step: int | None = None
    call: str = ""

    def __str__(self) -> str:
        text = self[3]
        if not (text.isascii() and text.isprintable() and len(text) <= LONGEST):
            text = plain(text)
        return f"{clock(self[0])}{whose(self[1], self[2], self[4])} {text}"


class Described(NamedTuple):
    """What a line of events says."""

    time: float
    text: str
    level: str
    step: int | None
    call: str


def clock(seconds: float) -> str:
    """Of the day, to the thousandth that has passed. `ops.log_lines` has the same."""
    thousandths = round(seconds * 1e6) // 1000
    return f"{_second(thousandths // 1000)}.{thousandths % 1000:03d}"


@lru_cache(1024)
def _second(second: int) -> str:
    return time.strftime("%H:%M:%S", time.localtime(second))


@lru_cache(4096)
def whose(attempt: int, process: str, kind: str) -> str:
    """What stands between a line's clock and its words."""
    mark = "│" if kind == "event" else f"│ {kind}:"
    return f" {' job' if attempt == NO_ATTEMPT else f'a{attempt:03d}'} {process:<9} {mark}"


_DECODE = msgspec.json.Decoder().decode


def described(line: str, process: str, by: Clock | None = None) -> Described | None:
    """None of a line that cannot be read, or of an event that this hpcrl does not know. `by` is the clock of its node,
    where that is known: then it has the master's time."""
    try:
        row = _DECODE(line)
        when, name = row.pop("time"), row["event"]
    except (msgspec.DecodeError, TypeError, KeyError, AttributeError):
        return None
    mono = row.pop("mono", None)
    if by is not None and isinstance(mono, float | int):
        when = mono + by.mark(mono).base
    if name not in KNOWN or not isinstance(when, float | int) or not 0 <= when < LATEST:
        return None
    level = _LEVEL_OF.get(name) or _level(name, row, process)
    row.pop("seq", None)
    step, call = row.get("step"), row.get("call", "")
    if name == "failed" and (found := _STEP_AND_CALL.match(str(row.get("what", "")))):
        step, call = int(found[1]), found[2]
    return Described(when, _words(row), level, step, call)


def describe(event: Event) -> str:
    """An event in one line: its name, then its fields; a traceback stands below."""
    return _words(msgspec.to_builtins(event))


def _words(row: dict[str, Any]) -> str:
    name, traceback = row.pop("event"), row.pop("traceback", "")
    text = name + "".join([f" {key}={_show(value)}" for key, value in row.items()])
    return f"{text}\n{traceback.rstrip()}" if traceback else text


def _show(value: object) -> str:
    kind = type(value)
    if kind is int:
        return str(value)
    if kind is float:
        return f"{value:.6g}"
    if kind is bool:
        return "true" if value else "false"
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if text and " " not in text else json.dumps(text, ensure_ascii=False)


def _level(name: str, row: Mapping[str, Any], process: str) -> str:
    """Of those that are bad or not by what they say. An agent also tells of workers that it was told to end."""
    if name == "worker ended":
        return "info" if row.get("how") == "exit code 0" else "error" if process == MASTER else "warning"
    if name == "ending":
        return _LEVELS_OF_ENDINGS.get(str(row.get("state")), "warning")
    return "info"
