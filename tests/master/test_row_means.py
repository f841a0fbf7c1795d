"""Means of rows, added up where they lie: the same to the bit in memory and in a spill, killed or not."""

from collections.abc import Iterator
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from support import means_script
from support.chaos import Remains, create_run, ends_alike, remains, toy_experiment, whole_run
from support.covering import covering
from support.faults import Strike
from support.in_memory import folder_in_memory

from hpcrl.config.control import Frequency


def experiment() -> Any:
    made = toy_experiment(lost_after_s=60.0, start_timeout_s=60.0)
    return replace(
        made,
        algorithm=f"{Path(means_script.__file__)}:ALGORITHM",
        control=replace(made.control, steps=3, evaluate=Frequency()),
    )


@pytest.fixture(scope="module")
def undisturbed() -> Iterator[Remains]:
    with folder_in_memory() as folder:
        yield remains(whole_run(folder, experiment()))


def test_a_mean_is_that_of_the_fetched_rows_to_the_bit(undisturbed: Remains) -> None:
    assert [(row["script/same"], row["script/copied_same"]) for row in undisturbed.metrics] == [(1.0, 1.0)] * 3
    assert len({row["script/y"] for row in undisturbed.metrics}) == 3


# Where somebody passes, how often before, who is killed then; the script's worker is the third. Of what is recorded by
# then the rows are in spills; others are made again, and lie in memory.
POINTS = [
    ("master", "master.ask", 8, "all"),
    ("master", "journal.after", 10, "self"),
    ("worker-0", "spill.published", 6, "self"),
    ("worker-2", "script.answered", 12, "self"),
    ("worker-2", "script.answered", 27, "all"),
    ("worker-1", "worker.replied", 9, "worker-2"),
]


@pytest.mark.parametrize(("who", "point", "nth", "target"), covering(POINTS, itemgetter(3)))
def test_a_script_that_takes_means_is_killed_and_ends_as_if_nothing_had_happened(
    undisturbed: Remains, folder: Path, who: str, point: str, nth: int, target: str
) -> None:
    run = create_run(folder / "run", experiment())
    ends_alike(run, undisturbed, Strike(folder, "strike", who, point, "KILL", target, nth))
