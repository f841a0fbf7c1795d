"""One stage of a decoder as Megatron-core's GPTModel: its layers by a layer spec, with our norm and packed attention.

Query, key and value rows of a rank stand one after another, as ours do, not by groups. Final norm and head are not of
it. Shapes: T rows of a packed batch, t those of this rank, E hidden size.
"""

from dataclasses import dataclass
from typing import Any

import torch
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.attention import SelfAttention
from megatron.core.transformer.module import MegatronModule
from torch import Tensor, nn
from torch.nn.functional import pad, silu

from hpcrl.families.config import DecoderConfig
from hpcrl.models.activations import normalize
from hpcrl.models.attention import attention
from hpcrl.models.packing import Packing
from hpcrl.models.rotary import Turns, rotate
from hpcrl.placement.shards import Cut, stages

TURNED = {
    "qkv": "self_attention.linear_qkv.weight",
    "output": "self_attention.linear_proj.weight",
    "gate_up": "mlp.linear_fc1.weight",
    "down": "mlp.linear_fc2.weight",
}
"""Of a block: our matrices, [in, out], of which Megatron has the transpose."""
STRAIGHT = {
    "attention_norm": "input_layernorm.weight",
    "qkv_bias": "self_attention.linear_qkv.bias",
    "mlp_norm": "pre_mlp_layernorm.weight",
}
"""Its other parameters."""


@dataclass
class Packed(PackedSeqParams):
    """What attention is told of a packed batch; each block's window by its number in the stage, from 1."""

    packing: Packing | None = None
    turns: Turns | None = None
    windows: tuple[int, ...] = ()


class PackedAttention(MegatronModule):
    """Our attention, in the place of Megatron's: turns queries and keys, and sees each text alone, or its prefix."""

    def __init__(self, config: Any, layer_number: int, **_: Any) -> None:
        super().__init__(config=config)
        self.number = layer_number

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *_: Any, packed_seq_params: Any, **__: Any) -> Tensor:
        """All T rows' heads, and maybe rows of padding behind them; [T, H·D] with as many of those."""
        given: Packed = packed_seq_params
        assert given.packing is not None and given.turns is not None
        window, rows = given.windows[self.number - 1], given.packing.tokens
        queries, keys = query[:rows], key[:rows]
        if (rotation := given.turns.of(window)) is not None:
            queries, keys = rotate(queries, rotation), rotate(keys, rotation)
        attended = attention(queries, keys, value[:rows], given.packing, window)
        return attended if len(query) == rows else pad(attended, (0, 0, 0, len(query) - rows))


class FusedRows(SelfAttention):
    """Megatron's attention over a projection that has all of a rank's queries, then its keys, then its values."""

    def get_query_key_value_tensors(self, hidden_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, ...]:
        fused, _bias = self.linear_qkv(hidden_states)
        heads = fused.unflatten(-1, (-1, self.hidden_size_per_attention_head))
        groups = self.num_query_groups_per_partition
        return tuple(heads.split([self.num_attention_heads_per_partition, groups, groups], dim=-2))


class RowNorm(nn.Module):
    """Our RMS norm, as Megatron makes one."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(hidden_size, dtype=config.params_dtype))
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
        self.eps = eps

    def forward(self, rows: Tensor) -> Tensor:
        return normalize(rows, self.weight, self.eps)


def megatron_config(config: DecoderConfig, cut: Cut, dtype: torch.dtype) -> Any:
    """One stage of a decoder; to Megatron it is all there is. Nothing is fused, and nothing dropped."""
    blocks = [layer for layer in stages(config, cut.pp)[cut.stage] if 1 <= layer <= config.blocks]
    return TransformerConfig(
        num_layers=len(blocks),
        hidden_size=config.hidden_size,
        ffn_hidden_size=config.intermediate_size,
        num_attention_heads=config.heads,
        # Key and value heads that several ranks share are told as heads of their own.
        num_query_groups=max(config.kv_heads, cut.tp),
        kv_channels=config.head_dim,
        layernorm_epsilon=config.norm_eps,
        normalization="RMSNorm",
        gated_linear_unit=True,
        activation_func=silu,
        add_bias_linear=False,
        add_qkv_bias=config.qkv_bias,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        tensor_model_parallel_size=cut.tp,
        sequence_parallel=cut.tp > 1,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype == torch.bfloat16,
        perform_initialization=False,
        # A loss is already divided by what counts on all ranks: gradients are sums.
        calculate_per_token_loss=True,
        gradient_accumulation_fusion=False,
        bias_dropout_fusion=False,
        bias_activation_fusion=False,
        masked_softmax_fusion=False,
        apply_rope_fusion=False,
    )


class StageModel:
    """The blocks of one stage, and the embedding on the first. Its parameters are by our names."""

    def __init__(self, config: DecoderConfig, cut: Cut, megatron: Any, groups: Any) -> None:
        self._cut = cut
        self._config = megatron
        spec = get_gpt_layer_local_spec(normalization="RMSNorm")
        spec.submodules.input_layernorm = spec.submodules.pre_mlp_layernorm = RowNorm
        spec.submodules.self_attention.module = FusedRows
        spec.submodules.self_attention.submodules.core_attention = PackedAttention
        self._layers = [layer for layer in stages(config, cut.pp)[cut.stage] if 1 <= layer <= config.blocks]
        self._windows = tuple(config.window(layer) for layer in self._layers)
        self._model = GPTModel(
            config=megatron,
            transformer_layer_spec=spec,
            vocab_size=-(-config.vocabulary_size // cut.tp) * cut.tp,
            max_sequence_length=config.max_positions,
            pre_process=cut.is_first,
            post_process=False,
            position_embedding_type="none",
            pg_collection=groups,
        )

    def parameters(self) -> tuple[dict[str, nn.Parameter], set[str]]:
        """Those of this rank by our names, and which of them are the transposes of ours."""
        model, turned = self._model, set()
        found = {"layers.0.embedding": model.embedding.word_embeddings.weight} if self._cut.is_first else {}
        for layer, block in zip(self._layers, model.decoder.layers, strict=True):
            has, prefix = dict(block.named_parameters()), f"layers.{layer}."
            turned |= {prefix + ours for ours in TURNED}
            found |= {prefix + ours: has[theirs] for ours, theirs in (TURNED | STRAIGHT).items() if theirs in has}
        return found, turned

    def before_blocks(self, told: Any) -> None:
        """Have `told` called with a block's layer before it computes."""
        for layer, block in zip(self._layers, self._model.decoder.layers, strict=True):
            block.register_forward_pre_hook(lambda *_, layer=layer: told(layer))

    @property
    def recompute(self) -> bool:
        """Whether of each block only what it was given is kept for the backward pass."""
        return self._config.recompute_granularity is not None

    @recompute.setter
    def recompute(self, value: bool) -> None:
        self._config.recompute_granularity = "full" if value else None
        self._config.recompute_method = "uniform" if value else None
        self._config.recompute_num_layers = 1 if value else None

    def __call__(self, given: Tensor, packing: Packing, turns: Turns) -> Tensor:
        """This rank's rows [t, E] of what the last block gives. The first stage is given tokens [T], others rows."""
        packed = Packed(qkv_format="thd", packing=packing, turns=turns, windows=self._windows)
        tokens = None
        if self._cut.is_first:
            tokens = pad(given, (0, -len(given) % self._cut.tp))[None]
        else:
            self._model.set_input_tensor(given[:, None])
        rows: Tensor = self._model(tokens, None, None, packed_seq_params=packed)
        return rows[:, 0]
