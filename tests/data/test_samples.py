import numpy as np
import pytest
from support.batches import assert_same, random_batch

from hpcrl.data.form import Form
from hpcrl.data.samples import KeyMeta, SampleMeta, SequenceSample, sample_seed


@pytest.mark.parametrize("dp", [1, 2, 3, 4, 8, 15, 16])
def test_gather_after_split_is_the_batch_it_came_from(dp: int) -> None:
    batch = random_batch(dp, 13)
    parts = [list(ids) for ids in np.array_split(batch.ids, dp)]
    assert_same(SequenceSample.gather(batch.split(parts)), batch)


def test_select_equals_picking_rows_one_at_a_time() -> None:
    batch = random_batch(3, 9)
    wanted = ["s7", "s0", "s8", "s3"]
    picked = batch.select(wanted)
    assert picked.ids == tuple(wanted)
    for key in batch.keys:
        for sample_id, row in zip(wanted, picked.rows(key), strict=True):
            np.testing.assert_array_equal(row, batch.rows(key)[batch.ids.index(sample_id)])
            assert batch.meta.select([sample_id]).keys[key].lengths == picked.meta.select([sample_id]).keys[key].lengths


def test_packed_arrays_hold_no_padding() -> None:
    batch = random_batch(5, 20)
    for key in batch.keys:
        assert len(batch.data[key]) == sum(batch.length(key)) == sum(map(len, batch.rows(key)))


def test_rows_are_views() -> None:
    batch = random_batch(6, 4)
    assert all(np.shares_memory(row, batch.data["tokens"]) for row in batch.rows("tokens") if len(row))


def test_sub_sequences_keep_their_lengths() -> None:
    batch = SequenceSample.from_rows(["a", "b"], {"pair": [[np.zeros(2), np.zeros(3)], [np.zeros(0), np.zeros(1)]]})
    assert batch.meta.keys["pair"] == KeyMeta("float64", ((2, 3), (0, 1)))
    assert batch.length("pair") == (5, 1)


def test_a_part_may_be_empty_and_keeps_its_types() -> None:
    batch = random_batch(7, 3)
    nothing, everything = batch.split([[], list(batch.ids)])
    assert nothing.ids == () and nothing.data["tokens"].dtype == np.int32 and nothing.data["hidden"].shape == (0, 2)
    assert_same(everything, batch)


def test_a_batch_of_no_samples_can_be_made_of_forms_alone() -> None:
    batch = random_batch(7, 3).select_keys(["tokens", "hidden"])
    forms = {key: Form(meta.dtype, meta.trailing) for key, meta in batch.meta.keys.items()}
    nothing = SequenceSample.empty(forms)
    assert_same(nothing, batch.select(()))
    assert nothing.meta.misfit(forms) == batch.meta.misfit(forms) == ""


@pytest.mark.parametrize("wrong", [Form("float64", (2,)), Form("float32", (3,)), Form("float32")])
def test_rows_of_another_form_than_declared_are_told(wrong: Form) -> None:
    batch = SequenceSample.from_rows(["a"], {"hidden": [np.zeros((3, 2), np.float32)]})
    said = batch.meta.misfit({"hidden": wrong})
    assert said.startswith("'hidden' has rows float32[length, 2] where ") and wrong.dtype in said


def test_a_batch_of_no_rows_joins_any_gather() -> None:
    batch = random_batch(8, 3)
    nothing = SequenceSample.from_rows([], {"other": []})
    assert_same(SequenceSample.gather([nothing, batch, nothing]), batch)
    assert SequenceSample.gather([nothing, nothing]).ids == ()


def test_merge_takes_the_order_of_its_first_batch() -> None:
    left, right = random_batch(9, 5).select_keys(["tokens"]), random_batch(10, 5).select_keys(["hidden"])
    shuffled = right.select(["s4", "s1", "s0", "s2", "s3"])
    merged = left.merge(shuffled)
    assert_same(merged.select_keys(["tokens"]), left)
    assert_same(merged.select_keys(["hidden"]), right)


def test_remap_renames_and_back_again_is_the_batch() -> None:
    batch = random_batch(11, 4)
    renamed = batch.remap({"tokens": "eval_tokens", "pair": "tokens"})
    assert renamed.keys == ("eval_tokens", "hidden", "finished", "tokens")
    assert_same(renamed.remap({"eval_tokens": "tokens", "tokens": "pair"}), batch)


@pytest.mark.parametrize(
    ("wrong", "names"),
    [
        (lambda b: b.select(["s0", "nobody"]), "nobody"),
        (lambda b: b.select(["s0", "s0"]), "s0"),
        (lambda b: b.rows("nothing"), "nothing"),
        (lambda b: b.split([["s0"], ["s0", "s1"]]), "2|once"),
        (lambda b: b.merge(b), "remap"),
        (lambda b: b.select_keys(["pair"]).merge(random_batch(1, 4).select_keys(["tokens"])), "s3"),
        (lambda b: b.remap({"tokens": "pair"}), "pair"),
        (lambda b: b.remap({"nothing": "x"}), "nothing"),
        (lambda b: SequenceSample.gather([b, b]), "s0"),
        (lambda b: SequenceSample.gather([b, random_batch(1, 2, first=9).select_keys(["pair"])]), "differ"),
        (lambda b: SequenceSample.gather([]), "at least one"),
        (lambda b: SequenceSample.from_rows(["a", "b"], {"x": [np.zeros(1)]}), "'x'"),
        (lambda b: SequenceSample.from_rows(["a", "b"], {"x": [np.zeros(1), np.zeros(1, np.int32)]}), "'x'.*int32"),
        (lambda b: SequenceSample.from_rows(["a", "b"], {"x": [np.zeros((1, 2)), np.zeros((1, 3))]}), "trailing"),
        (lambda b: SequenceSample.from_rows(["a"], {"x": [np.array(["text"])]}), "dtype"),
        (lambda b: SequenceSample(b.meta, {}), "keys"),
        (lambda b: SequenceSample(SampleMeta(("a",), {"x": KeyMeta("float64", ((3,),))}), {"x": np.zeros(2)}), "'x'"),
        (lambda b: SequenceSample(SampleMeta(("a",), {"x": KeyMeta("int32", ((2,),))}), {"x": np.zeros(2)}), "'x'"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(wrong, names: str) -> None:
    with pytest.raises(ValueError, match=names):
        wrong(random_batch(12, 3))


def test_a_seed_depends_on_each_of_run_step_call_and_sample_and_never_changes() -> None:
    base = (1, 2, "actor_gen", "r3@0#1")
    others = [(2, 2, "actor_gen", "r3@0#1"), (1, 3, "actor_gen", "r3@0#1"), (1, 2, "eval_gen", "r3@0#1")]
    seeds = {sample_seed(*which) for which in [base, *others, (1, 2, "actor_gen", "r3@0#0")]}
    assert len(seeds) == 5 and all(0 <= seed < 2**64 for seed in seeds)
    assert sample_seed(*base) == 0x3CCA932DBE71EB4D
