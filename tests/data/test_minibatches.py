import random

import numpy as np
import pytest

from hpcrl.data.batch import Batch
from hpcrl.data.minibatches import cut_of, held, minibatches_of_all_passes, with_places, without_places
from hpcrl.data.order import group_of
from hpcrl.data.samples import SequenceSample

IDS = tuple(f"r{row}@0#{k}" for row in range(7) for k in range(2))
CUTS = (IDS[:5], IDS[5:6], IDS[6:])


def rows(ids: tuple[str, ...]) -> SequenceSample:
    return SequenceSample.from_rows(ids, {"x": [np.arange(3)] * len(ids)})


@pytest.mark.parametrize("reshuffled", [False, True])
def test_parts_hold_together_what_the_mini_batches_are_in_their_order(reshuffled: bool) -> None:
    batch = Batch(rows=7, per_row=2, minibatches=3, passes=2, reshuffled=reshuffled)
    passes = minibatches_of_all_passes(batch, CUTS, 1, 1)
    assert len(passes) == (6 if reshuffled else 3) and (passes[:3] == CUTS) != reshuffled
    cut, chance = cut_of(passes), random.Random(0)
    part_of = {sample: chance.randrange(3) for sample in IDS}
    parts = [tuple(sample for sample in IDS if part_of[sample] == part) for part in range(3)]
    for part, ids in enumerate(parts):
        told = with_places(rows(ids), ids, [cut.places[sample] for sample in ids])
        batch_of_part, places = without_places(told)
        assert batch_of_part.ids == ids and batch_of_part.keys == ("x",)
        own = held(ids, places, len(cut.sizes))
        assert own == tuple(tuple(it for it in each if part_of[it] == part) for each in passes)
    assert cut.sizes == tuple(map(len, passes))


def test_samples_of_a_group_have_its_number_in_the_order_of_the_whole_step() -> None:
    cut = cut_of(CUTS)
    assert cut.groups == 7
    assert [cut.places[sample][0] for sample in IDS] == [int(group_of(sample)[1]) for sample in IDS]


def test_part_without_samples_is_told_none() -> None:
    nothing = rows(())
    assert with_places(nothing, (), ()) == nothing
    assert without_places(nothing) == (nothing, []) and held((), [], 3) == ((), (), ())
    assert without_places(given := rows(IDS)) == (given, []) and held(IDS, [], 0) == ()
