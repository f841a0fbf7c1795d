"""The layers before the output module: embedding and blocks. Each holds views of the flat buffer, given by name.

Shapes: T rows of a packed batch, t those of this rank, E hidden size, H query heads of this rank, K its key/value
heads, D dimensions of a head. Alone, a rank has all rows and heads.
"""

from collections.abc import Mapping
from math import sqrt
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, layer_norm

from hpcrl.families.config import DecoderConfig
from hpcrl.models.activations import ACTIVATIONS, normalize, normalize_plus_one
from hpcrl.models.attention import attention
from hpcrl.models.experts import RoutedExperts
from hpcrl.models.packing import Packing
from hpcrl.models.rotary import Turns, rotate
from hpcrl.models.tensor_parallel import TensorParallel
from hpcrl.models.vocabulary import Vocabulary


class Embedding(nn.Module):
    """Token ids to vectors, to which learned positions add theirs.

    Every row is trained, also the padding token's, which no packed batch has beside texts.
    """

    def __init__(self, config: DecoderConfig, views: Mapping[str, nn.Parameter], vocabulary: Vocabulary) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.embedding = views["layers.0.embedding"]
        root = torch.tensor(sqrt(config.hidden_size), dtype=self.embedding.dtype)
        self.factor = float(root) if config.embedding_scaled else None
        """The root of the hidden size, rounded to the parameters' type."""
        self.positions = views.get("layers.0.positions")

    def forward(self, tokens_T: Tensor, positions_T: Tensor) -> Tensor:
        """This rank's rows."""
        x_tE = self.vocabulary.vectors(tokens_T, self.embedding)
        if self.factor is not None:
            x_tE = x_tE * self.factor
        if self.positions is None:
            return x_tE
        return x_tE + embedding(self.vocabulary.ranks.own(positions_T), self.positions)


class Norm(nn.Module):
    """RMS norm, by its weight or by one plus that, or LayerNorm where its parameter has a bias."""

    def __init__(self, config: DecoderConfig, name: str, views: Mapping[str, nn.Parameter]) -> None:
        super().__init__()
        self.eps = config.norm_eps
        self.normalize = normalize_plus_one if config.norm == "rms_plus_one" else normalize
        self.weight = views[name]
        self.bias = views.get(name + "_bias")

    def forward(self, x_TE: Tensor) -> Tensor:
        if self.bias is None:
            return self.normalize(x_TE, self.weight, self.eps)
        return layer_norm(x_TE, x_TE.shape[-1:], self.weight, self.bias, self.eps)


class MLP(nn.Module):
    """A block's second half: its norm, its neurons, and what they add to the rows."""

    def __init__(
        self, config: DecoderConfig, prefix: str, views: Mapping[str, nn.Parameter], ranks: TensorParallel
    ) -> None:
        super().__init__()
        self.ranks = ranks
        self.activate = ACTIVATIONS[config.activation]
        up = prefix + ("gate_up" if config.gated else "up")
        self.norm = Norm(config, prefix + "mlp_norm", views)
        self.up = views[up]
        self.up_bias = views.get(up + "_bias")
        self.down = views[prefix + "down"]
        self.down_bias = views.get(prefix + "down_bias")
        self.post_norm = Norm(config, prefix + "mlp_post_norm", views) if config.post_norms else None

    def forward(self, x_tE: Tensor, count: int) -> Tensor:
        """This rank's rows of `count`, with what the neurons add."""
        inner = self.activate(self.ranks.times(self.ranks.gather(self.norm(x_tE), count), self.up, self.up_bias))
        return _plus_product(self.ranks, x_tE, inner, self.down, self.down_bias, self.post_norm)


class ExpertMLP(nn.Module):
    """In the place of an MLP, where a router picks experts for each row."""

    def __init__(
        self, config: DecoderConfig, prefix: str, views: Mapping[str, nn.Parameter], ranks: TensorParallel
    ) -> None:
        super().__init__()
        assert config.experts is not None and config.activation == "swiglu" and not config.post_norms, config
        self.ranks = ranks
        self.norm = Norm(config, prefix + "mlp_norm", views)
        self.experts = RoutedExperts(config.experts, prefix, views, ranks.group.index)

    def forward(self, x_tE: Tensor, count: int) -> Tensor:
        """This rank's rows of `count`, with what their experts add."""
        return x_tE + self.ranks.reduce(self.experts(self.ranks.gather(self.norm(x_tE), count)))


