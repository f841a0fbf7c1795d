"""What ranks of one layout save, ranks of any other load: each what it holds, and nothing else is read."""

import itertools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.pool import everyone, gloo_pool
from support.tiny_models import odd_config

from hpcrl.config.model import OptimizerConfig
from hpcrl.durable.checkpoints import write_shard
from hpcrl.durable.files import Files
from hpcrl.durable.shards import open_shard, span_state
from hpcrl.engines import shard as shards
from hpcrl.engines.adamw import ShardedAdamW
from hpcrl.engines.checksum import runs
from hpcrl.engines.flat import FlatParameters
from hpcrl.engines.shard import CopiedShard
from hpcrl.families.places import Span
from hpcrl.families.reader import parameters_of
from hpcrl.parallel.group import Group
from hpcrl.parallel.replica import ReplicaGroups, reads_alone
from hpcrl.placement.buffers import ALIGNMENT, shard_bounds
from hpcrl.placement.layouts import Layout
from hpcrl.placement.shards import WHOLE, cut_of

CONFIG = odd_config(heads=4, kv_heads=2, blocks=4, vocabulary_size=29, intermediate_size=24, tied=True)
CPU = torch.device("cpu")
LAYOUTS = [
    Layout(*sizes)
    for sizes in [
        (1, 1, 1), (2, 1, 1), (3, 1, 1), (1, 2, 1), (1, 4, 1), (1, 1, 2), (1, 1, 3), (1, 1, 4),
        (2, 2, 1), (2, 1, 2), (1, 2, 2), (2, 2, 2),
    ]
]  # fmt: skip
PARTS = ("master", "first", "second")


@dataclass
class Silent:
    """One of `size` ranks with equal buffers, who talk to nobody."""

    index: int = 0
    size: int = 1

    def bounds(self, total: int) -> tuple[int, int]:
        return shard_bounds(total, self.size)[self.index]

    def all_gather(self, slice_: torch.Tensor, flat: torch.Tensor) -> None:
        """What the others have stays as it is."""

    def total(self, vector: torch.Tensor) -> torch.Tensor:
        return vector


def silent(dp: int = 0, of: int = 1) -> ReplicaGroups:
    alone: Any = Silent()
    data: Any = Silent(dp, of)
    return ReplicaGroups(WHOLE, data, alone, alone, alone, reads_alone())


def wholes(part: str) -> dict[str, torch.Tensor]:
    """Every parameter, whole, of one part; all elements differ."""
    seed = PARTS.index(part)
    draw = torch.Generator().manual_seed(seed)
    return {p.name: torch.randn(p.numel, generator=draw) for p in parameters_of(CONFIG)}


@dataclass
class Rank:
    memory: FlatParameters
    adamw: ShardedAdamW
    dp: int

    def spans(self) -> tuple[Span, ...]:
        return self.adamw.spans


def ranks(layout: Layout) -> list[Rank]:
    made = []
    for index in range(layout.dp * layout.tp * layout.pp):
        memory = FlatParameters(CONFIG, cut_of(layout, index), torch.float32, CPU, trainable=False)
        dp = index // layout.tp % layout.dp
        groups = silent(dp, layout.dp)
        adamw = ShardedAdamW("actor", memory.slice(groups.dp), groups, OptimizerConfig(lr=0.1))
        made.append(Rank(memory, adamw, dp))
    return made


def expected(rank: Rank, part: str) -> torch.Tensor:
    """What a rank's slice has of a part: its places of the whole, zeros in gaps and padding."""
    buffer, whole = torch.zeros_like(rank.adamw.master_S), wholes(part)
    for span in rank.spans():
        place = span.place
        runs(buffer, span).copy_(runs(whole[place.parameter], Span(place, place.first, place.stride)))
    return buffer


def filled(layout: Layout) -> list[Rank]:
    made = ranks(layout)
    for rank in made:
        for part, tensor in rank.adamw.parts.items():
            tensor.copy_(expected(rank, part))
    return made


SAVED = {layout: [rank.adamw.snapshot() for rank in filled(layout)] for layout in LAYOUTS}


@pytest.mark.parametrize("source", LAYOUTS, ids=str)
def test_any_layout_loads_what_any_other_saved(source: Layout) -> None:
    for target in LAYOUTS:
        for rank in ranks(target):
            assert rank.adamw.load(SAVED[source])
            for part, tensor in rank.adamw.parts.items():
                assert torch.equal(tensor, expected(rank, part)), (source, target, part)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_every_element_is_saved_once_and_nothing_else(layout: Layout) -> None:
    seen: dict[str, np.ndarray] = {p.name: np.zeros(p.numel, np.int64) for p in parameters_of(CONFIG)}
    for saved in SAVED[layout]:
        for span in saved.spans:
            place = span.place
            rows, columns = np.arange(place.rows)[:, None] * place.stride, np.arange(place.run)
            np.add.at(seen[place.parameter], (place.first + rows + columns).reshape(-1), 1)
    assert all((count == 1).all() for count in seen.values())
    gaps = ALIGNMENT * sum(len(saved.spans) for saved in SAVED[layout])
    total = sum(saved.arrays["master"].size for saved in SAVED[layout])
    assert total < sum(parameter.numel for parameter in parameters_of(CONFIG)) + gaps


