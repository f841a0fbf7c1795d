"""Who reads what of a cut's shards: each element once, and everybody has what he is to have."""

import itertools
from collections import Counter
from operator import itemgetter

import pytest
from support.covering import covering
from support.tiny_models import odd_config, tiny_config

from hpcrl.families.config import DecoderConfig
from hpcrl.families.places import Place, Span, packed, sliced
from hpcrl.placement.buffers import lay_out, shard_bounds
from hpcrl.placement.layouts import Layout
from hpcrl.placement.shards import cut_of, held
from hpcrl.placement.shared_shards import ShardReading, shared_reading, wanted_of

CONFIGS = {
    "tied": tiny_config(blocks=4, tied=True),
    "odd sizes": odd_config(vocabulary_size=29, heads=4, kv_heads=2, intermediate_size=24, blocks=4),
    "one kv head": tiny_config(blocks=4, kv_heads=1, vocabulary_size=61),
}
LAYOUTS = [
    Layout(1),
    Layout(2),
    Layout(4),
    Layout(1, 2),
    Layout(1, 1, 2),
    Layout(2, 2),
    Layout(1, 2, 2),
    Layout(3, 1, 2),
]


def slice_of(config: DecoderConfig, layout: Layout, index: int) -> tuple[Span, ...]:
    parts = held(config, cut_of(layout, index))
    buffer = lay_out(part.parameter for part in parts)
    spans = (span.moved(at) for part, at in zip(parts, buffer.offsets, strict=True) for span in part.spans)
    offset, length = shard_bounds(buffer.numel, layout.dp)[index // layout.tp % layout.dp]
    return sliced(spans, offset, offset + length)


def elements(place: Place) -> list[tuple[str, int]]:
    return [
        (place.parameter, place.first + row * place.stride + i) for row in range(place.rows) for i in range(place.run)
    ]


def read(config: DecoderConfig, saved: Layout, loads: Layout, numel: int) -> ShardReading:
    """Once it is proven right."""
    slices = [slice_of(config, saved, index) for index in range(saved.size)]
    shards = [packed(span for span in spans if span.owned) for spans in slices]
    wanted = [slice_of(config, loads, index) for index in range(loads.size)]
    reading = shared_reading(shards, wanted, numel)
    stretches = [*itertools.chain(*reading.alone), *(it for round_ in reading.rounds for it in round_ if it)]
    assert all(it.stop - it.start <= numel for it in stretches)
    once = Counter(element for it in stretches for span in it.spans for element in elements(span.place))
    assert once == Counter(element for spans in shards for span in spans for element in elements(span.place))
    assert set(once.values()) == {1}
    for rank, spans in enumerate(wanted):
        alone = [span for it in reading.alone[rank] for span in it.spans]
        given = [span for round_ in reading.rounds for span in wanted_of(round_, spans)]
        found = Counter(element for span in [*alone, *given] for element in elements(span.place))
        assert found == Counter(element for span in spans for element in elements(span.place))
    return reading


@pytest.mark.parametrize(
    ("loads", "name"), covering(itertools.product(LAYOUTS, CONFIGS), itemgetter(0), itemgetter(1)), ids=str
)
def test_each_element_is_read_once_and_comes_to_all_that_are_to_have_it(name: str, loads: Layout) -> None:
    for saved, numel in zip(LAYOUTS, itertools.cycle((97, 1024, 1 << 20))):
        read(CONFIGS[name], saved, loads, numel)


@pytest.mark.parametrize("layout", [Layout(1), Layout(2), Layout(4)], ids=str)
def test_who_saved_a_shard_reads_it_alone(layout: Layout) -> None:
    reading = read(CONFIGS["tied"], layout, layout, 512)
    assert not reading.rounds
    assert [{it.shard for it in stretches} for stretches in reading.alone] == [{rank} for rank in range(layout.size)]


def test_what_several_are_to_have_is_read_by_all_of_them_in_turn() -> None:
    reading = read(CONFIGS["tied"], Layout(1), Layout(1, 2), 128)
    by_rank = [sum(it.stop - it.start for it in of_rank if it) for of_rank in zip(*reading.rounds, strict=True)]
    assert min(by_rank) > 0 and max(by_rank) - min(by_rank) <= 128
