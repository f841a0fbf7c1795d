"""Who holds which elements, against arrays whose elements know their own number."""

import itertools
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from support.tiny_models import gpt2_config, odd_config, tiny_config

from hpcrl.families.family import Parameter
from hpcrl.families.places import Place, Span, sliced
from hpcrl.families.reader import parameters_of
from hpcrl.placement.layouts import Layout
from hpcrl.placement.shards import Cut, cut_of, held, stages

CONFIG = odd_config(heads=4, kv_heads=2, blocks=5, vocabulary_size=29, intermediate_size=24)
CONFIGS = {
    "tied": replace(CONFIG, tied=True),
    "untied": replace(CONFIG, tied=False),
    "critic": replace(CONFIG, head="value"),
    "one kv head": replace(CONFIG, kv_heads=1),
    "gpt2": replace(gpt2_config(), blocks=4, vocabulary_size=29),
}
CUTS = [(tp, pp) for tp in (1, 2, 4) for pp in (1, 2, 4)]


def elements(span: Span) -> np.ndarray:
    """The numbers, in the whole parameter, of what a span holds, run by run."""
    place = span.place
    return (place.first + np.arange(place.rows)[:, None] * place.stride + np.arange(place.run)).reshape(-1)


def within_buffer(span: Span) -> np.ndarray:
    """Where in the buffer they are."""
    return (span.offset + np.arange(span.place.rows)[:, None] * span.step + np.arange(span.place.run)).reshape(-1)


def expected(parameter: Parameter, tensor: int, tp: int) -> np.ndarray:
    """What a rank has of a parameter, by cutting an array of numbers; -1 is padding."""
    numbers = np.arange(parameter.numel).reshape(parameter.shape)
    if parameter.tp_dim is None or tp == 1:
        return numbers
    parts, first = [], 0
    for block in parameter.tp_blocks:
        units = np.split(
            numbers.take(range(first, first + block.numel), parameter.tp_dim), block.units, parameter.tp_dim
        )
        if block.units < tp and block.spare == "shared":
            mine = [units[tensor * block.units // tp]]
        else:
            each = -(-block.units // tp)
            mine = units[tensor * each : (tensor + 1) * each]
            mine += [np.full_like(units[0], -1)] * (each - len(mine))
        parts += mine
        first += block.numel
    return np.concatenate(parts, parameter.tp_dim)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("tp", [1, 2, 4])
def test_spans_are_what_cutting_the_parameter_gives(name: str, tp: int) -> None:
    for parameter in parameters_of(CONFIGS[name]):
        for tensor in range(tp):
            whole, buffer = expected(parameter, tensor, tp), np.full(parameter.cut(tp).numel, -1)
            for span in parameter.spans(tensor, tp):
                assert (buffer[within_buffer(span)] == -1).all()
                buffer[within_buffer(span)] = elements(span)
            assert buffer.reshape(parameter.cut(tp).shape).tolist() == whole.tolist(), (parameter.name, tensor)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(("tp", "pp"), CUTS)
def test_of_the_ranks_of_a_part_exactly_one_owns_each_element(name: str, tp: int, pp: int) -> None:
    config = CONFIGS[name]
    owners: Counter[tuple[str, int]] = Counter()
    for tensor, stage in itertools.product(range(tp), range(pp)):
        for part in held(config, Cut(tensor, tp, stage, pp)):
            for span in part.spans:
                if span.owned:
                    owners.update((span.place.parameter, int(number)) for number in elements(span))
    assert set(owners.values()) == {1}
    assert len(owners) == sum(parameter.numel for parameter in parameters_of(config))


def test_a_slice_of_a_buffer_is_in_at_most_three_spans_a_span() -> None:
    rng = np.random.default_rng(1)
    for _ in range(400):
        rows, run = (int(n) for n in rng.integers(1, 6, 2))
        stride, step, offset = (int(run + n) for n in rng.integers(0, 4, 3))
        span = Span(Place("p", 3, rows, run, stride), offset, step)
        start, stop = sorted(int(n) for n in rng.integers(0, offset + rows * step + 3, 2))
        found = sliced([span], start, stop)
        assert len(found) <= 3
        pairs = {int(at): int(number) for at, number in zip(within_buffer(span), elements(span), strict=True)}
        wanted = {at - start: number for at, number in pairs.items() if start <= at < stop}
        got = [
            (int(at), int(number))
            for part in found
            for at, number in zip(within_buffer(part), elements(part), strict=True)
        ]
        assert len(got) == len(wanted) and dict(got) == wanted


def test_stages_are_cut_by_the_number_of_parameters() -> None:
    config = tiny_config(blocks=7, vocabulary_size=16)
    assert stages(config, 1) == (range(9),)
    assert [len(layers) for layers in stages(config, 3)] in ([3, 2, 4], [4, 2, 3], [3, 3, 3])
    assert [layer for layers in stages(config, 3) for layer in layers] == list(range(9))
    heavy = stages(replace(config, vocabulary_size=4096), 2)
    assert heavy[0].stop < 8
    with pytest.raises(ValueError, match="8 stages need a block each, and the model has 7"):
        stages(config, 8)


def test_ranks_of_a_layout_are_cut_by_stage_and_tensor_rank() -> None:
    layout = Layout(dp=2, tp=2, pp=2)
    assert [(cut.stage, cut.tensor) for cut in (cut_of(layout, index) for index in range(8))] == [
        (0, 0), (0, 1), (0, 0), (0, 1), (1, 0), (1, 1), (1, 0), (1, 1),
    ]  # fmt: skip


def test_a_cut_through_a_head_is_refused() -> None:
    with pytest.raises(ValueError, match="tp = 8 does not divide 4"):
        held(CONFIG, Cut(tp=8))
    with pytest.raises(ValueError, match="3 and tp = 4 divide each other in no way"):
        held(replace(CONFIG, heads=12, kv_heads=3), Cut(tp=4))
