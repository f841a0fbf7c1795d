"""The algebra of batches equals that of lists of rows, and whatever does not fit is told at once."""

import math
import re
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcrl.controller.data_proto import DataProto
from hpcrl.data.samples import SequenceSample
from hpcrl.data.totals import mean_of, total_of
from hpcrl.durable.made import Made
from hpcrl.errors import ExitCode, UserCodeError

Table = list[tuple[str, dict[str, str]]]
"""The slow oracle of a batch: id, and key → maker, of each sample."""


@dataclass
class Rows:
    """Fulfils `Reader`: the row of a sample tells its maker and its id."""

    read_: list[tuple[str, ...]] = field(default_factory=list)

    def read(self, step, ids, columns):
        self.read_.append(tuple(columns))
        rows = {
            key: [row(maker, name) for maker, name in zip(spread(runs), ids, strict=True)]
            for key, runs in columns.items()
        }
        return SequenceSample.from_rows(ids, rows)

    def mean(self, step, ids, columns):
        return mean_of([(total_of(self.read(step, ids, columns)), 1)])


READER = Rows()


def row(maker: str, name: str) -> np.ndarray:
    return np.frombuffer(f"{maker}/{name}".encode(), np.uint8).astype(np.float32)


def spread(runs):
    return [run.call for run in runs for _ in range(run.samples)]


def batch_of(ids, makers, dataset="train", step=1, reader=READER):
    return DataProto(step, tuple(ids), {k: (Made(m, len(ids)),) for k, m in makers.items()}, dataset, reader)


def table_of(batch: DataProto) -> Table:
    columns = {key: spread(runs) for key, runs in batch.columns.items()}
    assert all(len(makers) == len(batch) for makers in columns.values())
    for runs in batch.columns.values():
        assert all(one.call != two.call for one, two in pairwise(runs)), "runs are as long as they can be"
    return [(name, {key: makers[i] for key, makers in columns.items()}) for i, name in enumerate(batch.ids)]


@st.composite
def pairs(draw):
    """A batch and its oracle, after some operations on both."""
    ids = [f"s{i}" for i in range(draw(st.integers(1, 9)))]
    batch = batch_of(ids, {"x": "", "y": "gen"})
    table: Table = [(name, {"x": "", "y": "gen"}) for name in ids]
    for number in range(draw(st.integers(0, 6))):
        what = draw(st.sampled_from(["reorder", "filter", "slice", "parts", "union", "pop"]))
        if what == "reorder":
            order = draw(st.permutations(range(len(table))))
            by_id = draw(st.booleans())
            batch = batch.reorder([batch.ids[i] for i in order] if by_id else order)
            table = [table[i] for i in order]
        elif what == "filter":
            mask = draw(st.lists(st.booleans(), min_size=len(table), max_size=len(table)))
            by_id = draw(st.booleans())
            kept = [name for (name, _), flag in zip(table, mask, strict=True) if flag]
            batch = batch.filter(kept[::-1] if by_id else np.array(mask, bool))
            table = [it for it, flag in zip(table, mask, strict=True) if flag]
        elif what == "slice":
            first, last = draw(st.integers(-10, 10)), draw(st.integers(-10, 10))
            batch, table = batch[first:last], table[first:last]
        elif what == "parts" and len(table):
            parts = batch.chunk(draw(st.integers(1, len(table))))
            made = [part.union(batch_of(part.ids, {f"k{number}": f"c_{i}"})) for i, part in enumerate(parts)]
            at = [i for i, part in enumerate(parts) for _ in range(len(part))]
            batch = DataProto.concat(made)
            table = [(name, {**keys, f"k{number}": f"c_{i}"}) for (name, keys), i in zip(table, at, strict=True)]
        elif what == "union" and len(table):
            order = draw(st.permutations([name for name, _ in table]))
            batch = batch.union(batch_of(order, {f"u{number}": f"call_{number}"}))
            table = [(name, {**keys, f"u{number}": f"call_{number}"}) for name, keys in table]
        elif what == "pop":
            key = draw(st.sampled_from(sorted(batch.keys))) if batch.keys else ""
            if key:
                taken, batch = batch.pop(key)
                assert taken.keys == (key,) and taken.ids == batch.ids
                table = [(name, {k: v for k, v in keys.items() if k != key}) for name, keys in table]
    return batch, table


@given(pairs())
@settings(max_examples=150, deadline=None)
def test_a_batch_is_a_list_of_samples(pair):
    batch, table = pair
    assert table_of(batch) == table
    if len(batch) and batch.keys:
        rows = batch.fetch(*batch.keys)
        for key in batch.keys:
            np.testing.assert_equal(rows[key], [row(keys[key], name) for name, keys in table])


@given(pairs(), st.data())
@settings(max_examples=60, deadline=None)
def test_parts_put_together_are_the_whole(pair, data):
    batch, table = pair
    if not len(batch):
        return
    sizes = data.draw(st.lists(st.integers(1, 4), min_size=1).filter(lambda it: sum(it) >= len(batch)))
    while sum(sizes) > len(batch):
        sizes[-1] -= 1
        sizes = [size for size in sizes if size]
    for parts in (batch.split(sizes), batch.split(sizes[0]), batch.chunk(len(sizes))):
        assert table_of(DataProto.concat(parts)) == table
    halves = batch.chunk(min(2, len(batch)))
    assert max(map(len, halves)) - min(map(len, halves)) <= 1


