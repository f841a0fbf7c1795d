"""What a script asks for before its loop: of no step, without lines, made anew in each attempt."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from support import before_script
from support.chaos import Remains, create_run, ends_alike, remains, toy_experiment, whole_run
from support.covering import covering
from support.faults import Strike
from support.in_memory import folder_in_memory

from hpcrl.cli.main import main
from hpcrl.config.control import ControlConfig, Frequency
from hpcrl.config.model import PlacementConfig
from hpcrl.durable.history import read_history
from hpcrl.durable.journal import Called, Done, Opened
from hpcrl.durable.rundir import RunDirectory

STEPS = 3


def experiment(workers: int = 2, actor: str = "d2", critic: str = "p2") -> Any:
    made = toy_experiment(lost_after_s=60.0, start_timeout_s=60.0, workers_per_node=workers)
    return replace(
        made,
        algorithm=f"{Path(before_script.__file__)}:ALGORITHM",
        control=ControlConfig(steps=STEPS, checkpoint=Frequency(steps=2), check_digests=True),
        actor=PlacementConfig(layout=actor),
        critic=PlacementConfig(layout=critic),
        reward=PlacementConfig(mesh="0", layout="d1"),
    )


def begun(folder: Path) -> Counter[str]:
    return Counter((folder / "begun").read_text().splitlines())


@pytest.fixture(scope="module")
def whole() -> Iterator[RunDirectory]:
    """A run that nothing has disturbed."""
    with folder_in_memory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv(before_script.FILE, str(folder / "begun"))
        yield whole_run(folder, experiment())


@pytest.fixture(scope="module")
def undisturbed(whole: RunDirectory) -> Remains:
    return remains(whole)


def test_each_mode_gives_what_it_says_and_leaves_no_line_and_no_file(whole: RunDirectory, undisturbed: Remains) -> None:
    assert [row["script/right"] for row in undisturbed.metrics] == [5.0] * STEPS
    assert begun(whole.root.parent) == Counter(["first", "unread", *(f"step {n}" for n in range(1, STEPS + 1))])
    lines = [line.event for line in read_history(whole).lines]
    assert min(it.step for it in lines if isinstance(it, Called | Done | Opened)) == 1
    before = ("actor_item", "actor_of_part", "actor_of_first", "actor_twice", "critic_spread")
    assert not [it for it in lines if isinstance(it, Called | Done) and it.call in before]
    assert {it.call for it in lines if isinstance(it, Called) and "begin" in it.call} == {"actor_begin"}
    assert not (whole.root / "spills" / "step-00000000").exists()


# Where somebody passes, how often before, who is killed, and in which attempts it is made: the first seven asks and
# calls come before the loop; the script's worker is the third.
POINTS = [
    ("master", "master.ask", 1, "self"),
    ("master", "master.ask", 5, "worker-2"),
    ("master", "master.moving", 1, "self"),
    ("worker-0", "worker.call", 1, "self"),
    ("worker-1", "worker.executed", 3, "self"),
    ("worker-0", "worker.replied", 5, "all"),
    ("worker-2", "script.answered", 6, "self"),
    ("worker-2", "script.ask", 9, "master"),
    ("master", "master.ask", 9, "self"),
    ("master", "master.ask", 13, "all"),
    ("master", "master.turn", 3, "self"),
]


@pytest.mark.parametrize(("who", "point", "nth", "target"), covering(POINTS, itemgetter(3)))
def test_a_script_that_is_killed_before_its_loop_or_in_it_ends_as_if_nothing_had_happened(
    undisturbed: Remains,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    who: str,
    point: str,
    nth: int,
    target: str,
) -> None:
    monkeypatch.setenv(before_script.FILE, str(tmp_path / "begun"))
    run = create_run(tmp_path / "run", experiment())
    ends_alike(run, undisturbed, Strike(tmp_path, "strike", who, point, "KILL", target, nth))
    made = begun(tmp_path)
    assert made["first"] in (1, 2) and made["unread"] in (1, 2)
    if point == "master.turn":  # it was asked for anew behind the checkpoint
        assert made["first"] == made["unread"] == 2


@pytest.mark.parametrize(("who", "nth"), [("worker-0", 1), ("worker-1", 6)])
def test_a_script_that_prepares_its_steps_ahead_is_killed_and_ends_as_if_nothing_had_happened(
    tmp_path: Path, who: str, nth: int
) -> None:
    ahead = replace(experiment(), algorithm=f"{Path(before_script.__file__)}:AHEAD")
    (tmp_path / "whole").mkdir()
    undisturbed = remains(whole_run(tmp_path / "whole", ahead))
    run = create_run(tmp_path / "run", ahead)
    ends_alike(run, undisturbed, Strike(tmp_path, "strike", who, "worker.executed", "KILL", "all", nth))


@pytest.mark.slow
@pytest.mark.parametrize("layout", [f"d{d}t{t}p{p}" for d in (1, 2) for t in (1, 2) for p in (1, 2)])
def test_each_mode_gives_what_it_says_in_each_layout(tmp_path: Path, layout: str) -> None:
    workers = int(layout[1]) * int(layout[3]) * int(layout[5])
    found = remains(whole_run(tmp_path, experiment(workers, layout, layout)))
    assert [row["script/right"] for row in found.metrics] == [5.0] * STEPS


@pytest.mark.parametrize("view", ["", "timeline", "why", "steps", "stragglers"])
def test_the_views_of_a_run_that_asked_before_its_loop_are_there(
    whole: RunDirectory, capsys: pytest.CaptureFixture[str], view: str
) -> None:
    assert main(["inspect", str(whole.root), *filter(None, [view])]) == 0
    assert capsys.readouterr().out
