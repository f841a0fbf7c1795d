"""Prompts and single tokens through a model with a cache. Knows slots and positions; nothing of queues or sampling.

Shapes: T packed prompt tokens, N rows, E hidden size, V vocabulary.
"""

from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from hpcrl.data.slots import Move
from hpcrl.models.attention import attention
from hpcrl.models.kv_cache import KVCache, rounded
from hpcrl.models.layers import Block
from hpcrl.models.packing import Packing, counting
from hpcrl.models.transformer import Transformer

LEAST_ROWS = 4
"""Fewer rows than this are padded: on a CPU the bits of a row then do not depend on how many others there are."""


class Decoder:
    """Owns the cache of one generation. Row i of every decode lives in slot i."""

    def __init__(self, model: Transformer, slots: int, longest: int) -> None:
        self._model = model
        self._blocks = cast(list[Block], list(model.blocks))
        slots = max(slots, LEAST_ROWS)
        self._cache = KVCache(model.config, slots, longest, model.dtype, model.device)
        self._begins = torch.arange(slots, device=model.device) * self._cache.capacity
        self._columns = torch.arange(self._cache.capacity, device=model.device)
        self._head_EV = _small_batch_order(model.output.matrix().detach())

    def prefill(self, prompts: Sequence[np.ndarray], first_slot: int) -> Tensor:
        """Cache these prompts in the slots from `first_slot` on; logits [N, V] of their next tokens.

        Equal prompts go through the model once.
        """
        texts, indices = distinct(prompts)
        text_of_row = torch.tensor(indices, device=self._model.device)
        packing = Packing.of([len(text) for text in texts], self._model.device)
        tokens = torch.from_numpy(np.concatenate(texts)).to(self._model.device)
        source, target = self._copies(packing, text_of_row, first_slot)
        x = self._model.embedding(tokens if packing.order is None else tokens[packing.order])
        turns = self._model.rotation(packing.positions)
        for number, block in enumerate(self._blocks):
            q, k, v = block.project(x, turns)
            self._cache.write(number, target, k[source], v[source])
            x = block.finish(x, attention(q, k, v, packing))
        last = packing.last_rows()
        return self._logits(x[last if packing.inverse is None else packing.inverse[last]])[text_of_row]

    def decode(self, tokens_N: Tensor, positions_N: Tensor) -> Tensor:
        """Cache one more token of the slots 0 … N - 1, at these positions; logits [N, V] of the tokens after them."""
        rows = tokens_N.shape[0]
        tokens, positions = _at_least(tokens_N), _at_least(positions_N)
        at = self._begins[: tokens.shape[0]] + positions
        length = rounded(int(positions.max()) + 1)
        unseen = self._columns[:length] > positions[:, None]
        mask = torch.zeros(unseen.shape, dtype=self._model.dtype, device=unseen.device)
        mask = mask.masked_fill_(unseen, -torch.inf)[:, None, None, :]
        x = self._model.embedding(tokens)
        turns = self._model.rotation(positions)
        for number, block in enumerate(self._blocks):
            q, k, v = block.project(x, turns)
            self._cache.write(number, at, k, v)
            x = block.finish(x, self._cache.attend(number, q, mask))
        return self._logits(x)[:rows]

    def move(self, moves: Sequence[Move]) -> None:
        self._cache.move(moves)

    def _logits(self, x_NE: Tensor) -> Tensor:
        rows = x_NE.shape[0]
        return (self._model.output.norm(_at_least(x_NE)) @ self._head_EV)[:rows]

    def _copies(self, packing: Packing, text_of_row: Tensor, first_slot: int) -> tuple[Tensor, Tensor]:
        """Which packed (sorted) token goes to which place of the cache; a text of several rows goes to several."""
        lengths = torch.tensor(packing.lengths, device=text_of_row.device)
        begins = (lengths.cumsum(0) - lengths)[text_of_row]
        sizes = lengths[text_of_row]
        within = counting(sizes)
        source = begins.repeat_interleave(sizes) + within
        slots = self._begins[first_slot : first_slot + sizes.shape[0]]
        target = slots.repeat_interleave(sizes) + within
        return source if packing.inverse is None else packing.inverse[source], target


def distinct(prompts: Sequence[np.ndarray]) -> tuple[list[np.ndarray], list[int]]:
    """The different prompts, and for each prompt the index of its like."""
    places: dict[bytes, int] = {}
    text_of_row = [places.setdefault(np.asarray(prompt, np.int64).tobytes(), len(places)) for prompt in prompts]
    texts = [np.frombuffer(text, np.int64) for text in places]
    return texts, text_of_row


def _small_batch_order(head_VE: Tensor) -> Tensor:
    """[E, V], on a CPU as a copy: few rows multiply faster so, and to the same bits however few they are."""
    transposed = head_VE.t()
    return transposed.contiguous() if transposed.device.type == "cpu" else transposed


def _at_least(rows: Tensor) -> Tensor:
    """Zero rows appended up to LEAST_ROWS."""
    missing = LEAST_ROWS - rows.shape[0]
    return pad(rows, (0, 0) * (rows.dim() - 1) + (0, missing)) if missing > 0 else rows
