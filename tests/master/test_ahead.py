"""Scripts that prepare steps ahead of their loop: one result, whatever takes how long, and whoever is killed."""

import itertools
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from support import ahead_script
from support.chaos import create_run, ends_alike, finish, outputs, remains, toy_experiment, whole_run
from support.covering import covering
from support.elastic import finish_on
from support.faults import Dawdles, Strike, Strikes
from support.in_memory import FAST

from hpcrl.config.control import Frequency
from hpcrl.durable.history import read_history
from hpcrl.durable.journal import Called, Closed, Done, Trained
from hpcrl.durable.once import Turn
from hpcrl.durable.rundir import RunDirectory
from hpcrl.launch.fork import make_fork, plan_fork
from hpcrl.master.ahead import left_in

STEPS = 6


def experiment(name: str) -> Any:
    made = toy_experiment(lost_after_s=60.0, start_timeout_s=60.0)
    control = replace(made.control, steps=STEPS, evaluate=Frequency())
    return replace(made, algorithm=f"{ahead_script.__file__}:{name}", control=control)


def lines(run: RunDirectory) -> list[Any]:
    return [line.event for line in read_history(run).lines]


def wrong_versions(run: RunDirectory, lag: int) -> list[Any]:
    """Lines of what is prepared that are of another version than that after the step from which it is."""
    found = lines(run)
    after = {it.step: it.turn.versions for it in found if isinstance(it, Closed) and it.turn is not None}
    read = [it for it in found if isinstance(it, Done | Called) and it.call == "actor_gen"]
    return [it for it in read if it.version != after.get(it.step - 1 - lag, {}).get("actor", 0)]


@pytest.fixture(scope="module")
def wholes() -> Iterator[dict[str, RunDirectory]]:
    """A run that nothing has disturbed, of each of the algorithms; made when it is first asked for."""

    class Wholes(dict[str, RunDirectory]):
        def __missing__(self, of: str) -> RunDirectory:
            Path(name, of).mkdir()
            self[of] = whole_run(Path(name, of), experiment(of))
            return self[of]

    with tempfile.TemporaryDirectory(dir=FAST) as name:
        yield Wholes()


def test_without_a_lag_it_is_what_the_loop_would_write_out(wholes: dict[str, RunDirectory]) -> None:
    assert remains(wholes["LAG_0"]) == remains(wholes["WRITTEN_OUT"])
    assert wrong_versions(wholes["LAG_0"], 0) == []


@pytest.mark.parametrize("lag", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
def test_a_step_reads_the_version_of_its_lag_however_long_calls_take(
    wholes: dict[str, RunDirectory], folder: Path, lag: int
) -> None:
    whole = wholes[f"LAG_{lag}"]
    assert wrong_versions(whole, lag) == []
    ahead = [it.step for it in lines(whole) if isinstance(it, Called | Trained)]
    assert any(later < earlier for earlier, later in itertools.pairwise(ahead))
    run = create_run(folder / "run", experiment(f"LAG_{lag}"))
    assert finish(run, Dawdles(lag)) == [0]
    assert remains(run) == remains(whole), outputs(run)
    assert remains(whole) != remains(wholes["LAG_0"])


# Where the master or a worker passes; how often it has passed there before.
POINTS = [
    (1, "master", "master.ask", 3, "self"),
    (1, "master", "master.ask", 14, "worker-2"),
    (1, "master", "master.turn", 2, "self"),
    (1, "master", "manifest.published", 1, "self"),
    (1, "worker-2", "script.ask", 11, "self"),
    (1, "worker-0", "worker.call", 7, "self"),
    (2, "master", "journal.after", 9, "self"),
    (2, "master", "journal.before", 15, "all"),
    (2, "master", "manifest.published", 2, "all"),
    (2, "master", "master.turn", 4, "worker-2"),
    (2, "worker-2", "script.answered", 30, "self"),
    (3, "worker-1", "worker.executed", 9, "self"),
    (3, "master", "master.ask", 24, "self"),
    (3, "worker-2", "spill.published", 5, "master"),
]


@pytest.mark.parametrize(
    ("lag", "who", "point", "nth", "target"), covering(POINTS, itemgetter(0), itemgetter(1), itemgetter(4))
)
def test_it_ends_as_if_nothing_had_happened(
    wholes: dict[str, RunDirectory], folder: Path, lag: int, who: str, point: str, nth: int, target: str
) -> None:
    run = create_run(folder / "run", experiment(f"LAG_{lag}"))
    ends_alike(run, remains(wholes[f"LAG_{lag}"]), Strike(folder, "strike", who, point, "KILL", target, nth))
    assert wrong_versions(run, lag) == []


LEFT = [
    ("LEAVING", "master.turn", 3),
    ("LEAVING", "manifest.published", 1),
    ("LEAVING", "manifest.published", 2),
    ("LEAVING_AT_ONCE", "master.turn", 2),
    ("LEAVING_AT_ONCE", "manifest.published", 1),
]
CLOSED = {"LEAVING": [1, 2, 3, 4], "LEAVING_AT_ONCE": [1, 2]}


@pytest.mark.parametrize(("name", "point", "nth"), covering(LEFT, itemgetter(0), itemgetter(1)))
def test_a_loop_that_is_left_ends_what_was_prepared_for_it_and_is_not_begun_again(
    wholes: dict[str, RunDirectory], folder: Path, name: str, point: str, nth: int
) -> None:
    whole = wholes[name]
    assert closed(whole) == CLOSED[name]
    run = create_run(folder / "run", experiment(name))
    ends_alike(run, remains(whole), Strike(folder, "strike", "master", point, "KILL", "self", nth))


def test_a_loop_that_was_left_goes_on_in_a_fork_and_where_its_run_is_extended(folder: Path) -> None:
    run = whole_run(folder, experiment("LEAVING_AT_ONCE"))
    fork = make_fork(plan_fork(run.root, 2, ("control.rehearse=false",), folder / "fork"))
    assert finish(fork) == [0], outputs(fork)
    made = experiment("LEAVING_AT_ONCE")
    finish_on(run, replace(made, control=replace(made.control, steps=STEPS + 1)))
    assert closed(fork) == [1, 2, *range(3, STEPS + 1)]
    assert closed(run) == [1, 2, *range(3, STEPS + 2)]


def test_a_fork_whose_parent_had_left_its_loop_goes_on_after_a_kill_too(
    wholes: dict[str, RunDirectory], folder: Path
) -> None:
    parent = wholes["LEAVING"]
    run = make_fork(plan_fork(parent.root, 2, ("control.rehearse=false",), folder / "fork"))
    strike = Strike(folder, "strike", "master", "manifest.published", "KILL", "self", 2)
    finish(run, Strikes((strike,)))
    assert strike.marker.exists() and closed(run) == [*range(1, STEPS + 1)]


def test_a_loop_is_left_since_the_first_of_the_last_turns_that_say_so() -> None:
    def turns(*left: bool) -> list[Turn]:
        return [Turn("{}", {}, 0, {}, 0, each) for each in left]

    assert left_in(4, turns(False, True, True)) == 3
    assert left_in(2, turns(True)) == 2
    assert left_in(3, turns(True, False)) is None, "an extended run's, which went on"
    assert left_in(0, ()) is None


def closed(run: RunDirectory) -> list[int]:
    return [it.step for it in lines(run) if isinstance(it, Closed)]