class Heads(NamedTuple):
    """What a rank has of them: query heads, key/value heads, dimensions of each."""

    queries: int
    keys: int
    dimensions: int


class Block(nn.Module):
    """One decoder block. `project` and `finish` are its two halves, so that generation may put its cache between."""

    def __init__(
        self, config: DecoderConfig, layer: int, views: Mapping[str, nn.Parameter], ranks: TensorParallel
    ) -> None:
        super().__init__()
        self.ranks = ranks
        self.heads = Heads(ranks.part(config.heads), ranks.part(config.kv_heads), config.head_dim)
        self.layer = layer
        self.window = config.window(layer)
        self.softcap = config.attention_softcap
        self.query_factor = config.query_factor
        prefix = f"layers.{layer}."
        self.attention_norm = Norm(config, prefix + "attention_norm", views)
        self.qkv = views[prefix + "qkv"]
        self.qkv_bias = views.get(prefix + "qkv_bias")
        self.head_norms = nn.ModuleList()
        if config.head_norms:
            self.head_norms.extend(Norm(config, prefix + name, views) for name in ("query_norm", "key_norm"))
        self.output = views[prefix + "output"]
        self.output_bias = views.get(prefix + "output_bias")
        self.post_norm = Norm(config, prefix + "attention_post_norm", views) if config.post_norms else None
        self.mlp = (MLP if config.experts_of(layer) is None else ExpertMLP)(config, prefix, views, ranks)

    def forward(self, x_tE: Tensor, turns: Turns, packing: Packing, rows: Tensor | None = None) -> Tensor:
        """This rank's rows of the block's output, of all rows or of the given ones only."""
        attended_TE = attention(*self.project(x_tE, turns, packing.tokens), packing, self.window, self.softcap)
        if rows is not None:
            x_tE = self.ranks.gather(x_tE, packing.tokens).index_select(0, self.ranks.own(rows))
            attended_TE = attended_TE.index_select(0, rows)
        return self.finish(x_tE, attended_TE)

    def project(self, x_tE: Tensor, turns: Turns, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Of all `count` rows, query [T, H, D], key and value [T, K, D], the first two turned by their positions if
        these are rotary."""
        qkv = self.ranks.times(self.ranks.gather(self.attention_norm(x_tE), count), self.qkv, self.qkv_bias)
        queries, keys, dimensions = self.heads
        heads, both = qkv.unflatten(-1, (-1, dimensions)), [queries, keys]
        turning, values_TKD = heads.split([queries + keys, keys], dim=1)
        if self.head_norms:
            turning = torch.cat([norm(x) for norm, x in zip(self.head_norms, turning.split(both, 1), strict=True)], 1)
        if (rotation_T1P := turns.of(self.window)) is not None:
            turning = rotate(turning, rotation_T1P)
        queries_THD, keys_TKD = turning.split(both, dim=1)
        if self.query_factor != 1:
            queries_THD = queries_THD * self.query_factor
        return queries_THD, keys_TKD, values_TKD

    def finish(self, x_tE: Tensor, attended_TE: Tensor) -> Tensor:
        """This rank's rows of the block's output, from those of its input and what attention gathered for all rows."""
        x_tE = _plus_product(self.ranks, x_tE, attended_TE, self.output, self.output_bias, self.post_norm)
        return self.mlp(x_tE, attended_TE.shape[0])


def _plus_product(
    ranks: TensorParallel, x_tE: Tensor, rows_T: Tensor, matrix: Tensor, bias: Tensor | None, norm: Norm | None
) -> Tensor:
    """This rank's rows of x + norm(rows · matrix + bias)."""
    if norm is None:
        return ranks.plus_product(x_tE, rows_T, matrix, bias)
    return x_tE + norm(ranks.product(rows_T, matrix, bias))
