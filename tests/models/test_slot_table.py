import torch

from hpcrl.data.slots import Move
from hpcrl.models.slot_table import SlotTable


def seated():
    table = SlotTable(4, torch.device("cpu"))
    table.begin(0, [1, -1, (1 << 64) - 2], [3, 4, 6], [0, 0, 2])
    return table


def test_a_token_stands_right_after_what_came_before():
    table = seated()
    table.advance(slice(0, 3), torch.tensor([10, 11, 12]))
    assert table.tokens(slice(0, 3)).tolist() == [10, 11, 12]
    assert table.positions(slice(0, 3)).tolist() == [3, 4, 6]
    assert table.counts(slice(0, 3)).tolist() == [1, 1, 3]


def test_moves_carry_whole_rows():
    table = seated()
    table.move([Move(2, 0)])
    assert table.seeds(slice(0, 2)).tolist() == [-2, -1]
    assert table.positions(slice(0, 1)).tolist() == [5]
