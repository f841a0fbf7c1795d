import numpy as np
from support.batches import assert_same
from support.rows import open_datasets

from hpcrl.config.control import ControlConfig, Frequency
from hpcrl.data.order import sample_ids
from hpcrl.recipes.toy import ToyConfig, ToyExperiment

EVALUATES = ControlConfig(evaluate=Frequency(steps=5))


def test_made_up_rows_follow_from_their_ids_alone() -> None:
    training, held_out = open_datasets(ToyExperiment(toy=ToyConfig(rows=40, width=8), control=EVALUATES)).values()
    assert training.ids[:2] == ("r0", "r1") and len(training.ids) == 40
    samples = sample_ids(training.ids, 0)
    batch = training.rows(samples)
    assert batch.keys == ("x",) and held_out.rows(["e0@0"]).keys == ("eval_x",)
    assert training.lengths(samples) == list(batch.length("x")) and set(batch.length("x")) == set(range(1, 9))
    assert np.abs(batch.data["x"]).max() < 0.5 and abs(batch.data["x"].mean()) < 0.1
    assert_same(
        open_datasets(ToyExperiment(toy=ToyConfig(rows=2, width=8)))["train"].rows(["r1@0"]), batch.select(["r1@0"])
    )
    assert training.text("r3@0") == {"id": "r3"}
