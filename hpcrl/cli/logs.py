"""`hpcrl logs RUN`: the logs of all processes of a run, merged by time."""

import math
import re
import time
from collections.abc import Callable, Sequence
from datetime import datetime

from hpcrl.cli.arguments import RUN_HELP, asks_for_help, command_parser, find_run, parse
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ConfigurationError, ExitCode
from hpcrl.inspect.logs import LEVELS, LogFilter, Logs, follow, merged
from hpcrl.inspect.queue import Queue
from hpcrl.inspect.views.status import ENDED, GOES_ON, is_over, judge

ASK_S = 15.0
"""Slurm is asked about a run at most this often."""
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SPAN = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_CLOCK = re.compile(r"\d{1,2}:\d{2}(?::\d{2})?")


def run(words: Sequence[str]) -> int:
    parser = command_parser("logs", "Print the logs of all processes of a run, of all its attempts, merged by time.")
    parser.add_argument("run", type=str, help=RUN_HELP)
    parser.add_argument("--follow", action="store_true", help="go on until the run has ended")
    parser.add_argument("--grep", type=str | None, default=None, metavar="REGEX", help="only lines whose text has this")
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
    parser.add_argument(
        "--since", type=str | None, default=None, metavar="WHEN", help="90s, 10m, 2h or 1d ago; 14:30; 2026-01-31T14:30"
    )
    if asks_for_help(words):
        print(parser.format_help())
        return int(ExitCode.DONE)
    given = parse(parser, words)
    run_dir = RunDirectory.open(find_run(given.run))
    wanted = LogFilter(
        frozenset(given.worker), _pattern(given.grep), _level(given.level), since(given.since, time.time())
    )
    if not given.follow:
        _refuse_strangers(run_dir, wanted)
    lines = follow(run_dir, _end_of(run_dir), wanted) if given.follow else merged(run_dir, wanted)
    for line in lines:
        print(line, flush=given.follow)
    if given.follow:
        _refuse_strangers(run_dir, wanted)
    return int(ExitCode.DONE)


def _refuse_strangers(run_dir: RunDirectory, wanted: LogFilter) -> None:
    names = Logs(run_dir).processes() if wanted.processes else []
    if strangers := sorted(wanted.processes - set(names)):
        raise ConfigurationError(
            [f"--worker {' '.join(strangers)} has logged nothing there."],
            f"Name one of those who have: {', '.join(names) or 'nobody'}.",
        )


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


def since(text: str | None, now: float) -> float:
    """Seconds since 1970 of a span before now, a time of this day, or a date and time. Local time."""
    if text is None:
        return 0.0
    if found := _SPAN.fullmatch(text):
        return now - float(found[1]) * _SECONDS[found[2]]
    today = datetime.fromtimestamp(now).date().isoformat()
    try:
        return datetime.fromisoformat(f"{today}T{text.zfill(5)}" if _CLOCK.fullmatch(text) else text).timestamp()
    except ValueError:
        raise ConfigurationError(
            [f"--since {text} is no time."], "Give a span like 10m, a time like 14:30 or a date like 2026-01-31T14:30."
        ) from None


def _end_of(run_dir: RunDirectory) -> Callable[[], bool]:
    """Says whether nothing more will come. A run on Slurm may go on after an attempt has ended."""
    from hpcrl.launch.queues import has_queue, queue_of

    if not has_queue(run_dir):
        return lambda: is_over(run_dir) or _came_to_nothing(run_dir)
    asked_at = -math.inf if is_over(run_dir) else time.monotonic()

    def has_ended() -> bool:
        nonlocal asked_at
        if judge(run_dir, run_dir.newest_attempt(), None, Queue(missing="nobody was asked"))[0] in ENDED:
            return True
        if time.monotonic() - asked_at < ASK_S:
            return False
        asked_at = time.monotonic()
        queue = queue_of(run_dir)
        assert queue is not None
        return is_over(run_dir) if queue.missing else not _goes_on(run_dir, queue)

    return has_ended


def _came_to_nothing(run_dir: RunDirectory) -> bool:
    """Whether the newest submission is gone before its master could begin an attempt."""
    from hpcrl.launch.launcher import Launchers

    nonce = run_dir.newest_nonce()
    if nonce is None or run_dir.newest_attempt_of(nonce) is not None:
        return False
    submission = next(each for each in run_dir.submissions() if each.nonce == nonce)
    return not Launchers(run_dir).of(submission).is_alive(run_dir, submission)


def _goes_on(run_dir: RunDirectory, queue: Queue) -> bool:
    return judge(run_dir, run_dir.newest_attempt(), None, queue)[0] in GOES_ON
