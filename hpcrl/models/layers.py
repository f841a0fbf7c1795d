"""The layers before the output module: embedding and blocks. Each holds views of the flat buffer, given by name.

Shapes: T rows of a packed batch, E hidden size, H query heads, K key/value heads, D dimensions of a head.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from hpcrl.families.config import DecoderConfig
from hpcrl.models.activations import normalize, swiglu
from hpcrl.models.attention import attention
from hpcrl.models.packing import Packing
from hpcrl.models.rotary import rotate


class Embedding(nn.Module):
    """Token ids to vectors. Every row is trained, also the padding token's, which no packed batch has beside texts."""

    def __init__(self, views: Mapping[str, nn.Parameter]) -> None:
        super().__init__()
        self.embedding = views["layers.0.embedding"]

    def forward(self, tokens_T: Tensor) -> Tensor:
        return embedding(tokens_T, self.embedding)


class Block(nn.Module):
    """One decoder block. `project` and `finish` are its two halves, so that generation may put its cache between."""

    def __init__(self, config: DecoderConfig, layer: int, views: Mapping[str, nn.Parameter]) -> None:
        super().__init__()
        self.query_heads, self.kv_heads, self.head_dim = config.heads, config.kv_heads, config.head_dim
        self.norm_eps = config.norm_eps
        prefix = f"layers.{layer}."
        self.attention_norm = views[prefix + "attention_norm"]
        self.qkv = views[prefix + "qkv"]
        self.qkv_bias = views.get(prefix + "qkv_bias")
        self.output = views[prefix + "output"]
        self.mlp_norm = views[prefix + "mlp_norm"]
        self.gate_up = views[prefix + "gate_up"]
        self.down = views[prefix + "down"]

    def forward(self, x_TE: Tensor, rotation_T1P: Tensor, packing: Packing, rows: Tensor | None = None) -> Tensor:
        """The block's output of all rows, or of the given ones only."""
        q_THD, k_TKD, v_TKD = self.project(x_TE, rotation_T1P)
        attended_TE = attention(q_THD, k_TKD, v_TKD, packing)
        if rows is not None:
            x_TE, attended_TE = x_TE.index_select(0, rows), attended_TE.index_select(0, rows)
        return self.finish(x_TE, attended_TE)

    def project(self, x_TE: Tensor, rotation_T1P: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query [T, H, D], key and value [T, K, D], the first two turned by their positions."""
        normed = normalize(x_TE, self.attention_norm, self.norm_eps)
        qkv = normed @ self.qkv if self.qkv_bias is None else torch.addmm(self.qkv_bias, normed, self.qkv)
        heads = qkv.unflatten(-1, (-1, self.head_dim))
        turning, values = heads.split([self.query_heads + self.kv_heads, self.kv_heads], dim=1)
        queries, keys = rotate(turning, rotation_T1P).split([self.query_heads, self.kv_heads], dim=1)
        return queries, keys, values

    def finish(self, x_TE: Tensor, attended_TE: Tensor) -> Tensor:
        """The block's output from its input and what attention gathered."""
        x_TE = torch.addmm(x_TE, attended_TE, self.output)
        normed = normalize(x_TE, self.mlp_norm, self.norm_eps)
        return torch.addmm(x_TE, swiglu(normed @ self.gate_up), self.down)
