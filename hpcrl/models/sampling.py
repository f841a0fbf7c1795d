"""From logits to tokens: one uniform number a token, from the sample's own seed and the token's index.

So a draw depends on nothing else: not on the batch, the process, or what was drawn before.
Shapes: N rows, V vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from hpcrl.config.generation import MIN_TEMPERATURE

_GAMMA = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed 64-bit number, as are those below
_MIX_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX_2 = -7723592293110705685  # 0x94D049BB133111EB


@dataclass(frozen=True)
class SamplingOptions:
    """How the next token is chosen: temperature first, then top-k, then top-p of what top-k left.

    `top_k` = 0 and `top_p` = 1 leave everything. `greedy` takes the most likely token whatever the others say.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    greedy: bool = False

    def __post_init__(self) -> None:
        if not self.temperature >= MIN_TEMPERATURE:
            raise ValueError(
                f"temperature = {self.temperature}; it must be at least {MIN_TEMPERATURE}. For the limit 0 set greedy."
            )
        if self.top_k < 0:
            raise ValueError(f"top_k = {self.top_k}; it must be at least 0 (0: off).")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p = {self.top_p}; it must be in (0, 1] (1: off).")


def uniform(seeds_N: Tensor, index_N: Tensor) -> Tensor:
    """Uniform float64 numbers in [0, 1) [N]: output `index` of the splitmix64 generator with each seed.

    Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014; 53 bits.
    """
    z = seeds_N + (index_N + 1) * _GAMMA
    z = (z ^ _shifted(z, 30)) * _MIX_1
    z = (z ^ _shifted(z, 27)) * _MIX_2
    z = z ^ _shifted(z, 31)
    return _shifted(z, 11).to(torch.float64) * 2.0**-53


def choose(logits_NV: Tensor, seeds_N: Tensor, index_N: Tensor, options: SamplingOptions) -> tuple[Tensor, Tensor]:
    """The next token of each row, and its log-probability under the distribution that it was drawn from: NaN for
    logits that have no distribution, whose token means nothing.

    Greedy rows report the log-probability under the model's own distribution (temperature 1, nothing left out).
    """
    logits = logits_NV if logits_NV.dtype == torch.float64 else logits_NV.float()
    if options.greedy:
        tokens = logits.argmax(-1)
        return tokens, logits.gather(-1, tokens[:, None])[:, 0] - logits.logsumexp(-1)
    if options.temperature != 1.0:
        logits = logits / options.temperature
    probabilities = logits.softmax(-1)
    if not options.top_k and options.top_p == 1.0:
        return _invert(probabilities, uniform(seeds_N, index_N))
    kept, candidates = _filtered(probabilities, options)
    places, logprobs = _invert(kept, uniform(seeds_N, index_N))
    return candidates.gather(-1, places[:, None])[:, 0], logprobs


def _shifted(z: Tensor, bits: int) -> Tensor:
    """Logical right shift; PyTorch's own shift of signed numbers keeps the sign."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _filtered(probabilities: Tensor, options: SamplingOptions) -> tuple[Tensor, Tensor]:
    """Probabilities of the candidates, most likely first, zero for those that top-p leaves out; and their tokens."""
    vocabulary = probabilities.shape[-1]
    if 0 < options.top_k < vocabulary:
        kept, candidates = probabilities.topk(options.top_k)
    else:
        kept, candidates = probabilities.sort(stable=True, dim=-1, descending=True)
    reached = running_sums(kept)
    before = reached - kept
    return kept.masked_fill(before >= options.top_p * reached[:, -1:], 0.0), candidates


def _invert(weights: Tensor, uniform_N: Tensor) -> tuple[Tensor, Tensor]:
    """The first place at which the running sum exceeds u times the whole, and the log of its share.

    Where weights are NaN there is none: the last place, and NaN.
    """
    reached = running_sums(weights)
    whole = reached[:, -1:]
    places = torch.searchsorted(reached, uniform_N[:, None] * whole, right=True).clamp_(max=weights.shape[-1] - 1)
    shares = weights.gather(-1, places) / whole
    return places[:, 0], shares.log()[:, 0].to(weights.dtype)


def running_sums(weights_NV: Tensor) -> Tensor:
    """float64. CUDA would add up a row that is alone by parts that differ from call to call."""
    alone = weights_NV.is_cuda and weights_NV.shape[0] == 1
    rows = weights_NV.expand(2, -1) if alone else weights_NV
    return rows.cumsum(-1, dtype=torch.float64)[: weights_NV.shape[0]]
