"""The options of `hpcrl logs` that say which lines are wanted. What a run does not have is refused."""

import re
import time
from argparse import Namespace
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from typing import Any

from hpcrl.cli.arguments import ArgumentParser
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ConfigurationError
from hpcrl.inspect.log_lines import LEVELS
from hpcrl.inspect.logs import LogFilter
from hpcrl.inspect.reader import RunReader
from hpcrl.inspect.views.why import causes_of

FIRST_FAILURE = "first-failure"
BEFORE_S, AFTER_S = 30.0, 10.0
"""What is shown around a failure."""
WHEN = "90s, 10m, 2h or 1d ago; 14:30; 2026-01-31T14:30"
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SPAN = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_CLOCK = re.compile(r"\d{1,2}:\d{2}(?::\d{2})?")


def add_filter(parser: ArgumentParser) -> None:
    """The options."""
    text: dict[str, Any] = {"type": str | None, "default": None}
    number: dict[str, Any] = {"type": int | None, "default": None}
    parser.add_argument("--grep", **text, metavar="REGEX", help="only lines whose text has this")
    parser.add_argument(
        "--level",
        type=str,
        default="info",
        help="error: what failed, and tracebacks; warning: also lost workers, ends of attempts and all of stderr; "
        "info: everything",
    )
    parser.add_argument(
        "--worker",
        type=str,
        nargs="+",
        default=[],
        metavar="NAME",
        help="only these processes: master, agent-0, worker-1, …",
    )
    parser.add_argument("--attempt", **number, metavar="N", help="only this attempt")
    parser.add_argument("--step", **number, metavar="N", help="only events of this step")
    parser.add_argument("--call", **text, metavar="NAME", help="only events of this call, as actor_gen")
    parser.add_argument("--role", **text, metavar="NAME", help="only events of this role's calls")
    parser.add_argument("--since", **text, metavar="WHEN", help=WHEN)
    parser.add_argument("--until", **text, metavar="WHEN", help=WHEN)
    parser.add_argument(
        "--around",
        **text,
        metavar="WHEN",
        help=f"from {BEFORE_S:g} s before to {AFTER_S:g} s after; {FIRST_FAILURE}: what ended the newest attempt that "
        "has failed",
    )


def filter_of(given: Namespace, run: RunDirectory) -> LogFilter:
    """Raises ConfigurationError for what the run does not have, with what it has."""
    now = time.time()
    wanted = LogFilter(frozenset(given.worker), _pattern(given.grep), _level(given.level))
    if given.since is not None:
        wanted = replace(wanted, since=moment("--since", given.since, now))
    if given.until is not None:
        wanted = replace(wanted, until=moment("--until", given.until, now))
    if given.around is not None:
        at = _first_failure(run) if given.around == FIRST_FAILURE else moment("--around", given.around, now)
        wanted = replace(wanted, since=max(wanted.since, at - BEFORE_S), until=min(wanted.until, at + AFTER_S))
    if given.attempt is not None:
        _refuse_other("--attempt", given.attempt, run.numbers())
        wanted = replace(wanted, attempt=given.attempt)
    if given.step is None and given.call is None and given.role is None:
        return wanted
    return replace(wanted, step=given.step, calls=_calls(given, run))


def _calls(given: Namespace, run: RunDirectory) -> frozenset[str] | None:
    """Of the call and role that are wanted; None of any."""
    reader = RunReader(run)
    roles = {call: role for _, attempt in sorted(reader.attempts.items()) for call, role in attempt.roles.items()}
    if given.step is not None and given.step > reader.step + max(1, len(roles)):
        raise ConfigurationError(
            [f"--step {given.step} is none of the run's: it has come to step {reader.step}."], "Give one up to that."
        )
    if given.call is not None:
        _refuse_other("--call", given.call, sorted(roles))
        return frozenset([given.call])
    if given.role is not None:
        _refuse_other("--role", given.role, sorted(set(roles.values())))
        return frozenset(call for call, role in roles.items() if role == given.role)
    return None


def _first_failure(run: RunDirectory) -> float:
    times = (cause.time for cause in causes_of(run) if cause.time is not None)
    if (found := next(times, None)) is None:
        raise ConfigurationError([f"{run.root} has no failure of which the time is known."], "Give --around a time.")
    return found


def _refuse_other(option: str, value: object, known: Iterable[object]) -> None:
    if value not in (names := list(known)):
        there = ", ".join(map(str, names)) or "none yet"
        raise ConfigurationError([f"{option} {value} is not there."], f"There are: {there}.")


def _pattern(text: str | None) -> re.Pattern[str] | None:
    try:
        return None if text is None else re.compile(text)
    except re.error as error:
        raise ConfigurationError(
            [f"--grep {text} is not a regular expression: {error}."], "Correct it, or escape it with a backslash."
        ) from None


def _level(text: str) -> str:
    if text not in LEVELS:
        raise ConfigurationError([f"--level {text} is no level."], f"Give one of {', '.join(LEVELS)}.")
    return text


def moment(option: str, text: str, now: float) -> float:
    """Seconds since 1970 of a span before now, a time of this day, or a date and time. Local time."""
    if found := _SPAN.fullmatch(text):
        return now - float(found[1]) * _SECONDS[found[2]]
    today = datetime.fromtimestamp(now).date().isoformat()
    try:
        return datetime.fromisoformat(f"{today}T{text.zfill(5)}" if _CLOCK.fullmatch(text) else text).timestamp()
    except ValueError:
        raise ConfigurationError(
            [f"{option} {text} is no time."], "Give a span like 10m, a time like 14:30 or a date like 2026-01-31T14:30."
        ) from None
