from itertools import pairwise

import pytest
from support.tiny_models import tiny_config

from hpcrl.families.config import TransformerConfig
from hpcrl.models.layout import ALIGNMENT, lay_out


def odd_config(**changes) -> TransformerConfig:
    """Sizes that are no multiples of the alignment."""
    return tiny_config(**({"hidden_size": 20, "head_dim": 6, "blocks": 3} | changes))


def test_entries_lie_in_order_aligned_and_without_overlap():
    layout = lay_out(odd_config())
    for before, after in pairwise(layout.entries):
        assert before.offset + before.numel <= after.offset < before.offset + before.numel + ALIGNMENT
        assert before.layer <= after.layer
    assert all(entry.offset % ALIGNMENT == 0 for entry in layout.entries)
    last = layout.entries[-1]
    assert last.offset + last.numel <= layout.numel < last.offset + last.numel + ALIGNMENT


def test_names_are_unique_and_every_layer_has_its_own():
    layout = lay_out(odd_config())
    assert len({entry.name for entry in layout.entries}) == len(layout.entries)
    assert {entry.layer for entry in layout.entries} == set(range(5))
    assert all(entry.name.startswith(f"layers.{entry.layer}.") for entry in layout.entries)
    assert {entry.name: entry.shape for entry in layout.entries}["layers.2.down"] == (48, 20)


def count(**changes) -> int:
    return sum(entry.numel for entry in lay_out(odd_config(**changes)).entries)


def test_the_number_of_parameters_equals_the_closed_one():
    hidden, inner, vocabulary, query, key = 20, 48, 64, 24, 12
    block = 2 * hidden + hidden * (query + 2 * key) + query + 2 * key + query * hidden + 3 * hidden * inner
    assert count() == 2 * vocabulary * hidden + 3 * block + hidden
    assert count(tied=True) == vocabulary * hidden + 3 * block + hidden
    assert count(head="value") == vocabulary * hidden + 3 * block + hidden + hidden + 1


def test_tensor_parallel_cuts_hold_every_element_once():
    config = odd_config()
    for whole, cut in zip(lay_out(config).entries, lay_out(config, tp=2).entries, strict=True):
        assert cut.numel * (1 if whole.tp_dim is None else 2) == whole.numel
        if whole.tp_dim is not None:
            assert sum(whole.tp_blocks) == whole.shape[whole.tp_dim]


def test_ranges_of_layers_partition_the_entries():
    config = odd_config()
    stages = [lay_out(config, layers=layers).entries for layers in (range(0, 2), range(2, 4), range(4, 5))]
    names = [entry.name for stage in stages for entry in stage]
    assert names == [entry.name for entry in lay_out(config).entries]
    assert all(stage[0].offset == 0 for stage in stages)


def test_a_tp_that_does_not_divide_is_refused_by_name():
    with pytest.raises(ValueError, match=r"layers\.1\.qkv has a piece of 12 along dimension 1, which tp = 8"):
        lay_out(odd_config(), tp=8)
