"""What `make kill` strikes, keeps and writes; the strikes themselves take an hour."""

import itertools
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from kills.outcomes import Outcome, add, read, rewrite
from kills.page import PAGE, made, table, write
from kills.points import LOCAL, SLURM, Point, points

POINT = Point(LOCAL, "agent", "reduce", "KILL")
GOOD = Outcome(**asdict(POINT), how="resumed", wrong="", seconds=3.0, commit="abc")


def test_there_are_more_than_300_points_and_none_twice() -> None:
    assert len({point.name for point in points()}) == len(points()) >= 300


@pytest.mark.parametrize(
    ("topology", "role"),
    [*itertools.product((LOCAL, *SLURM), ("worker", "agent", "master")), (LOCAL, "housekeeper")],
)
def test_every_process_is_killed_in_every_topology(topology: str, role: str) -> None:
    assert [point for point in points() if (point.topology, point.role, point.what) == (topology, role, "KILL")]


def test_the_page_is_of_the_points_that_were_struck_and_none_went_wrong() -> None:
    known = read()
    assert made() == table(known), "write it again: make kill"
    assert set(known) <= set(points())
    assert [outcome for outcome in known.values() if outcome.wrong] == []


def test_every_outcome_is_one_that_the_page_explains() -> None:
    words = {line.split(" | ")[0].removeprefix("| ") for line in PAGE.read_text().splitlines() if line.startswith("| ")}
    assert {outcome.how for outcome in read().values()} <= {"recovered", "resumed", "unnoticed"} <= words


def test_the_newest_outcome_of_a_point_counts_and_a_torn_line_does_not(tmp_path: Path) -> None:
    kept = tmp_path / "outcomes.jsonl"
    add(replace(GOOD, wrong="other bits"), kept)
    add(GOOD, kept)
    kept.write_text(kept.read_text() + '{"topology": "lo')
    assert read(kept) == {POINT: GOOD}
    rewrite(read(kept), kept)
    assert len(kept.read_text().splitlines()) == 1


def test_a_point_that_went_wrong_is_named_below_the_table(tmp_path: Path) -> None:
    page = tmp_path / PAGE.name
    page.write_text(PAGE.read_text())
    write({POINT: replace(GOOD, wrong="other bits")}, page)
    assert "| reduce | **wrong** |" in made(page) and "- local/agent/reduce/KILL: other bits" in made(page)
    assert page.read_text().partition("<!--")[0] == PAGE.read_text().partition("<!--")[0]
