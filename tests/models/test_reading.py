"""Models that the ranks of a replica read together, beside ranks that each read all and keep their part."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.pool import RankPool, gloo_pool
from support.reading import rchar
from support.tiny_models import gpt2_config, mixtral_config, qwen3_config, tiny_config

from hpcrl.errors import DataError
from hpcrl.models import reading
from hpcrl.models.parts import parts_of
from hpcrl.models.pretrained import load_pretrained, write_random_pretrained
from hpcrl.parallel.context import ParallelContext
from hpcrl.parallel.replica import groups_of, sharing
from hpcrl.placement.layouts import parse_layout
from hpcrl.placement.reading import windows

WIDE: dict[str, Any] = {"hidden_size": 128, "intermediate_size": 352, "vocabulary_size": 1021, "head_dim": 32}
CONFIGS = {
    "tied": tiny_config(blocks=4, tied=True, **WIDE),
    "qwen3": qwen3_config(blocks=4, kv_heads=2, **WIDE),
    "gpt2": gpt2_config(blocks=4),
    "mixtral": mixtral_config(blocks=4),
}
EVERYWHERE = (0, 1, 2, 3)
SMALL = {"read_bytes": 1 << 14, "least_bytes": 1 << 10}
"""So that much is read in turns by all ranks."""


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    with gloo_pool(4) as ranks:
        yield ranks


def loaded(
    context: ParallelContext, folder: Path, layout: str, ranks: tuple[int, ...], options: dict[str, int]
) -> tuple[int, bool] | None:
    """How much this rank has read, and whether it has what it would have read by itself, to the bit."""
    placed = parse_layout(layout)
    context.form(sharing(placed, ranks))
    if context.rank not in ranks:
        return None
    groups = groups_of(context, placed, ranks)
    dict(load_pretrained(folder, readers=groups.readers)[1])  # so that all code is in memory
    with mock.patch.object(reading, "windows", partial(windows, **options)):
        before = rchar()
        config, parameters = load_pretrained(folder, readers=groups.readers)
        found = dict(parameters)
        read = rchar() - before
    alone = dict(parts_of(config, groups.cut, load_pretrained(folder)[1]))
    assert found.keys() == alone.keys()
    assert all(found[name].dtype == tensor.dtype for name, tensor in alone.items())
    return read, all(torch.equal(found[name], tensor) for name, tensor in alone.items())


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


@pytest.mark.parametrize("options", [{}, SMALL], ids=["as it is", "in turns"])
@pytest.mark.parametrize("layout", ["d1", "d2", "d4", "t2", "p2", "d2t2", "t2p2"])
def test_all_ranks_together_read_each_byte_once_and_have_the_same_bits(pool, tmp_path, layout, options):
    write_random_pretrained(tmp_path, CONFIGS["tied"], seed=7)
    ranks = EVERYWHERE[: parse_layout(layout).size]
    found = [result for result in pool.run(loaded, tmp_path, layout, ranks, options) if result is not None]
    assert all(same for _, same in found)
    read = [size for size, _ in found]
    assert size_of(tmp_path) <= sum(read) <= 1.05 * size_of(tmp_path)
    if options:
        assert max(read) < 1.1 * sum(read) / len(read)


@pytest.mark.parametrize("name", ["qwen3", "gpt2", "mixtral"])
@pytest.mark.parametrize("layout", ["d4", "d2t2", "t2p2"])
def test_models_of_other_families_too(pool, tmp_path, name, layout):
    write_random_pretrained(tmp_path, CONFIGS[name], seed=7)
    assert all(same for _, same in pool.run(loaded, tmp_path, layout, EVERYWHERE, SMALL))


def test_some_workers_may_be_of_other_roles(pool, tmp_path):
    write_random_pretrained(tmp_path, CONFIGS["tied"], seed=7)
    found = pool.run(loaded, tmp_path, "d2", (1, 3), SMALL)
    assert [result and result[1] for result in found] == [None, True, None, True]


def changed(folder: Path, change: Any) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, {"format": "pt"})


def test_tensors_of_several_types_are_as_wide_as_the_widest_of_their_parameter(pool, tmp_path):
    write_random_pretrained(tmp_path, CONFIGS["tied"], seed=7)
    narrow = "model.layers.1.self_attn.k_proj.weight"
    norm = "model.layers.2.input_layernorm.weight"
    changed(tmp_path, lambda tensors: tensors.update({name: tensors[name].bfloat16() for name in (narrow, norm)}))
    assert all(same for _, same in pool.run(loaded, tmp_path, "d2t2", EVERYWHERE, SMALL))


def test_the_copy_of_a_tied_matrix_is_compared_as_it_is_read(pool, tmp_path):
    write_random_pretrained(tmp_path, CONFIGS["tied"], seed=7)
    embedding, head = "model.embed_tokens.weight", "lm_head.weight"
    changed(tmp_path, lambda tensors: tensors.update({head: tensors[embedding].clone()}))
    found = pool.run(loaded, tmp_path, "d4", EVERYWHERE, SMALL)
    assert sum(read for read, _ in found) <= 1.05 * size_of(tmp_path)
    changed(tmp_path, lambda tensors: tensors[head][-1].add_(1.0))
    with pytest.raises(DataError, match=r"lm_head\.weight differs from model\.embed_tokens\.weight"):
        dict(load_pretrained(tmp_path)[1])
