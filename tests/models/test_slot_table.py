import torch

from hpcrl.data.slots import Move
from hpcrl.models.slot_table import SlotTable


def seated():
    table = SlotTable(4, torch.device("cpu"))
    table.begin(0, [7, 8, 9], [1, -1, (1 << 64) - 2], [2, 5, 5], [3, 4, 6])
    return table


def test_a_row_ends_at_its_limit_or_at_any_ending_token():
    table, span, ending = seated(), slice(0, 3), torch.tensor([50, 51])
    assert table.advance(span, torch.tensor([10, 11, 51]), ending) == [2]
    assert table.advance(slice(0, 2), torch.tensor([12, 13]), ending) == [0]
    assert table.advance(slice(1, 2), torch.tensor([50]), ending) == [1]


def test_a_token_stands_right_after_what_came_before():
    table = seated()
    table.advance(slice(0, 3), torch.tensor([10, 11, 12]), torch.tensor([], dtype=torch.int64))
    assert table.tokens(slice(0, 3)).tolist() == [10, 11, 12]
    assert table.positions(slice(0, 3)).tolist() == [3, 4, 6]
    assert table.counts(slice(0, 3)).tolist() == [1, 1, 1]


def test_moves_carry_whole_rows():
    table = seated()
    table.move([Move(2, 0)])
    assert table.rows(slice(0, 2)).tolist() == [9, 8]
    assert table.seeds(slice(0, 2)).tolist() == [-2, -1]
    assert table.positions(slice(0, 1)).tolist() == [5]
