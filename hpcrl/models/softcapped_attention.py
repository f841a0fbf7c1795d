"""Attention whose scores are softcapped before the mask, which no kernel of PyTorch does: block by block, by products.

Scores are at least fp32 and exist for a block only; backward computes them again, from the log of each query's sum of
exponentials (as in flash attention, arXiv 2205.14135).
Shapes: T rows (tokens), H query heads, K key/value heads, G = H/K queries of one key head, D dimensions of a head; of
n texts at once l queries, L keys in all and s of them that are seen; N slots of a cache.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from hpcrl.data.score_blocks import Block, blocks, most_scores, texts_at_once
from hpcrl.models.packing import Packing
from hpcrl.models.softcap import capped_, slope_

LEAST_QUERIES = 25
"""Numbers in the queries of a key head that read a cache, G·D, of which 16 tokens are read or more. Matrices that take
fewer than 16 · 25 multiplications PyTorch multiplies by other code on a CPU, to other bits."""


def softcapped(
    q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, packing: Packing, window: int, softcap: float, most: int | None = None
) -> Tensor:
    """What each token gathers, [T, H·D], as `hpcrl.models.attention.attention` says it; `most` scores at once."""
    most = most_scores(q_THD.device.type) if most is None else most
    out_THD: Tensor = _Softcapped.apply(q_THD, k_TKD, v_TKD, packing, window, softcap, most)
    return out_THD.flatten(1)


def attend_cached(q_NKGD: Tensor, keys_NKLD: Tensor, values_NKLD: Tensor, mask_N11L: Tensor, softcap: float) -> Tensor:
    """What one new token of each slot gathers, [N, K, G, D]; the mask is added to softcapped scores.

    Where heads are few and small, queries are padded: on a CPU the bits of a slot then do not depend on L.
    """
    (rows, keys, length, dimensions), queries = keys_NKLD.shape, q_NKGD.shape[2]
    q_NKGD = pad(q_NKGD, (0, 0, 0, max(0, -(-LEAST_QUERIES // dimensions) - queries)))
    step = max(1, most_scores(q_NKGD.device.type) // (2 * keys * length * dimensions))
    parts = []
    for begin in range(0, rows, step):
        q, k, v = (_wide(heads[begin : begin + step]) for heads in (q_NKGD, keys_NKLD, values_NKLD))
        scores = capped_((q * dimensions**-0.5) @ k.mT, softcap)
        parts.append(scores.add_(mask_N11L[begin : begin + step]).softmax(-1) @ v)
    return torch.cat(parts)[:, :, :queries].to(q_NKGD.dtype)


class _Softcapped(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, packing: Packing, window: int, softcap: float, most: int
    ) -> Tensor:
        out, logs_TH = torch.empty_like(q), q.new_empty(q.shape[:2], dtype=_wide_type(q))
        for part in _parts(packing, q, k, most):
            queries, keys, values = part.queries(q), part.keys(k), part.keys(v)
            of_part, logs = torch.empty_like(queries), queries.new_empty(queries.shape[:-1])
            for block in part.blocks(window, most):
                scores = capped_(queries[:, :, :, block.queries].flatten(2, 3) @ keys[:, :, block.keys].mT, softcap)
                part.unseen(block, window, scores, -torch.inf)
                largest = scores.amax(-1, keepdim=True)
                total = scores.sub_(largest).exp_().sum(-1, keepdim=True)
                made = (scores @ values[:, :, block.keys]).div_(total)
                of_part[:, :, :, block.queries] = made.unflatten(2, (part.shared, -1))
                logs[:, :, :, block.queries] = largest.add_(total.log_())[..., 0].unflatten(2, (part.shared, -1))
            part.put(out, of_part)
            part.put(logs_TH, logs)
        ctx.save_for_backward(q, k, v, out, logs_TH)
        ctx.packing, ctx.window, ctx.softcap, ctx.most = packing, window, softcap, most
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, logs_TH = ctx.saved_tensors
        along_TH = (_wide(grad) * out).sum(-1)
        grad_q, grad_k, grad_v = torch.empty_like(q), *(torch.zeros_like(k, dtype=logs_TH.dtype) for _ in range(2))
        for part in _parts(ctx.packing, q, k, ctx.most):
            queries, keys, values, grads = part.queries(q), part.keys(k), part.keys(v), part.rows(grad)
            logs, along = part.rows(logs_TH), part.rows(along_TH)
            of_queries, of_keys, of_values = (torch.zeros_like(heads) for heads in (queries, keys, values))
            for block in part.blocks(ctx.window, ctx.most):
                seen = block.keys
                some, of_some, total, by = (
                    rows[:, :, :, block.queries].flatten(2, 3) for rows in (queries, grads, logs, along)
                )
                scores = capped_(some @ keys[:, :, seen].mT, ctx.softcap)
                weights = (scores - total[..., None]).exp_()
                part.unseen(block, ctx.window, weights, 0.0)
                of_values[:, :, seen] += weights.mT @ of_some
                slopes = (of_some @ values[:, :, seen].mT).sub_(by[..., None]).mul_(weights)
                slopes.mul_(slope_(scores, ctx.softcap))
                of_queries[:, :, :, block.queries] = (slopes @ keys[:, :, seen]).unflatten(2, (part.shared, -1))
                of_keys[:, :, seen] += slopes.mT @ some
            part.put(grad_q, of_queries.mul_(part.scale))
            part.add(grad_k, of_keys)
            part.add(grad_v, of_values)
        return grad_q, grad_k.to(k.dtype), grad_v.to(v.dtype), None, None, None, None


class _Part(NamedTuple):
    """Texts of one length after prefixes of one length, as far as they are taken at once; n of them."""

    first: int
    """Their first row, in the sorted order."""
    texts: int
    length: int
    before: int
    heads: tuple[int, int, int]
    """H, K and D."""
    seen: Tensor | None
    """The rows of their keys [n·L]; None where these are their own."""

    @property
    def shared(self) -> int:
        """Queries of one key head."""
        return self.heads[0] // self.heads[1]

    @property
    def scale(self) -> float:
        """What every product of a query with a key is multiplied by."""
        return float(self.heads[2] ** -0.5)

    @property
    def _own(self) -> slice:
        return slice(self.first, self.first + self.texts * self.length)

    def blocks(self, window: int, most: int) -> Iterator[Block]:
        return blocks(self.length, self.before, window, self.texts * self.heads[0], most)

    def rows(self, of_TH: Tensor) -> Tensor:
        """Theirs of what is [T, H, …]: [n, K, G, length, …], at least fp32."""
        rows = of_TH[self._own].unflatten(1, (-1, self.shared)).unflatten(0, (self.texts, -1))
        return _wide(rows.movedim(1, 3))

    def queries(self, q_THD: Tensor) -> Tensor:
        """The same of queries, multiplied by the scale."""
        return self.rows(q_THD) * self.scale

    def keys(self, of_TKD: Tensor) -> Tensor:
        """What they see of keys or values, [n, K, L, D], at least fp32."""
        rows = of_TKD[self._own] if self.seen is None else of_TKD.index_select(0, self.seen)
        return _wide(rows.unflatten(0, (self.texts, -1)).transpose(1, 2)).contiguous()

    def put(self, into_TH: Tensor, rows: Tensor) -> None:
        """Write what `rows` gives back to its place."""
        into_TH[self._own] = rows.movedim(3, 1).flatten(2, 3).flatten(0, 1).to(into_TH.dtype)

    def add(self, into_TKD: Tensor, keys: Tensor) -> None:
        """Add what is [n, K, L, D] to the rows it was seen of; one may be several texts'."""
        rows = keys.transpose(1, 2).flatten(0, 1)
        if self.seen is None:
            into_TKD[self._own] += rows
        else:
            into_TKD.index_add_(0, self.seen, rows)

    def unseen(self, block: Block, window: int, scores: Tensor, value: float) -> None:
        """Put this where a key of the block, [n, K, G·l, s], comes after a query, or before its window."""
        queries = torch.arange(block.queries.start, block.queries.stop, device=scores.device)[:, None] + self.before
        keys = torch.arange(block.keys.start, block.keys.stop, device=scores.device)
        mask = keys > queries
        if window:
            mask |= keys <= queries - window
        scores.unflatten(2, (self.shared, -1)).masked_fill_(mask, value)


def _parts(packing: Packing, q_THD: Tensor, k_TKD: Tensor, most: int) -> Iterator[_Part]:
    heads, begin = (q_THD.shape[1], *k_TKD.shape[1:]), 0
    for group in packing.groups:
        step, longest = texts_at_once(group.length, group.before, heads, most), group.before + group.length
        for text in range(0, group.texts, step):
            count = min(step, group.texts - text)
            rows = slice(begin + text * longest, begin + (text + count) * longest)
            seen = packing.keys.rows[rows] if group.before else None
            yield _Part(group.first + text * group.length, count, group.length, group.before, heads, seen)
        begin += group.texts * longest


def _wide_type(numbers: Tensor) -> torch.dtype:
    return torch.promote_types(numbers.dtype, torch.float32)


def _wide(numbers: Tensor) -> Tensor:
    return numbers.to(_wide_type(numbers))
