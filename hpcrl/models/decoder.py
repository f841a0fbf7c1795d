"""Prompts and single tokens through a model with a cache. Knows slots and positions; nothing of queues or sampling.

Shapes: T packed prompt tokens, N rows, E hidden size, V this rank's tokens of the vocabulary.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from hpcrl.data.slots import LEAST_ROWS, Move
from hpcrl.models.attention import attention
from hpcrl.models.kv_cache import KVCache
from hpcrl.models.layers import Block
from hpcrl.models.packing import Packing
from hpcrl.models.paged_cache import PagedCache
from hpcrl.models.products import packs
from hpcrl.models.transfers import sent
from hpcrl.models.transformer import Transformer

LENGTHS_FROM = 256
"""Recorded steps read lengths that are powers of two from this one on."""


class Paged(NamedTuple):
    """For a cache in blocks."""

    lengths: Sequence[int]
    """The most tokens of the longest rows that can be side by side."""
    attend: Callable[..., Any]
    """`flash_attn_with_kvcache`."""


class Decoder:
    """Owns the cache of one generation, of a stage's blocks. Row i of every decode lives in slot i.

    Stages but the first are given the rows of the stage before, as many as `prefill_rows` or `decode_rows` say; those
    but the last give hidden rows and no logits.
    """

    def __init__(
        self,
        model: Transformer,
        slots: int,
        longest: int,
        head_EV: Tensor | None = None,
        *,
        paged: Paged | None = None,
    ) -> None:
        """Without `paged` each slot has room for the longest row."""
        self._model = model
        self._longest = longest
        self._blocks = cast(list[Block], list(model.blocks))
        self.slots = slots = max(slots, LEAST_ROWS)
        _, *heads = self._blocks[0].heads
        windows = [block.window if block.window < longest else 0 for block in self._blocks]
        place, softcap = (model.dtype, model.device), model.config.attention_softcap
        self._paged = paged is not None
        self._caches: dict[int, KVCache | PagedCache] = {}
        for window in dict.fromkeys(windows):
            size = (windows.count(window), heads, slots)
            if paged is None:
                self._caches[window] = KVCache(*size, longest, *place, window, softcap)
            else:
                self._caches[window] = PagedCache(*size, paged.lengths, *place, paged.attend, window, softcap)
        self._homes = [(window, windows[:number].count(window)) for number, window in enumerate(windows)]
        """The cache of each block, and its number there."""
        self._slots = torch.arange(slots, device=model.device)
        self._head_EV = head_of(model) if head_EV is None else head_EV

    @property
    def gives_logits(self) -> bool:
        return self._model.cut.is_last

    @staticmethod
    def prefill_rows(prompts: Sequence[np.ndarray]) -> int:
        return sum(len(text) for text in distinct(prompts)[0])

    @staticmethod
    def decode_rows(count: int) -> int:
        return max(count, LEAST_ROWS)

    def rounded_length(self, longest: int) -> int:
        """What `decode` may be told instead of `longest`, to be told few different numbers."""
        if self._paged:
            return self._longest
        return min(self._longest, max(LENGTHS_FROM, 1 << (longest - 1).bit_length()))

    def prefill(self, prompts: Sequence[np.ndarray], first_slot: int, given_TE: Tensor | None = None) -> Tensor:
        """Cache these prompts in the slots from `first_slot` on; logits [N, V] of their next tokens, or rows [T, E].

        Equal prompts go through the model once.
        """
        texts, text_of_row = distinct(prompts)
        packing = Packing.of([len(text) for text in texts], self._model.device)
        if given_TE is None:
            tokens = sent(np.concatenate(texts), self._model.device)
            given_TE = tokens if packing.order is None else tokens[packing.order]
        copies = {window: self._copies(packing, text_of_row, first_slot, it) for window, it in self._caches.items()}
        x = self._model.embedded(given_TE, packing.positions)
        turns = self._model.turns(packing.positions)
        for block, (window, number) in zip(self._blocks, self._homes, strict=True):
            self._model.awaited(block.layer)
            q, k, v = block.project(x, turns, packing.tokens)
            source, target = copies[window]
            self._caches[window].write(number, target, k[source], v[source])
            attended = attention(q, k, v, packing, block.window, block.softcap)
            del q, k, v  # they would outlive this block's second half
            x = block.finish(x, attended)
        if not self.gives_logits:
            return x
        last, x = packing.last_rows(), self._model.ranks.gather(x, packing.tokens)
        rows = sent(text_of_row, self._model.device)
        return self._logits(x[last if packing.inverse is None else packing.inverse[last]])[rows]

    def decode(self, tokens_N: Tensor, positions_N: Tensor, longest: int, given_NE: Tensor | None = None) -> Tensor:
        """Cache one more token of the slots 0 … N - 1, at these positions, with which none has more than `longest`;
        logits [N, V] of the tokens after them, or rows, of which there are LEAST_ROWS at least."""
        rows = tokens_N.shape[0]
        tokens, positions = _at_least(tokens_N), _at_least(positions_N)
        slots = self._slots[: tokens.shape[0]]
        steps = {window: cache.step(slots, positions, longest) for window, cache in self._caches.items()}
        x = self._model.embedded(tokens if given_NE is None else given_NE, positions)
        turns = self._model.turns(positions)
        for block, (window, number) in zip(self._blocks, self._homes, strict=True):
            self._model.awaited(block.layer)
            q, k, v = block.project(x, turns, tokens.shape[0])
            step: Any = steps[window]
            x = block.finish(x, self._caches[window].through(number, step, q, k, v))
        if not self.gives_logits:
            return x
        return self._logits(self._model.ranks.gather(x, tokens.shape[0]))[:rows]

    def seat(self, first: int, lengths: Sequence[int]) -> None:
        """Rows that will have at most so many tokens enter the slots from `first` on."""
        for cache in self._caches.values():
            cache.seat(first, lengths)

    def leave(self, moves: Sequence[Move], active: int) -> None:
        """The rows of slots from `active` on go, or go on in others: sources and targets are disjoint."""
        for cache in self._caches.values():
            cache.leave(moves, active)

    def copy(self, moves: Sequence[Move]) -> None:
        """Have the targets begin with what the sources hold."""
        for cache in self._caches.values():
            cache.copy(moves)

    def _logits(self, x_NE: Tensor) -> Tensor:
        assert self._head_EV is not None
        rows = x_NE.shape[0]
        last = self._model.last
        return last.capped_(self._model.ranks.products.of(last.norm(_at_least(x_NE)), self._head_EV)[:rows])

    def _copies(
        self, packing: Packing, text_of_row: Sequence[int], first_slot: int, cache: KVCache | PagedCache
    ) -> tuple[Tensor, Tensor]:
        """Which packed (sorted) token goes to which place of the cache; a text of several rows goes to several. Of a
        text that is longer than the cache, its end."""
        device = self._model.device
        lengths = np.asarray(packing.lengths)
        begins, sizes = (np.cumsum(lengths) - lengths)[text_of_row], lengths[text_of_row]
        kept = np.minimum(sizes, cache.capacity)
        within = np.arange(kept.sum()) - (np.cumsum(kept) - sizes).repeat(kept)
        source = sent(begins.repeat(kept) + within, device)
        slots = (first_slot + np.arange(len(sizes))).repeat(kept)
        target = cache.places(sent(slots, device), sent(within, device))
        return source if packing.inverse is None else packing.inverse[source], target


def distinct(prompts: Sequence[np.ndarray]) -> tuple[list[np.ndarray], list[int]]:
    """The different prompts, and for each prompt the index of its like."""
    places: dict[bytes, int] = {}
    text_of_row = [places.setdefault(np.asarray(prompt, np.int64).tobytes(), len(places)) for prompt in prompts]
    texts = [np.frombuffer(text, np.int64) for text in places]
    return texts, text_of_row


def head_of(model: Transformer) -> Tensor | None:
    """[E, V], on a CPU as a copy, packed or plain: few rows multiply faster so, and to the same bits however few they
    are. None where the model's last stage is elsewhere."""
    if model.output is None:
        return None
    transposed = model.last.matrix().detach().t()
    model.ranks.products.prepare(transposed)
    return transposed.contiguous() if transposed.device.type == "cpu" and not packs(transposed) else transposed


def _at_least(rows: Tensor) -> Tensor:
    """Zero rows appended up to LEAST_ROWS."""
    missing = LEAST_ROWS - rows.shape[0]
    return pad(rows, (0, 0) * (rows.dim() - 1) + (0, missing)) if missing > 0 else rows
