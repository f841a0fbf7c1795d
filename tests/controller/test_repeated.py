"""Batches whose samples are repeated and whose keys are renamed have the rows that there were, and move none."""

import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.scripted import course, row

from hpcrl.controller.data_proto import DataProto
from hpcrl.data.order import copies, group_of, original, row_of, sample_ids
from hpcrl.data.samples import SequenceSample
from hpcrl.data.totals import mean_of, total_of
from hpcrl.durable.made import Made, origins
from hpcrl.errors import UserCodeError
from hpcrl.master.row_table import RowTable
from hpcrl.master.turn import keys_of
from hpcrl.wire.holders import InMemory, InSpill, by_copies
from hpcrl.workers.inputs import as_read, assemble

IDS = ("q#1.0@0", "b@0#2", "c@1")


class Rows:
    """Fulfils `Reader` by the master's table and a worker's way of reading: rows of even samples lie elsewhere."""

    def __init__(self):
        self.table, self.read_ = RowTable(), 0

    def make(self, ids, call, *keys):
        for holder, some in ((InMemory(0), ids[::2]), (InSpill("file"), ids[1::2])):
            self.table.put(1, call, keys, some, holder)
        return DataProto(1, tuple(ids), {key: (Made(call, len(ids)),) for key in keys}, "train", self)

    def read(self, step, ids, columns):
        self.read_ += 1
        pieces = []
        for keys, of in keys_of(dict(columns), ids):
            for source in self.table.sources(step, keys, of, 0):
                assert len(set(source.ids)) == len(source.ids)
                assert len(set(source.keys)) == len(source.keys)
                held = {key: [row(source.call, key, it) for it in source.ids] for key in source.keys}
                pieces.append(as_read(source, SequenceSample.from_rows(source.ids, held)))
        return assemble(ids, pieces)

    def mean(self, step, ids, columns):
        totals = []
        for keys, of in keys_of(dict(columns), ids):
            for source in self.table.sources(step, keys, of, 0):
                for alike, times in by_copies(source):
                    (key,) = alike.keys
                    held = {key: [row(alike.call, key, it) for it in alike.ids]}
                    totals.append((total_of(SequenceSample.from_rows(alike.ids, held)), times))
        return mean_of(totals)


@st.composite
def pairs(draw):
    """A batch, and a list of (id, key → row) as the slow oracle of it, after some operations on both."""
    reader = Rows()

    def made(ids, call, *keys):
        return [(it, {key: row(call, key, it) for key in keys}) for it in ids]

    batch, table = reader.make(IDS, "", "x").union(reader.make(IDS, "gen", "y", "z")), made(IDS, "gen", "y", "z")
    table = [(name, {"x": row("", "x", name), **keys}) for name, keys in table]
    for number in range(draw(st.integers(0, 6))):
        match draw(st.sampled_from(["repeat", "tile", "rename", "swap", "twin", "order", "make"])):
            case "repeat" if len(table) < 60:
                n = draw(st.integers(1, 3))
                batch = batch.repeat(n)
                table = [(it, keys) for name, keys in table for it in (copies(name, n) if n > 1 else [name])]
            case "tile" if len(table) < 60:
                batch = batch.repeat(2, interleave=False)
                table = [(copies(name, 2)[k], keys) for k in range(2) for name, keys in table]
            case "rename":
                old = draw(st.sampled_from(batch.keys))
                batch = batch.rename({old: f"n{number}"})
                table = [(it, {f"n{number}" if k == old else k: v for k, v in keys.items()}) for it, keys in table]
            case "swap":
                one, two, *_ = batch.keys
                batch = batch.rename({one: two, two: one})
                table = [(it, {**keys, one: keys[two], two: keys[one]}) for it, keys in table]
            case "twin":
                old = draw(st.sampled_from(batch.keys))
                batch = batch.union(batch.select(old).rename({old: f"t{number}"}))
                table = [(it, {**keys, f"t{number}": keys[old]}) for it, keys in table]
            case "order":
                where = draw(st.permutations(range(len(table))))
                batch, table = batch.reorder(where), [table[i] for i in where]
            case "make":
                batch = batch.union(reader.make(batch.ids[::-1], f"call_{number}", f"m{number}"))
                own = f"m{number}"
                table = [(it, {**keys, own: row(f"call_{number}", own, it)}) for it, keys in table]
    return batch, table


