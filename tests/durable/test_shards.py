"""Whole parameters out of shards that other layouts wrote, and nothing where a shard is missing or cut short."""

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.tiny_models import odd_config

from hpcrl.durable.checkpoints import DamagedCheckpointError, loading, write_shard
from hpcrl.durable.files import DamagedFileError, Files
from hpcrl.durable.shards import WholeParameters, open_shard, span_state
from hpcrl.families.places import Span, sliced
from hpcrl.families.reader import parameters_of
from hpcrl.placement.layouts import Layout, parse_layout
from hpcrl.placement.shards import cut_of, held

CONFIG = odd_config(heads=4, kv_heads=2, blocks=4, vocabulary_size=29, intermediate_size=24, tied=True)
LAYOUTS = ("d1", "d3", "t2", "t4", "p2", "p4", "d2t2", "d3t2p2", "t4p4")
WHOLE = {parameter.name: np.random.default_rng(i).standard_normal(parameter.shape, np.float32)
         for i, parameter in enumerate(parameters_of(CONFIG))}  # fmt: skip


def shards_of(folder: Path, text: str) -> list[Path]:
    """What the ranks of a layout write: of what they own, each data-parallel rank a slice of its buffer."""
    layout, files = parse_layout(text), Files(folder)
    return [
        folder / write_shard(files, folder, "actor", rank, *_shard(layout, rank)).name for rank in range(layout.size)
    ]


def _shard(layout: Layout, rank: int) -> tuple[dict[str, np.ndarray], dict[str, object]]:
    buffer: list[np.ndarray] = []
    spans: list[Span] = []
    for part in held(CONFIG, cut_of(layout, rank)):
        flat = np.zeros(part.parameter.numel, np.float32)
        for span in part.spans:
            for at, number in pairs(span):
                flat[at] = WHOLE[span.place.parameter].reshape(-1)[number]
        spans += [span.moved(sum(len(flat) for flat in buffer)) for span in part.spans if span.owned]
        buffer.append(flat)
    whole, data = np.concatenate(buffer), rank // layout.tp % layout.dp
    bounds = [len(whole) * part // layout.dp for part in (data, data + 1)]
    return {"master": whole[slice(*bounds)]}, {"spans": span_state(sliced(spans, *bounds))}


def pairs(span: Span) -> Iterator[tuple[int, int]]:
    for row in range(span.place.rows):
        for i in range(span.place.run):
            yield span.offset + row * span.step + i, span.place.first + row * span.place.stride + i


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layouts_shards_are_the_whole_model(layout: str, tmp_path: Path) -> None:
    whole = WholeParameters(map(open_shard, shards_of(tmp_path, layout)))
    for parameter in parameters_of(CONFIG):
        assert np.array_equal(whole.read(parameter), WHOLE[parameter.name]), parameter.name


def test_a_shard_that_is_missing_or_of_another_model_is_told(tmp_path: Path) -> None:
    shards = [open_shard(path) for path in shards_of(tmp_path, "d2t2")]
    first = parameters_of(CONFIG)[0]
    with pytest.raises(DamagedFileError, match=f"hold [0-9]+ of the {first.numel} elements of layers.0.embedding"):
        WholeParameters(shards[1:]).read(first)
    with pytest.raises(DamagedFileError, match="of a model of this shape"):
        WholeParameters(shards).read(replace(first, shape=(7, 7)))


def test_a_file_that_is_cut_short_is_told(tmp_path: Path) -> None:
    path = shards_of(tmp_path, "d1")[0]
    os.truncate(path, path.stat().st_size - 4)
    shard = open_shard(path)
    last = shard.arrays["master"]["shape"][0]
    assert len(shard.read("master", 0, last - 1)) == last - 1
    with pytest.raises(DamagedFileError, match="holds no elements"):
        shard.read("master", 0, last)
    os.truncate(path, 20)
    with pytest.raises(DamagedFileError, match="is no shard any more"):
        open_shard(path)
    path.unlink()
    with pytest.raises(DamagedFileError, match="is missing"):
        open_shard(path)


HEADERS = [
    (b"spans", b"spins", "'spans'"),
    (b'"dtype": "F32"', b'"dtype": "G32"', "G32 at bytes"),
    (b"data_offsets", b"data_offzets", "'data_offsets'"),
    (b"master", b"mister", "lacks 'master'"),
    (b"[0, 49888]", b"[0, 49880]", "holds no elements"),
    (b"0, 1, 580, 580", b"0, 1, -80, 580", "lies at [0, 1, -80"),
    (b"layers", b'layer"', "is no shard any more"),
]


@pytest.mark.parametrize(("was", "now", "said"), HEADERS)
def test_a_header_that_makes_no_sense_damages_its_checkpoint(was: bytes, now: bytes, said: str, tmp_path: Path) -> None:
    path = shards_of(tmp_path, "d1")[0]
    data = path.read_bytes()
    assert was in data
    path.write_bytes(data.replace(was, now, 1))
    with pytest.raises(DamagedCheckpointError, match=re.escape(said)), loading():
        shard = open_shard(path)
        shard.read("master", 0, shard.arrays["master"]["shape"][0])


def test_what_cannot_be_read_says_nothing_of_a_checkpoint_and_what_makes_no_sense_does(tmp_path: Path) -> None:
    with pytest.raises(DamagedFileError) as missing, loading():
        open_shard(tmp_path / "gone")
    assert not isinstance(missing.value, DamagedCheckpointError)
    (tmp_path / "empty").touch()
    with pytest.raises(DamagedCheckpointError, match="is no shard any more"), loading():
        open_shard(tmp_path / "empty")
