"""The packed decoder-only transformer of one shard: numbers in, numbers out. Knows no files, roles or losses.

Shapes: T rows (tokens) of a packed batch, t those of this rank, R selected rows, E hidden size. The first stage is
given tokens [T], the others the hidden rows [t, E] of the stage before.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hpcrl.families.config import DecoderConfig, RotaryConfig
from hpcrl.families.reader import family_of
from hpcrl.models.layers import Block, Embedding, ExpertMLP
from hpcrl.models.lessons import Lessons
from hpcrl.models.output import Output, Predictions
from hpcrl.models.packing import Packing
from hpcrl.models.rotary import Turns, frequencies, rotation
from hpcrl.models.tensor_parallel import TensorParallel, alone
from hpcrl.models.vocabulary import Vocabulary
from hpcrl.parallel.group import Group
from hpcrl.placement.shards import WHOLE, Cut, stages
from hpcrl.plugins import load


class Transformer(nn.Module):
    """A flat list of layers over named parameters, which are given: it neither makes nor moves them.

    It has the layers of its cut's stage: the first stage the embedding, the last one the output module. Those it has
    together with the ranks of `tensor`, which a cut for several of them needs.
    `views` has each of their parameters by name, under the names that the model's family declares.
    """

    def __init__(
        self,
        config: DecoderConfig,
        views: Mapping[str, nn.Parameter],
        cut: Cut = WHOLE,
        tensor: Group | None = None,
        device: torch.device | None = None,
    ) -> None:
        """`device`: where it will compute, if its parameters are not there yet."""
        super().__init__()
        self.config = config
        self.cut = cut
        first = next(iter(views.values()))
        self.dtype, self.device = first.dtype, device or first.device
        """What it computes in, and where."""
        self.ranks = alone(self.device) if tensor is None else TensorParallel(tensor)
        assert self.ranks.size == cut.tp, (self.ranks.size, cut)
        self.vocabulary = Vocabulary(config.vocabulary_size, self.ranks)
        self.embedding = Embedding(config, views, self.vocabulary) if cut.is_first else None
        block, layers = load(family_of(config).block), stages(config, cut.pp)[cut.stage]
        self.blocks = nn.ModuleList(
            block(config, layer, views, self.ranks) for layer in layers if 1 <= layer <= config.blocks
        )
        self.output = Output(config, views, self.vocabulary) if cut.is_last else None
        self.lessons: Lessons | None = None
        """Of the routers of this stage, while they have one."""
        self.recompute = False
        """Whether of each block only what it was given is kept for the backward pass, which computes the rest again."""
        self.awaited: Callable[[int], None] = _at_once
        """Called with a layer's number before its parameters are read, by whoever reads them."""
        self._frequencies: dict[RotaryConfig, Tensor] = {}
        if config.positions == "rotary":
            used = (config.rotary, config.window_rotary or config.rotary)
            self._frequencies = {each: frequencies(each, config.head_dim).to(self.device) for each in used}

    def turns(self, positions_T: Tensor) -> Turns:
        """What queries and keys at these positions are multiplied by."""
        made = [rotation(positions_T, each, self.dtype, rotary.scale) for rotary, each in self._frequencies.items()]
        return Turns(made[0], made[-1]) if made else Turns(None, None)

    def forward(
        self,
        given_T: Tensor,
        packing: Packing,
        rows: Tensor,
        labels_R: Tensor,
        *,
        temperature: float = 1.0,
        with_entropy: bool = False,
    ) -> Predictions:
        """What the model says of a label at each of these rows (caller's order). Of the last stage only."""
        return self.last(self.decoded(given_T, packing, rows), labels_R, temperature, with_entropy)

    def hidden(self, given_T: Tensor, packing: Packing, rows: Tensor | None = None) -> Tensor:
        """Hidden states after the final norm, [T, E], or [R, E] of the given rows only (caller's order)."""
        count = packing.tokens if rows is None else rows.shape[0]
        return self.ranks.gather(self.last.norm(self.decoded(given_T, packing, rows)), count)

    @property
    def last(self) -> Output:
        """The output module, of the last stage."""
        assert self.output is not None, self.cut
        if self.config.shares_embedding:
            self.awaited(0)
        self.awaited(self.config.blocks + 1)
        return self.output

    def embedded(self, given: Tensor, positions: Tensor) -> Tensor:
        """What the first block is given: vectors of tokens, or what the stage before has made of them."""
        if self.embedding is None:
            return given
        self.awaited(0)
        return self.embedding(given, positions)

    def entrance(self, rows: int) -> Tensor:
        """Room for this rank's of so many rows of the stage before."""
        return torch.empty(self.ranks.part(rows), self.config.hidden_size, dtype=self.dtype, device=self.device)

    def teach(self, lessons: Lessons | None) -> None:
        """Have the routers of this stage notice each row and learn by this; None: no longer."""
        self.lessons = lessons
        for block in cast(list[Block], list(self.blocks)):
            if isinstance(block.mlp, ExpertMLP):
                block.mlp.experts.lesson = None if lessons is None else lessons.of(block.layer)

    def decoded(self, given_T: Tensor, packing: Packing, rows: Tensor | None = None) -> Tensor:
        """This rank's rows of what the last block gives: to the next stage, rows in sorted order. On the last stage
        only the given rows (caller's order) go on after its attention, or after it all where routers are taught."""
        if self.embedding is not None and packing.order is not None:
            given_T = given_T[packing.order]
        x = self.embedded(given_T, packing.positions)
        turns = self.turns(packing.positions)
        *blocks, last = cast(list[Block], list(self.blocks))
        for block in blocks:
            self.awaited(block.layer)
            x = self._through(block, x, turns, packing)
        self.awaited(last.layer)
        picked = picked_rows(packing, rows) if self.cut.is_last else None
        if picked is not None and rows is not None and self.lessons is not None and not self.lessons.teaches:
            self.lessons.labels_only()
        if picked is None or self.lessons is None or not self.lessons.teaches:
            return self._through(last, x, turns, packing, picked)
        all_rows = self.ranks.gather(self._through(last, x, turns, packing), packing.tokens)
        return all_rows.index_select(0, self.ranks.own(picked))

    def _through(self, block: Block, x: Tensor, turns: Turns, packing: Packing, rows: Tensor | None = None) -> Tensor:
        """What a block gives. Its activations are kept, or made again in the backward pass, with the same bits (Chen et
        al. 2016, arXiv 1604.06174)."""
        if not (self.recompute and torch.is_grad_enabled()):
            given: Tensor = block(x, turns, packing, rows)
            return given
        again: AbstractContextManager[None] = nullcontext() if self.lessons is None else self.lessons.again()
        kept: Tensor = checkpoint(
            block,
            x,
            turns,
            packing,
            rows,
            use_reentrant=False,
            preserve_rng_state=False,
            determinism_check="none",
            context_fn=lambda: (nullcontext(), again),
        )
        return kept


def _at_once(_layer: int) -> None:
    """Parameters that never leave are there."""


def picked_rows(packing: Packing, rows: Tensor | None) -> Tensor | None:
    """Rows of the caller's order as rows of the sorted order; None where all are wanted and nothing was moved."""
    if packing.inverse is None:
        return rows
    return packing.inverse if rows is None else packing.inverse[rows]