class Counting:
    """A shard that counts the elements that are read of it."""

    def __init__(self, of: CopiedShard) -> None:
        self._of = of
        self.read_elements = 0
        self.spans, self.state, self.dtype = of.spans, of.state, of.dtype

    def read(self, array: str, start: int, stop: int) -> np.ndarray:
        self.read_elements += stop - start
        return self._of.read(array, start, stop)


@pytest.mark.parametrize(("source", "target"), [*itertools.product(LAYOUTS[::3], LAYOUTS[1::3])], ids=str)
def test_a_rank_reads_what_it_holds_and_nothing_else(
    source: Layout, target: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "LEAST_READ_BYTES", 0)
    for rank in ranks(target):
        counted = [Counting(saved) for saved in SAVED[source]]
        rank.adamw.load(counted)
        held = sum(span.place.numel for span in rank.spans())
        assert sum(each.read_elements for each in counted) == len(PARTS) * held


@pytest.mark.parametrize("piece", [4, 40, 1000])
def test_reading_piece_by_piece_is_reading_at_once(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "PIECE_BYTES", piece)
    for least in (0, 4096):
        monkeypatch.setattr(shards, "LEAST_READ_BYTES", least)
        (rank,) = ranks(Layout())
        rank.adamw.load(SAVED[Layout(tp=2, pp=2)])
        assert torch.equal(rank.adamw.master_S, expected(rank, "master"))


def test_files_hold_what_memory_held(tmp_path: Path) -> None:
    files, stored = Files(tmp_path), []
    for number, saved in enumerate(SAVED[Layout(dp=2, tp=2)]):
        state = {"spans": span_state(saved.spans), **saved.state}
        name = write_shard(files, tmp_path, "actor", number, saved.arrays, state).name
        stored.append(open_shard(tmp_path / name))
    for rank in ranks(Layout(tp=4, pp=2)):
        assert rank.adamw.load(stored)
        assert all(torch.equal(tensor, expected(rank, part)) for part, tensor in rank.adamw.parts.items())


def digests_of_a_block(context: Any, layout: Layout, saved: list[CopiedShard]) -> tuple[str, str, CopiedShard]:
    memory = FlatParameters(CONFIG, cut_of(layout, context.rank), torch.float32, CPU, trainable=False)
    alone, both = Group((context.rank,), context.rank, CPU), everyone(context)
    tp, pp = (both if axis > 1 else alone for axis in (layout.tp, layout.pp))
    groups = ReplicaGroups(cut_of(layout, context.rank), alone, tp, pp, both, reads_alone())
    adamw = ShardedAdamW("actor", memory.slice(groups.dp), groups, OptimizerConfig(lr=0.1))
    adamw.load(saved)
    return adamw.digest(), adamw.parameters_digest(), adamw.snapshot()


@pytest.mark.parametrize("layout", [Layout(tp=2), Layout(pp=2)], ids=str)
def test_ranks_of_a_block_have_the_digest_of_one_rank_and_save_what_it_can_load(layout: Layout) -> None:
    (alone,) = filled(Layout())
    whole = alone.adamw.digest(), alone.adamw.parameters_digest()
    with gloo_pool(2) as pool:
        found = pool.run(digests_of_a_block, layout, SAVED[Layout(dp=3)])
    assert [digests for *digests, _ in found] == [[*whole]] * 2
    (again,) = ranks(Layout())
    assert again.adamw.digest() != whole[0]
    again.adamw.load([saved for *_, saved in found])
    assert (again.adamw.digest(), again.adamw.parameters_digest()) == whole


def test_the_norm_of_a_gradient_counts_every_element_once() -> None:
    """What several ranks hold has the same gradient on all of them."""
    whole = math.sqrt(sum(float(tensor.double().square().sum()) for tensor in wholes("first").values()))
    for layout in LAYOUTS:
        squares = [rank.adamw._norm(expected(rank, "first")) ** 2 for rank in ranks(layout)]
        assert math.sqrt(sum(squares)) == pytest.approx(whole, rel=1e-12)


def test_types_that_were_rounded_are_told() -> None:
    memory = FlatParameters(CONFIG, cut_of(Layout(), 0), torch.float64, CPU, trainable=False)
    groups = silent()
    wide = ShardedAdamW("actor", memory.slice(groups.dp), groups, OptimizerConfig(lr=0.1))
    assert not wide.load(SAVED[Layout(pp=2)])