BATCH = batch_of(["a", "b", "c"], {"x": "", "y": "gen"})


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (lambda: BATCH.union(BATCH[:2]), "union: batch 1 has other samples, 2 where this one has 3; 'c' is in one"),
        (lambda: BATCH.union(batch_of(["a", "b", "d"], {"z": "q"})), "'c' is in one of them only"),
        (lambda: BATCH.union(batch_of(BATCH.ids, {"y": "gen_2"})), "both batches have 'y', made by gen and by gen_2"),
        (lambda: BATCH.union(BATCH, 3), "union: batch 2 is a int; batches and futures"),
        (lambda: BATCH.union(batch_of(BATCH.ids, {"z": "q"}, step=2)), "batch 1 is of step 2, this one of step 1"),
        (lambda: BATCH.union(batch_of(BATCH.ids, {"z": "q"}, reader=Rows())), "rows live in the turn"),
        (lambda: BATCH.union(batch_of(BATCH.ids, {"eval_z": "q"}, "eval")), "is of the evaluation data"),
        (lambda: BATCH.select("x", "rewards"), "select: the batch has no 'rewards'; it has x, y"),
        (lambda: BATCH.pop(["rewards"]), "pop: the batch has no 'rewards'"),
        (lambda: BATCH.fetch("rewards"), "fetch: the batch has no 'rewards'"),
        (lambda: BATCH.fetch(), "fetch: no key is named. The batch has x, y"),
        (lambda: BATCH.mean("rewards"), "has no 'rewards'"),
        (lambda: BATCH[0], "a batch has no element 0: it is cut by slices. Write batch[i : i + 1]"),
        (lambda: BATCH["x"], "a batch has no element 'x'"),
        (lambda: BATCH.chunk(4), "chunk(4): a batch of 3 samples has 1 to 3 parts"),
        (lambda: BATCH.chunk(0), "chunk(0)"),
        (lambda: BATCH.split([2, 2]), "split([2, 2]): the sizes add up to 4, but the batch has 3 samples"),
        (lambda: BATCH.split([3, 0]), "each part 1 at least"),
        (lambda: BATCH.split(0), "split(0): a part has 1 sample at least"),
        (lambda: DataProto.concat([]), "concat: there is no batch"),
        (lambda: DataProto.concat([BATCH, BATCH]), "concat: sample 'a' is in several of the batches"),
        (lambda: DataProto.concat([BATCH[:1], BATCH[1:].select("x")]), "concat: batch 2 has the keys x, batch 1 x, y"),
        (lambda: DataProto.concat([BATCH, batch_of(["d"], {"x": ""}, step=2)]), "concat: batch 2 is of step 2"),
        (lambda: BATCH.reorder([0, 1]), "reorder: the order names 2 of the 3 samples"),
        (lambda: BATCH.reorder([0, 1, 1]), "reorder: the order names 2 of the 3 samples"),
        (lambda: BATCH.reorder(["a", "b", "q"]), "reorder: 'q' is no sample of this batch, which has 3"),
        (lambda: BATCH.filter(["q"]), "filter: 'q' is no sample of this batch"),
        (lambda: BATCH.filter([True]), "filter: there are 1 flags for 3 samples"),
        (lambda: BATCH.filter([0, 1, 1]), "filter: 0 is neither a flag nor an id"),
    ],
)
def test_what_does_not_fit_is_told_with_its_line(act, said):
    with pytest.raises(UserCodeError, match=re.escape(said)) as error:
        act()
    assert error.value.exit_code == ExitCode.USER_CODE
    assert str(error.value).startswith(f"test_data_proto.py:{act.__code__.co_firstlineno}: ")


def test_keys_of_an_evaluation_are_named_as_in_training():
    batch = batch_of(["e"], {"eval_x": "", "eval_y": "eval_gen"}, "eval")
    assert batch.keys == ("x", "y")
    assert batch.select("y").columns == {"eval_y": (Made("eval_gen", 1),)}
    np.testing.assert_array_equal(batch.fetch("y")["y"][0], row("eval_gen", "e"))


def test_a_mean_leaves_out_what_is_no_number():
    class Numbers(Rows):
        def read(self, step, ids, columns):
            rows = [np.array(it, np.float32) for it in ([1, 2], [np.nan], [6])]
            return SequenceSample.from_rows(ids, {"x": rows})

    assert batch_of("abc", {"x": ""}, reader=Numbers()).mean("x") == 3.0


def test_without_samples_there_is_no_mean():
    assert math.isnan(BATCH[:0].mean("x"))


def test_a_union_with_itself_is_itself():
    assert table_of(BATCH.union(BATCH, BATCH.reorder([2, 1, 0]))) == table_of(BATCH)
