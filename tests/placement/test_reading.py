"""Who reads what of a model's files: every byte once, about equally much, and where it is in the parameters."""

from collections import defaultdict
from math import prod

import numpy as np
import pytest
from support.tiny_models import gpt2_config, mixtral_config, odd_config, qwen3_config, tiny_config

from hpcrl.families.config import DecoderConfig
from hpcrl.families.headers import StoredTensor
from hpcrl.families.reader import family_of, parameters_of
from hpcrl.placement.reading import StoredPiece, Window, even_cut, read_spans, stored_pieces, windows

CONFIGS = {
    "tied": tiny_config(blocks=4, tied=True),
    "odd sizes": odd_config(vocabulary_size=29, heads=4, kv_heads=2, intermediate_size=24, blocks=5),
    "gpt2": gpt2_config(blocks=3),
    "qwen3": qwen3_config(kv_heads=2),
    "mixtral": mixtral_config(blocks=2),
    "critic": tiny_config(blocks=4, head="value"),
}


def tensors_of(config: DecoderConfig, dtypes: tuple[str, ...] = ("F32",)) -> list[tuple[StoredPiece, ...]]:
    """Of each parameter, as if they were of these types in turn."""
    found, number = [], 0
    for parameter in parameters_of(config):
        pieces, stored = family_of(config).pieces(config, parameter), {}
        for piece in pieces:
            dtype, number = dtypes[number % len(dtypes)], number + 1
            stored[piece.name] = StoredTensor(piece.name, "file", piece.stored_shape(parameter), dtype, 0)
        found.append(stored_pieces(parameter, pieces, stored, config.head_dim))
    return found


def most_granule(tensors: list[tuple[StoredPiece, ...]]) -> int:
    return max(piece.bytes_each for pieces in tensors for piece in pieces)


def read_by(cut: list[Window], ranks: int) -> list[int]:
    """Bytes."""
    found = [0] * ranks
    for window in cut:
        for round_ in window.rounds:
            for rank, reads in enumerate(round_):
                found[rank] += sum((it.stop - it.first) * it.stored.bytes_each for it in reads)
    return found


@pytest.mark.parametrize("seed", range(40))
def test_each_row_of_each_tensor_is_read_once_and_all_ranks_read_equally_much(seed):
    draw = np.random.default_rng(seed)
    name = sorted(CONFIGS)[seed % len(CONFIGS)]
    dtypes = [("F32",), ("BF16",), ("F32", "BF16"), ("F64", "F16", "BF16")][seed % 4]
    tensors, ranks = tensors_of(CONFIGS[name], dtypes), int(draw.integers(1, 12))
    read, least, most = (int(2**power) for power in draw.uniform((6, 3, 6), (14, 10, 18)))
    cut = list(windows(tensors, ranks, read, least, most))
    rows, elements = defaultdict(list), defaultdict(list)
    for window in cut:
        for round_ in window.rounds:
            assert len(round_) == ranks
            for it in (it for reads in round_ for it in reads):
                assert it.stored.parameter in window.parameters
                rows[it.stored.tensor.name] += range(*it.rows)
                place = it.place
                begins = place.first + np.arange(place.rows)[:, None] * place.stride
                elements[it.stored.parameter.name].append((begins + np.arange(place.run)).ravel())
    for pieces in tensors:
        for piece in pieces:
            assert sorted(rows[piece.tensor.name]) == list(range(piece.tensor.shape[0]))
        parameter = pieces[0].parameter
        assert sorted(np.concatenate(elements[parameter.name])) == list(range(prod(parameter.shape)))
    loads, granule = read_by(cut, ranks), most_granule(tensors)
    assert max(loads) - min(loads) <= 2 * max(granule, least)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_rank_reads_little_at_a_time(ranks):
    tensors = tensors_of(CONFIGS["tied"])
    cut = list(windows(tensors, ranks, read_bytes=1024, least_bytes=64))
    assert max(len(window.rounds) for window in cut) > 1
    for window in cut:
        sizes = [max((span.stop for span in read_spans(reads)), default=0) * 4 for it in window.rounds for reads in it]
        assert max(sizes) <= 1024 + 2 * most_granule(tensors)
        own = {it.name: it.numel * 4 for it in window.parameters}
        assert sum(own.values()) <= max(1024 * ranks, *own.values())


def test_small_models_are_read_by_few():
    (window,) = windows(tensors_of(CONFIGS["critic"]), 8, least_bytes=1 << 20)
    assert sum(map(bool, window.rounds[0])) == 1


@pytest.mark.parametrize("seed", range(20))
def test_items_are_cut_between_granules_into_parts_of_one_size(seed):
    draw = np.random.default_rng(seed)
    items = [(int(count), int(each)) for count, each in draw.integers(1, 40, (int(draw.integers(1, 9)), 2))]
    parts = int(draw.integers(1, 60))
    cut = list(even_cut(items, parts))
    assert len(cut) == parts
    assert [(item, granule) for part in cut for item, first, stop in part for granule in range(first, stop)] == [
        (item, granule) for item, (count, _) in enumerate(items) for granule in range(count)
    ]
    ideal = sum(count * each for count, each in items) / parts
    for part in cut:
        assert abs(sum((stop - first) * items[item][1] for item, first, stop in part) - ideal) <= max(
            each for _, each in items
        )
