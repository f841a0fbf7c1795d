"""What a decoder-only transformer is made of, in numbers. Knows no tensors and no file formats."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import log, sqrt
from typing import Any, Literal

HeadKind = Literal["vocabulary", "value", "reward"]
"""vocabulary: logits of the next token. value: one number a token, with a bias. reward: one, read at the last token."""


@dataclass(frozen=True)
class RotaryConfig:
    """Rotary position embedding (arXiv 2104.09864).

    `linear` divides all frequencies, `llama3` and `yarn` (arXiv 2309.00071) only the low ones. `dynamic` would divide
    them for a text longer than `max_positions`, which no text is.
    """

    theta: float = 10000.0
    kind: Literal["default", "linear", "dynamic", "llama3", "yarn"] = "default"
    factor: float = 1.0
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    original_max_positions: int = 0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True

    @property
    def scale(self) -> float:
        """What YaRN multiplies turned queries and keys by."""
        if self.kind != "yarn":
            return 1.0
        if self.attention_factor is not None:
            return self.attention_factor
        growth = 0.1 * max(0.0, log(self.factor))
        if self.mscale and self.mscale_all_dim:
            return (self.mscale * growth + 1) / (self.mscale_all_dim * growth + 1)
        return growth + 1


ROUTER_STATISTICS = ("router_aux_loss", "router_z_loss", "router_max_share")
"""What a train_step reports of a model that has experts."""


@dataclass(frozen=True)
class Experts:
    """MLPs of a block of which a router picks some for each token (arXiv 1701.06538)."""

    count: int
    per_token: int
    inner_size: int
    """Neurons of each."""
    normalized: bool = True
    """Whether the probabilities of those picked are made to add up to 1."""
    dense: tuple[int, ...] = ()
    """Layers that have a plain MLP instead."""
    cut: Literal["inner", "whole"] = "inner"
    """What a tensor-parallel rank has: some neurons of every expert, or some experts whole. Changes no number but by
    rounding."""


@dataclass(frozen=True)
class Adapters:
    """Low-rank matrices beside those of linear layers (LoRA, arXiv 2106.09685), which alone are trained."""

    rank: int
    alpha: float
    """What they add is multiplied by alpha / rank."""
    targets: tuple[str, ...] = ()
    """The layers that have some, by what their names end with at Hugging Face; none: all of the blocks."""

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


@dataclass(frozen=True)
class DecoderConfig:
    """The mathematics of one model, and what else its config.json said that an export must say again."""

    family: str
    """What declares its parameters and its files: a name, or `file.py:NAME`."""
    vocabulary_size: int
    hidden_size: int
    intermediate_size: int
    blocks: int
    heads: int
    kv_heads: int
    head_dim: int
    max_positions: int
    norm_eps: float = 1e-6
    norm: Literal["rms", "rms_plus_one", "layer"] = "rms"
    """rms_plus_one: RMS norm by one plus its weight. layer: LayerNorm, with a bias (arXiv 1607.06450)."""
    post_norms: bool = False
    """Whether what attention and MLP add to a row is normalised before it is added, too."""
    positions: Literal["rotary", "learned"] = "rotary"
    """learned: a vector for each of `max_positions`, added to the token's."""
    rotary: RotaryConfig = field(default_factory=RotaryConfig)
    head_norms: bool = False
    """Whether each head's query and key are normalised before they are turned."""
    query_scalar: float | None = None
    """The number whose root divides a query's product with a key (None: head_dim)."""
    windows: tuple[int, ...] = ()
    """How many tokens a token sees in each block, itself included (arXiv 2004.05150); 0 or none: all before it."""
    attention_softcap: float | None = None
    """The c of c · tanh(x / c), which a query's product with a key becomes before it is masked (None: itself)."""
    logit_softcap: float | None = None
    """The same of vocabulary logits, before any temperature."""
    window_rotary: RotaryConfig | None = None
    """How blocks with a window turn queries and keys (None: as the others)."""
    embedding_scaled: bool = False
    """Whether a token's vector is multiplied by the root of its length."""
    activation: Literal["swiglu", "geglu_tanh", "gelu_tanh"] = "swiglu"
    experts: Experts | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    """Whether attention's output matrix has a bias."""
    mlp_bias: bool = False
    tied: bool = False
    head: HeadKind = "vocabulary"
    initializer_range: float = 0.02
    carried: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Fields of config.json that change no number (token ids and the like), carried to the export."""
    adapters: Adapters | None = None
    """Those that are trained in the place of the parameters: what is declared of such a model is they alone."""

    @property
    def base(self) -> "DecoderConfig":
        """The model without adapters."""
        return self if self.adapters is None else replace(self, adapters=None)

    @property
    def query_size(self) -> int:
        """Length of a token's queries in one block."""
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Length of a token's keys, and of its values, in one block."""
        return self.kv_heads * self.head_dim

    @property
    def gated(self) -> bool:
        """Whether the MLP multiplies two projections of its input."""
        return self.activation in ("swiglu", "geglu_tanh")

    def window(self, layer: int) -> int:
        """Of one of the blocks, which are layers 1 … n."""
        return self.windows[layer - 1] if self.windows else 0

    def experts_of(self, layer: int) -> Experts | None:
        """Of one of the blocks; None where it has a plain MLP."""
        return None if self.experts is None or layer in self.experts.dense else self.experts

    @property
    def query_factor(self) -> float:
        """What queries are multiplied by, beside what every product with a key is."""
        return sqrt(self.head_dim / (self.query_scalar or self.head_dim))

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """The tokens that end a text, as config.json names them; empty where it names none."""
        eos = self.carried.get("eos_token_id")
        if eos is None:
            return ()
        return tuple(eos) if isinstance(eos, list | tuple) else (int(eos),)

    @property
    def head_outputs(self) -> int:
        """Numbers that the head gives for a token."""
        return self.vocabulary_size if self.head == "vocabulary" else 1

    @property
    def shares_embedding(self) -> bool:
        """Whether the head multiplies by the embedding's own matrix."""
        return self.tied and self.head == "vocabulary"

    def with_head(self, head: HeadKind | None) -> "DecoderConfig":
        """The same trunk under another head; None keeps its own."""
        return self if head is None else replace(self, head=head)

    def with_experts_cut(self, cut: Literal["inner", "whole"]) -> "DecoderConfig":
        """The same model, its experts, where it has any, cut so over tensor-parallel ranks."""
        return self if self.experts is None else replace(self, experts=replace(self.experts, cut=cut))
