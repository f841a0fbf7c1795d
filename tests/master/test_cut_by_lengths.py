"""Steps that lengths cut, by tokens or evenly: killed anywhere, a run has the steps of the uninterrupted one."""

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest
from support.chaos import Remains, create_run, finish, outputs, remains, toy_experiment
from support.faults import Strike
from support.in_memory import FAST

from hpcrl.config.control import ControlConfig, Frequency
from hpcrl.data.order import row_of
from hpcrl.data.rows.vectors import VectorDataset
from hpcrl.recipes.toy import ToyExperiment

ALGORITHMS = """
from dataclasses import replace
from hpcrl.data.batch import Batch
from hpcrl.recipes.toy import ALGORITHM

TOKENS = replace(ALGORITHM, batch=lambda experiment: Batch(rows=60, tokens=60))
EVEN = replace(ALGORITHM, batch=lambda experiment: Batch(rows=6, even=True))
"""
LENGTHS = VectorDataset("x", "r", 20, 16)

CASES = [
    ("TOKENS", "master", "journal.after", 9),
    ("TOKENS", "worker-0", "spill.published", 4),
    ("EVEN", "master", "master.send", 13),
    ("EVEN", "worker-1", "worker.executed", 9),
]


def cut_experiment(folder: Path, name: str) -> ToyExperiment:
    """Two epochs of 20 rows."""
    (folder / "cut.py").write_text(ALGORITHMS)
    control = ControlConfig(epochs=2, checkpoint=Frequency(steps=2), evaluate=Frequency(epochs=1))
    return replace(toy_experiment(), algorithm=f"{folder / 'cut.py'}:{name}", control=control)


@pytest.fixture(scope="module")
def undisturbed() -> Iterator[dict[str, Remains]]:
    with tempfile.TemporaryDirectory(dir=FAST) as folder:
        found = {}
        for name in ("TOKENS", "EVEN"):
            run = create_run(Path(folder, name), cut_experiment(Path(folder), name))
            assert finish(run) == [0], outputs(run)
            found[name] = remains(run)
        yield found


@pytest.mark.parametrize("name", ["TOKENS", "EVEN"])
def test_each_epoch_is_cut_anew_and_whole(undisturbed: dict[str, Remains], name: str) -> None:
    steps = [ids for ids in undisturbed[name].ids.values() if ids]
    epochs = [[ids for ids in steps if ids[0].endswith(f"@{epoch}")] for epoch in range(2)]
    for epoch in epochs:
        assert sorted(map(row_of, chain(*epoch))) == sorted(LENGTHS.ids)
    assert [set(map(row_of, ids)) for ids in epochs[0]] != [set(map(row_of, ids)) for ids in epochs[1]]
    tokens = [[sum(LENGTHS.lengths(ids)) for ids in epoch] for epoch in epochs]
    if name == "TOKENS":
        assert max(map(max, tokens)) <= 60 and len({len(ids) for ids in steps}) > 1
    else:
        assert tokens == [sorted(epoch, reverse=True) for epoch in tokens]
        assert max(map(max, tokens)) < 1.2 * min(map(min, tokens))


@pytest.mark.parametrize(("name", "role", "point", "nth"), CASES)
def test_a_killed_run_has_the_steps_and_bits_of_the_uninterrupted_one(
    undisturbed: dict[str, Remains], name: str, role: str, point: str, nth: int
) -> None:
    with tempfile.TemporaryDirectory(dir=FAST) as folder:
        run = create_run(Path(folder, "run"), cut_experiment(Path(folder), name))
        strike = Strike(Path(folder), "struck", role, point, "KILL", nth=nth)
        finish(run, strike)
        assert strike.marker.exists(), "the strike never came: the test tests nothing"
        assert remains(run) == undisturbed[name], outputs(run)
