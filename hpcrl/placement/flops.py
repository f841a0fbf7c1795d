"""How many floating-point operations a model's mathematics needs, from its shapes and the lengths of texts.

Products of matrices count, two operations for each multiplication; norms, softmax and sampling do not (as in appendix B
of arXiv 2204.02311). Attention counts the pairs of tokens of which one sees the other: half a square, or a window's
band, whatever a kernel computes besides. What is computed again to save memory does not count, nor does padding.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from hpcrl.families.config import DecoderConfig
from hpcrl.families.foreign import ForeignConfig
from hpcrl.placement.foreign_products import foreign_products
from hpcrl.placement.products import Product, head_product, own_products
from hpcrl.placement.shards import WHOLE, Cut, stages


class Text(NamedTuple):
    """Tokens that go through a model, after `before` tokens that they see too and that have gone through it already."""

    length: int
    before: int = 0

    def pairs(self, window: int = 0) -> int:
        """How many tokens its tokens see, themselves included; each at most `window` (0: all before it)."""
        first, last = self.before + 1, self.before + self.length
        if not window or last <= window:
            return (first + last) * self.length // 2
        growing = max(0, window - first)
        return (first + window - 1) * growing // 2 + window * (self.length - growing)


@dataclass(frozen=True)
class _Pass:
    """Operations of a forward or a backward pass."""

    row: float
    """Of a token that goes through all blocks."""
    end: float
    """Of these, what the last block does after its attention."""
    label: float
    """Of a token of which the head is asked."""
    pairs: tuple[tuple[int, float], ...]
    """(window, operations of a pair of tokens over all blocks that have it)."""

    def of(self, texts: Iterable[Text], labels: int, ends: int | None) -> float:
        found = self.label * labels
        rows = 0
        for text in texts:
            rows += text.length
            found += sum(each * text.pairs(window) for window, each in self.pairs)
        return found + self.row * rows - (0.0 if ends is None else self.end * (rows - ends))


@dataclass(frozen=True)
class ModelFlops:
    """Of what one rank has of a model: of its stage's layers, and its share of a tensor-parallel group's."""

    forward_pass: _Pass
    backward_pass: _Pass
    """With the gradients of all that is trained: of adapters alone, where the model has some."""

    def forward(self, texts: Iterable[Text], labels: int, *, picks: bool = True) -> float:
        """Operations of a forward pass over texts of which `labels` tokens are predicted. With `picks` the last block's
        rows that predict nothing end after its attention."""
        return self.forward_pass.of(texts, labels, labels if picks else None)

    def backward(self, texts: Iterable[Text], labels: int, *, picks: bool = True) -> float:
        """Operations of the backward pass after that."""
        return self.backward_pass.of(texts, labels, labels if picks else None)

    def prefill(self, prompts: Iterable[int]) -> float:
        """Operations of reading prompts of these lengths, each of which gives logits after its last token."""
        texts = [Text(length) for length in prompts]
        return self.forward(texts, len(texts), picks=False)

    def decode(self, rows: Iterable[tuple[int, int]]) -> float:
        """Operations of responses of so many tokens after prompts of so many, (prompt, response): the first token comes
        of the prompt, and the last one goes through no model."""
        texts = [Text(response - 1, prompt) for prompt, response in rows if response > 1]
        return self.forward(texts, sum(text.length for text in texts), picks=False)


@lru_cache(maxsize=1024)
def flops_of(config: DecoderConfig, cut: Cut = WHOLE) -> ModelFlops | None:
    """None of a model that transformers computes, unless it is made as decoders are that are known here."""
    blocks = [layer for layer in stages(config, cut.pp)[cut.stage] if 1 <= layer <= config.blocks]
    products = foreign_products(config, blocks) if isinstance(config, ForeignConfig) else own_products(config, blocks)
    if products is None:
        return None
    if cut.is_last:
        products.append(head_product(config))
    last = blocks[-1] if cut.is_last else 0
    backward = _backward(products, trained=config.adapters is None)
    return ModelFlops(_pass(_forward(products), last, cut.tp), _pass(backward, last, cut.tp))


_Counted = list[tuple[Product, float]]


def _forward(products: Iterable[Product]) -> _Counted:
    return [(it, 2.0 * (it.size + it.inputs + it.outputs)) for it in products]


def _backward(products: Iterable[Product], *, trained: bool) -> _Counted:
    """Gradients of matrices that are `trained`, all or adapters alone; and of rows, from the first product on behind
    which something is: embeddings are where all is."""
    found, reached = [], trained
    for it in products:
        count = it.inputs + 2 * it.outputs + it.size * ((trained and not it.of_pairs) or it.trained)
        if reached:
            count += it.inputs + it.size * (2 if it.of_pairs else 1)
        reached = reached or bool(it.outputs)
        found.append((it, 2.0 * count))
    return found


def _pass(counted: _Counted, last: int, tp: int) -> _Pass:
    """One rank's share. Of the block `last` what comes after attention is known by itself."""
    pairs: Counter[int] = Counter()
    for product, each in counted:
        if product.of_pairs:
            pairs[product.window] += round(each)
    return _Pass(
        row=sum(each for product, each in counted if not (product.of_pairs or product.of_labels)) / tp,
        end=sum(each for product, each in counted if product.ends and product.layer == last) / tp,
        label=sum(each for product, each in counted if product.of_labels) / tp,
        pairs=tuple((window, each / tp) for window, each in pairs.items()),
    )
