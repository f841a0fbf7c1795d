"""Steps that choose, with calls of one role that are behind by different lags, wherever these are made and killed.

Which version a call reads follows from its step and its lag, and from nothing that happens to the run.
"""

import itertools
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.chaos import (
    begin,
    create_run,
    finish,
    kill_once,
    outputs,
    remains,
    started_twice,
    whole_run,
)
from support.choosing import decisions, events_of
from support.cluster import alive_of, no_fault
from support.elastic import assert_nearly_equal, finish_on
from support.elastic import whole as whole_of
from support.faults import Ordering, Strike
from support.in_memory import FAST
from support.lagging import PLACES, lagging, versions, wrong_versions

from hpcrl.durable.journal import Closed
from hpcrl.durable.records import Command
from hpcrl.durable.rundir import RunDirectory

PATIENT = {"lost_after_s": 60.0, "start_timeout_s": 60.0}


@pytest.fixture(scope="module")
def wholes() -> Iterator[dict[str, RunDirectory]]:
    """A run that nothing has disturbed, at each of the places; made when it is first asked for."""

    class Wholes(dict[str, RunDirectory]):
        def __missing__(self, at: str) -> RunDirectory:
            self[at] = whole_run(Path(name, at), lagging(at))
            return self[at]

    with tempfile.TemporaryDirectory(dir=FAST) as name:
        yield Wholes()


def check(run: RunDirectory, undisturbed: RunDirectory) -> None:
    assert wrong_versions(run) == []
    assert remains(run) == remains(undisturbed), outputs(run)
    assert decisions(run) == decisions(undisturbed)
    assert started_twice(run) == []
    assert alive_of(run.root) == []


@pytest.mark.parametrize("at", PLACES)
def test_calls_of_a_role_read_the_versions_of_their_lags_wherever_they_are_made(
    wholes: dict[str, RunDirectory], at: str
) -> None:
    assert wrong_versions(wholes[at]) == []
    assert versions(wholes[at], step=5) == {
        "actor_gen": {2}, "actor_old": {3}, "actor_new": {4}, "critic_inf": {3}, "ref_inf": {3}, "rew_inf": {0},
        "actor_train": {5}, "critic_train": {5}, "ref_blend": {5},
    }  # fmt: skip
    rounds = decisions(wholes[at])
    assert rounds.count("E4") == 2, "a step reads each version for the rows of several rounds"
    assert rounds == decisions(wholes["at home"])
    assert_nearly_equal(wholes[at], whole_of(wholes["at home"]))


# Some between a checkpoint and the steps after it, whose calls have read what it no longer has; where they are quick.
POINTS = [
    ("master", "manifest.published", 2, "self", ""),
    ("worker-0", "shard.published", 3, "agent-0", ""),
    ("master", "master.choose", 9, "all", "at home"),
    ("master", "journal.before", 35, "self", ""),
    ("master", "journal.after", 28, "all", ""),
    ("master", "master.sent", 50, "self", ""),
    ("worker-1", "worker.call", 40, "all", ""),
    ("worker-0", "worker.executed", 30, "self", ""),
    ("worker-0", "spill.published", 25, "all", ""),
]
IN_MOVES = [
    ("worker-1", "move.begin", 4, "self", ""),
    ("worker-0", "move.end", 8, "all", "together"),
    ("master", "master.move", 9, "all", ""),
]


def cases() -> Iterator[Any]:
    """Each point at each place."""
    for points, places in ((POINTS, list(PLACES)), (IN_MOVES, ["apart", "together"])):
        for (*point, quick), at in itertools.product(points, places):
            yield pytest.param(at, *point, marks=() if at == quick else pytest.mark.slow)


@pytest.mark.parametrize(("at", "role", "point", "nth", "target"), list(cases()))
def test_struck_anywhere_every_call_reads_what_it_would_have_read(
    folder: Path, wholes: dict[str, RunDirectory], at: str, role: str, point: str, nth: int, target: str
) -> None:
    strike = Strike(folder, "kill", role, point, "KILL", target, nth)
    run = create_run(folder / "run", lagging(at))
    finish(run, strike)
    assert strike.marker.exists(), "the strike never came: the test tests nothing"
    check(run, wholes[at])


ELSEWHERE = [("apart", "together"), ("together", "at home"), ("at home", "apart")]


@pytest.mark.parametrize(
    ("before", "after"), [ELSEWHERE[0], *(pytest.param(*case, marks=pytest.mark.slow) for case in ELSEWHERE[1:])]
)
def test_where_calls_move_in_the_middle_of_the_rounds_they_read_the_same_versions(
    folder: Path, wholes: dict[str, RunDirectory], before: str, after: str
) -> None:
    run = create_run(folder / "run", lagging(before, **PATIENT))
    kill_once(run, "master", "master.choose", 9)
    finish_on(run, lagging(after, **PATIENT))
    assert wrong_versions(run) == []
    assert_nearly_equal(run, whole_of(wholes["at home"]))
    assert started_twice(run) == []


def test_where_a_run_had_ended_calls_that_are_behind_read_what_it_ended_with(folder: Path) -> None:
    """Older parameters are in no checkpoint of a run that was told to finish."""
    run = create_run(folder / "run", lagging(**PATIENT))
    strike = Strike(folder, "order", "master", "master.choose", "ORDER", nth=5)
    jobs = begin(run, "first", Ordering(run, strike, Command("finish", "first")))
    jobs.wait_for("master", 90)
    jobs.wait(90)
    ended = max(event.step for event in events_of(run) if isinstance(event, Closed))
    assert 0 < ended < 5 and wrong_versions(run) == []
    finish(run)
    assert wrong_versions(run) != [] and wrong_versions(run, since=ended) == []


@pytest.mark.parametrize("strike", [None, ("journal.after", 28)])
def test_a_condition_ends_the_run_as_many_steps_later_as_calls_may_be_behind(
    folder: Path, wholes: dict[str, RunDirectory], strike: tuple[str, int] | None
) -> None:
    """Those steps are open when it is known; a master that begins anew does not forget that it was met."""
    rows = remains(wholes["at home"]).metrics
    experiment = lagging(**PATIENT)
    assert rows[1]["critic_train/loss"] > 35 > rows[2]["critic_train/loss"]
    wanted = replace(experiment, control=replace(experiment.control, stop_when="critic_train/loss < 35"))
    run = create_run(folder / "run", wanted)
    killed = Strike(folder, "kill", "master", strike[0], "KILL", "self", strike[1]) if strike else no_fault
    finish(run, killed)
    ours = remains(run).metrics
    assert [row["step"] for row in ours] == [0, 1, 2, 3, 4] and ours == rows[:5]
    assert wrong_versions(run) == []
