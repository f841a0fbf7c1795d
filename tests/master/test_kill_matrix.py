"""Whoever is killed, wherever: the run resumes and ends bit for bit as if nothing had happened.

Each case strikes once (or twice) at a named point, lets the run recover by itself or resumes it, and compares
parameters, optimizer state, merged metrics and ids with an undisturbed run. `make kill-toy` runs the slow cases too.
"""

import itertools
from collections.abc import Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from support.archives import archives
from support.chaos import Remains, create_run, finish, outputs, remains, started_twice, toy_experiment
from support.cluster import alive_of
from support.covering import covering
from support.faults import After, Strike, Strikes

# Where a process is struck: (role, point, passage).
MASTER_POINTS = [
    ("master", "master.start", 1),
    ("master", "claim.made", 1),
    ("master", "claim.synced", 1),
    ("master", "plan.write", 1),
    ("master", "adopted.write", 1),
    ("master", "adopted.synced", 1),
    ("master", "adopted.published", 1),
    ("master", "journal.before", 2),
    ("master", "journal.after", 4),
    ("master", "journal.before", 12),
    ("master", "journal.after", 20),
    ("master", "master.send", 3),
    ("master", "master.sent", 9),
    ("master", "manifest.write", 1),
    ("master", "manifest.synced", 1),
    ("master", "manifest.published", 2),
    ("master", "prune.unlink", 1),
    ("master", "prune.unlink", 4),
    ("master", "export.synced", 1),
    ("master", "export.published", 2),
]
HOUSEKEEPER_POINTS = [
    ("housekeeper-0", "chore.begin", 1),
    ("housekeeper-0", "archive.write", 2),
    ("housekeeper-0", "archive.synced", 4),
    ("housekeeper-0", "archive.published", 3),
    ("housekeeper-0", "compact.write", 1),
    ("housekeeper-0", "compact.synced", 2),
    ("housekeeper-0", "compact.published", 1),
    ("housekeeper-0", "chore.done", 3),
    ("housekeeper-0", "parts.unlink", 3),
]
WORKER_POINTS = [
    ("worker-0", "worker.start", 1),
    ("worker-1", "worker.call", 4),
    ("worker-0", "worker.executed", 9),
    ("worker-1", "worker.replied", 7),
    ("worker-0", "spill.write", 2),
    ("worker-1", "spill.synced", 5),
    ("worker-0", "spill.published", 8),
    ("worker-0", "shown.write", 1),
    ("worker-1", "shown.synced", 2),
    ("worker-0", "shown.published", 3),
    ("worker-0", "verify.begin", 1),
    ("worker-1", "verify.read", 2),
    ("worker-0", "shard.write", 1),
    ("worker-1", "shard.synced", 2),
    ("worker-1", "shard.published", 3),
    ("worker-1", "export.begin", 1),
    ("worker-0", "export.write", 1),
]


def cases(points: Sequence[tuple[str, str, int]], targets: Sequence[str]) -> Iterator[Any]:
    """Each point with each signal at each target. Fast is, by turns, one target of each point's KILL and of every
    twelfth point's TERM: who is told to end ends in the same place, however far its calls are. A file that is on disk
    and not published is nobody's, as one that is half written: one of these points is enough."""
    for number, point in enumerate(points):
        for shift, what in enumerate(("KILL", "TERM")):
            for turn, target in enumerate(targets):
                case = (*point, what, target)
                fast = turn == (number // 6 if shift else number) % len(targets) and not (shift and number % 12)
                synced = point[1].endswith(".synced") and point[1] != "spill.synced"
                yield case if fast and not synced else pytest.param(*case, marks=pytest.mark.slow)


CASES = [
    *cases(MASTER_POINTS, ("self", "agent-0", "all")),
    *cases(HOUSEKEEPER_POINTS, ("self", "agent-0", "master", "all")),
    *cases(WORKER_POINTS, ("self", "agent-0", "master", "all")),
]
# The second strike hits the recovery from the first.
RECOVERY_POINTS = [
    "claim.made",
    "adopt.linked",
    "adopted.write",
    "adopted.synced",
    "adopted.published",
    "journal.before",
]
DOUBLE_CASES = covering(
    itertools.product(RECOVERY_POINTS, ("worker-0", "worker-1"), ("self", "agent-0")), itemgetter(0), itemgetter(1, 2)
)


def check(folder: Path, strikes: Strikes, undisturbed: Remains) -> None:
    run = create_run(folder / "run", toy_experiment())
    finish(run, strikes)
    assert all(strike.marker.exists() for strike in strikes.strikes), "a strike never came: the test tests nothing"
    assert remains(run) == undisturbed, outputs(run)
    assert archives(run) == undisturbed.archives and len(undisturbed.archives) == 6, outputs(run)
    assert started_twice(run) == []
    assert alive_of(run.root) == []


@pytest.mark.parametrize(("role", "point", "nth", "what", "target"), CASES)
def test_a_run_struck_anywhere_ends_as_if_nothing_had_happened(
    folder: Path, undisturbed: Remains, role: str, point: str, nth: int, what: str, target: str
) -> None:
    check(folder, Strikes((Strike(folder, "first", role, point, what, target, nth),)), undisturbed)


@pytest.mark.parametrize(("point", "victim", "target"), DOUBLE_CASES)
def test_a_run_struck_again_while_it_recovers_ends_as_if_nothing_had_happened(
    folder: Path, undisturbed: Remains, victim: str, point: str, target: str
) -> None:
    first = Strike(folder, "first", victim, "spill.published", "KILL", nth=6)
    nth = 3 if point == "adopt.linked" else 1
    second = After(folder, "second", "master", point, "KILL", target, nth, first=first)
    check(folder, Strikes((first, second)), undisturbed)


@pytest.mark.parametrize("target", ["self", pytest.param("agent-0", marks=pytest.mark.slow), "all"])
def test_a_run_killed_while_it_drains_ends_as_if_nothing_had_happened(
    folder: Path, undisturbed: Remains, target: str
) -> None:
    first = Strike(folder, "first", "master", "journal.after", "TERM", nth=5)
    second = Strike(folder, "second", "master", "master.drain", "KILL", target)
    check(folder, Strikes((first, second)), undisturbed)
