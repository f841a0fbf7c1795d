"""Runs of the demo: how they are started, and what they have written."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from hpcrl.durable.rundir import RunDirectory
from hpcrl.inspect.lines import Row, Tail

ROOT = Path(__file__).parent.parent


def last_demo(folder: Path) -> RunDirectory:
    """The PPO run of the last measured demo that has come to its end."""
    runs = [RunDirectory(path) for path in sorted(folder.glob("seed-*/ppo"))]
    done = [run for run in runs if (verdict := run.read_verdict(0)) is not None and verdict.state == "done"]
    if not done:
        raise FileNotFoundError("the demo has not been measured: python bench/run.py demo")
    return max(done, key=lambda run: run.root.stat().st_mtime)


def events_of(run: RunDirectory) -> Iterator[Row]:
    """The master's events, attempt by attempt."""
    for attempt in run.numbers():
        yield from Tail(run.events(attempt)).rows()


def moment(events: Sequence[Row], event: str, pick: Callable[[Iterator[float]], float]) -> float:
    """The first (`min`) or last (`max`) time of an event."""
    return pick(row["time"] for row in events if row["event"] == event)


def hpcrl(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "hpcrl.cli.main", *arguments]


def environment() -> dict[str, str]:
    """With the project's own interpreter first."""
    return os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
