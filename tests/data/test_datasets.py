"""What an experiment reads, and in which order, by its kind of row and its batch."""

from pathlib import Path

import pytest
from support.rows import open_datasets, open_order

from hpcrl.config.control import ControlConfig, Frequency
from hpcrl.data.batch import Batch
from hpcrl.data.datasets import open_order as open_order_of
from hpcrl.data.datasets import training_steps
from hpcrl.data.rows.kind import RowKind, evaluates
from hpcrl.data.rows.vectors import VectorDataset
from hpcrl.errors import DataError
from hpcrl.recipes.toy import ALGORITHM, ToyConfig, ToyExperiment


def toy(**control: object) -> ToyExperiment:
    return ToyExperiment(control=ControlConfig(**control), toy=ToyConfig(rows=10, batch_size=4))


def vectors(rows: int) -> VectorDataset:
    return VectorDataset("x", "r", rows, 16)


def test_an_evaluation_is_due_now_and_then_and_has_rows() -> None:
    asked = toy(evaluate=Frequency(epochs=1))
    assert list(open_datasets(asked)) == ["train", "eval"] and list(open_datasets(toy())) == ["train"]
    without = RowKind(fields=(), keys=("x",), open=ALGORITHM.rows.open, evaluates=lambda experiment: False)
    assert evaluates(asked, ALGORITHM.rows) and not evaluates(asked, without)


def test_the_order_is_that_of_the_batch() -> None:
    batch = Batch(rows=2, per_row=2, shuffled=False)
    order = open_order_of(toy(), ALGORITHM.rows, batch, vectors(3))
    assert order.batch_at(order.start).ids == ("r0@0#0", "r0@0#1", "r1@0#0", "r1@0#1")
    assert len(open_order(toy(), vectors(6)).batch_at(0).ids) == 4


def test_rows_that_do_not_fill_a_batch_are_refused_by_what_says_so() -> None:
    with pytest.raises(
        DataError, match=r"toy.batch_size = 4, but the data set has 3 rows.* with a lower toy.batch_size"
    ):
        open_order(toy(), vectors(3))
    kind = RowKind(
        fields=(), keys=("x",), open=ALGORITHM.rows.open, inputs=lambda e: [("mine.file", [Path("rows.txt")])]
    )
    with pytest.raises(DataError, match=r"data.batch_size = 2, but mine.file \(rows.txt\) has 1 rows"):
        open_order_of(toy(), kind, Batch(rows=2), vectors(1))


def test_a_run_has_the_steps_that_are_set_or_those_of_its_epochs() -> None:
    for control, steps in (({"steps": 7}, 7), ({"epochs": 2}, 2 * 3)):
        experiment = toy(**control)
        assert training_steps(experiment, ALGORITHM.rows, Batch(rows=4), open_datasets(experiment)) == steps


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_run_that_counts_tokens_has_as_many_steps_as_its_order(shuffled: bool, drop_last: bool) -> None:
    batch, data = Batch(rows=40, tokens=40, shuffled=shuffled, drop_last=drop_last), vectors(50)
    experiment = toy(epochs=3)
    order, cursor, epochs = open_order_of(experiment, ALGORITHM.rows, batch, data), 0, []
    while (step := order.batch_at(cursor)).epoch < 3:
        assert sum(data.lengths(step.ids)) <= 40
        cursor, epochs = step.next_cursor, [*epochs, step.epoch]
    assert training_steps(experiment, ALGORITHM.rows, batch, {"train": data}) == len(epochs)
    whole = data.row_lengths().sum()
    assert min(epochs.count(epoch) for epoch in range(3)) >= whole // 40 - drop_last


def test_data_with_fewer_tokens_than_a_step_are_refused() -> None:
    data = vectors(3)
    tokens = int(data.row_lengths().sum())
    open_order_of(toy(), ALGORITHM.rows, Batch(rows=tokens, tokens=tokens), data)
    with pytest.raises(DataError, match=rf"data.batch_tokens = {tokens + 1}, but the data set has {tokens} tokens"):
        open_order_of(toy(), ALGORITHM.rows, Batch(rows=tokens, tokens=tokens + 1), data)