@given(pairs())
@settings(max_examples=150, deadline=None)
def test_each_copy_and_each_name_has_the_rows_that_there_were(pair):
    batch, table = pair
    assert batch.ids == tuple(name for name, _ in table) and len(set(batch.ids)) == len(table)
    assert set(batch.keys) == set(table[0][1])
    assert batch.reader.read_ == 0
    found = batch.fetch(*batch.keys)
    for key in batch.keys:
        np.testing.assert_array_equal(found[key], [keys[key] for _, keys in table])
        numbers = [number for _, keys in table for number in keys[key].tolist()]
        assert batch.mean(key) == math.fsum(numbers) / len(numbers)
    parts = batch.chunk(min(3, len(batch)))
    assert DataProto.concat(parts).columns == batch.columns


def test_copies_are_samples_of_their_row():
    assert copies("r@0", 2) == sample_ids(["r"], 0, 2)
    assert copies("r.3#1@0", 2) == ("r.3#1@0#0", "r.3#1@0#1")
    assert copies("r@0#1", 2) == ("r@0#1.0", "r@0#1.1")
    for name in ("r@0", "r.3#1@0", "r@0#1", "r@0#1.4"):
        for copy in copies(name, 12):
            assert (row_of(copy), group_of(copy), original(copy, 1)) == (row_of(name), group_of(name), name)
            assert original(copies(copy, 3)[2], 2) == name and original(copy, 0) == copy


BATCH = Rows().make(IDS, "gen", "y", "z")


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (lambda: BATCH.repeat(0), "repeat(0): a sample is repeated once at least"),
        (lambda: BATCH.repeat(2.0), "repeat: 2.0 is not a whole number"),
        (lambda: BATCH.rename({"r": "s"}), "rename: the batch has no 'r'; it has y, z"),
        (lambda: BATCH.rename({"y": "z"}), "rename: two keys would be 'z'; the batch has y, z. Leave one of them out"),
        (lambda: BATCH.rename("y"), "rename('y'): names are not given as old → new"),
        (lambda: BATCH.rename({"y": 3}), "rename({'y': 3})"),
    ],
)
def test_what_does_not_fit_is_told(act, said):
    with pytest.raises(UserCodeError, match=re.escape(said)):
        act()


def test_an_evaluation_has_new_names_as_it_has_others():
    batch = DataProto(1, ("e",), {"eval_y": (Made("eval_gen", 1),)}, "eval", Rows())
    renamed = batch.rename({"y": "w"})
    assert renamed.keys == ("w",) and renamed.columns == {"eval_w": (Made("eval_gen", 1, "eval_y"),)}
    assert renamed.rename({"w": "y"}).columns == batch.columns


def test_a_call_is_told_what_the_rows_were_and_makes_rows_of_each_copy():
    seen = {}

    def script(run, e):
        actor, reward = run.groups("actor", "reward")
        for step in run.steps():
            batch = step.batch().repeat(2)
            batch = batch.union(actor.generate(batch))
            other = batch.rename({"x": "y", "y": "x"})
            seen["rows"] = other.union(reward.score(other)).fetch("x", "y", "r"), batch.ids

    asked = course(script, turns=1).calls
    assert asked[0].ids == tuple(f"r{i}@1#{k}" for i in range(4) for k in range(2))
    assert asked[0].inputs == {"x": (Made("", 8, "", 1),)}
    assert asked[1].inputs["y"] == (Made("", 8, "x", 1),)
    assert [*origins(asked[1].inputs["y"])] == [("", "x", 1)] * 8
    rows, ids = seen["rows"]
    np.testing.assert_array_equal(rows["y"], [row("", "x", original(it, 1)) for it in ids])
    np.testing.assert_array_equal(rows["x"], [row("actor_gen", "y", it) for it in ids])
    np.testing.assert_array_equal(rows["r"], [row("rew_inf", "r", it) for it in ids])
