from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hpcrl.models.packing import Packing, counting

lengths_of_texts = st.lists(st.integers(1, 9), min_size=1, max_size=12)


@given(lengths_of_texts)
def test_sorting_keeps_texts_whole_and_inverse_undoes_it(lengths):
    packing = Packing.of(lengths)
    texts = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    within = torch.cat([torch.arange(length) for length in lengths])
    sorted_texts = texts if packing.order is None else texts[packing.order]
    sorted_within = within if packing.order is None else within[packing.order]
    assert torch.equal(packing.positions, sorted_within)
    begins = packing.cu_seqlens.tolist()
    for begin, end in pairwise(begins):
        assert len(set(sorted_texts[begin:end].tolist())) == 1
    assert [group.length for group in packing.groups for _ in range(group.texts)] == sorted(lengths)
    if packing.order is None:
        assert lengths == sorted(lengths)
    else:
        assert torch.equal(packing.order[packing.inverse], torch.arange(sum(lengths)))


@given(lengths_of_texts, st.data())
def test_tail_rows_are_the_last_rows_of_each_text(lengths, data):
    counts = [data.draw(st.integers(0, length)) for length in lengths]
    expected, end = [], 0
    for length, count in zip(lengths, counts, strict=True):
        end += length
        expected += range(end - count, end)
    assert Packing.of(lengths).tail_rows(counts).tolist() == expected


def test_last_rows_end_each_text():
    assert Packing.of([3, 1, 2]).last_rows().tolist() == [2, 3, 5]


def test_counting_restarts_for_each_size():
    assert counting(torch.tensor([3, 0, 2])).tolist() == [0, 1, 2, 0, 1]


@pytest.mark.parametrize("lengths", [[], [3, 0]])
def test_empty_texts_are_refused(lengths):
    with pytest.raises(ValueError, match="at least one token"):
        Packing.of(lengths)
