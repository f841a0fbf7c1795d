"""How many floating-point operations a model's mathematics needs, from its shapes and the lengths of texts.

Products of matrices count, two operations for each multiplication; norms, softmax and sampling do not (as in appendix B
of arXiv 2204.02311). Attention counts the pairs of tokens of which one sees the other: half a square, or a window's
band, whatever a kernel computes besides. What is computed again to save memory does not count, nor does padding.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from hpcrl.families.adapters import adapted_targets
from hpcrl.families.config import DecoderConfig
from hpcrl.families.foreign import ForeignConfig
from hpcrl.families.reader import family_of
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


def flops_of(config: DecoderConfig, cut: Cut = WHOLE) -> ModelFlops | None:
    """None of a model that transformers computes: its tensors do not say what is multiplied by what."""
    if isinstance(config, ForeignConfig):
        return None
    blocks = [layer for layer in stages(config, cut.pp)[cut.stage] if 1 <= layer <= config.blocks]
    products = [product for layer in blocks for product in _block(config, layer)]
    if cut.is_last:
        products.append(_head(config))
    last = blocks[-1] if cut.is_last else 0
    backward = _backward(products, trained=config.adapters is None)
    return ModelFlops(_pass(_forward(products), last, cut.tp), _pass(backward, last, cut.tp))


class _Product(NamedTuple):
    """A product with a matrix, of one token; or attention, of a pair of tokens."""

    layer: int
    size: int
    """Multiplications."""
    inputs: int = 0
    """Multiplications with the first matrices of its adapters."""
    outputs: int = 0
    """The same with their second ones."""
    of_pairs: bool = False
    of_labels: bool = False
    window: int = 0
    ends: bool = False
    """Whether it comes after its block's attention."""
    trained: bool = False
    """Whether its matrix is trained where other matrices have adapters."""


_Counted = list[tuple[_Product, float]]


def _block(config: DecoderConfig, layer: int) -> Iterator[_Product]:
    """In the order of a forward pass."""
    hidden, query = config.hidden_size, config.query_size
    adapters = _adapters(config)
    prefix = f"layers.{layer}."
    yield _Product(layer, hidden * (query + 2 * config.kv_size), *adapters.get(f"{prefix}qkv", (0, 0)))
    yield _Product(layer, 2 * query, of_pairs=True, window=config.window(layer))
    yield _Product(layer, query * hidden, *adapters.get(f"{prefix}output", (0, 0)), ends=True)
    if (experts := config.experts_of(layer)) is not None:
        yield _Product(layer, hidden * experts.count, ends=True)
        yield _Product(layer, experts.per_token * 3 * hidden * experts.inner_size, ends=True)
        return
    up = "gate_up" if config.gated else "up"
    width = config.intermediate_size * (2 if config.gated else 1)
    yield _Product(layer, hidden * width, *adapters.get(f"{prefix}{up}", (0, 0)), ends=True)
    yield _Product(layer, config.intermediate_size * hidden, *adapters.get(f"{prefix}down", (0, 0)), ends=True)


def _head(config: DecoderConfig) -> _Product:
    """Of one label. A head for values or rewards is trained with adapters."""
    size = config.hidden_size * config.head_outputs
    return _Product(config.blocks + 1, size, of_labels=True, trained=config.head != "vocabulary")


def _adapters(config: DecoderConfig) -> dict[str, tuple[int, int]]:
    """Name of a matrix → multiplications of a token with the first, and with the second matrices of its adapters."""
    if config.adapters is None:
        return {}
    found: dict[str, tuple[int, int]] = {}
    for target in adapted_targets(config, family_of(config.base)):
        inputs, outputs = found.get(target.matrix.name, (0, 0))
        rank = config.adapters.rank
        found[target.matrix.name] = inputs + rank * target.inputs, outputs + rank * target.outputs
    return found


def _forward(products: Iterable[_Product]) -> _Counted:
    return [(it, 2.0 * (it.size + it.inputs + it.outputs)) for it in products]


def _backward(products: Iterable[_Product], *, trained: bool) -> _Counted:
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
