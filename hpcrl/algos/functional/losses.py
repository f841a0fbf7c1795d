"""Losses per token, and the weights that make their sum a mean over a whole mini-batch.

Every loss here is one number per token. Multiplied by `token_weights`, which has the mini-batch's global denominators
in it, and added up, it is the mini-batch's loss whatever micro-batches and ranks the tokens are spread over.
A micro-batch holds whole sequences. Shape legend: N tokens of B sequences.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from hpcrl.algos.functional.sequences import sequence_means, sequence_sums

LOG_RATIO_LIMIT = 20.0
SEQUENCE_LOG_RATIO_LIMIT = 10.0
"""From above alone, as verl bounds it: a bound from below would hold the gradient back."""


@dataclass(frozen=True)
class PolicyTerms:
    """Per token: the loss, the ratio, and whether the bounded ratio is the one that counts (no gradient)."""

    loss: torch.Tensor
    ratio: torch.Tensor
    clipped: torch.Tensor


def token_ratio(log_probs: torch.Tensor, old_log_probs: torch.Tensor) -> torch.Tensor:
    """r_t = π(y_t) / π_old(y_t), its logarithm within ±20."""
    return (log_probs - old_log_probs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def sequence_ratio(
    log_probs: torch.Tensor, old_log_probs: torch.Tensor, mask: torch.Tensor, cu_labels: torch.Tensor
) -> torch.Tensor:
    """s = (π(y) / π_old(y))^(1/|y|), whose gradient in each token is that of π(y_t) / sg[π(y_t)] times s.

    GSPO's token form (Zheng et al. 2025, arXiv:2507.18071, equations 7 and 14): |y| are the tokens of the mask.
    """
    mean_B = sequence_means((log_probs - old_log_probs).detach(), mask, cu_labels)
    log_ratio = log_probs - log_probs.detach() + mean_B.repeat_interleave(cu_labels.diff())
    return log_ratio.clamp(max=SEQUENCE_LOG_RATIO_LIMIT).exp()


def importance_weights(old_log_probs: torch.Tensor, sampled_log_probs: torch.Tensor, cap: float) -> torch.Tensor:
    """min(π_old / π_rollout, C) per token, without gradient: what training makes of the rollout's other arithmetic
    (truncated importance sampling, Yao et al. 2025)."""
    return token_ratio(old_log_probs, sampled_log_probs).clamp(max=cap).detach()


def clipped_loss(
    ratio: torch.Tensor, advantages: torch.Tensor, clip_low: float, clip_high: float, dual_clip: float | None = None
) -> PolicyTerms:
    """max(-rA, -clip(r, 1 - ε_low, 1 + ε_high)A) (Schulman et al. 2017; Yu et al. 2025 for two bounds); where A < 0 at
    most -cA (Ye et al. 2020)."""
    free, held = -ratio * advantages, -ratio.clamp(1 - clip_low, 1 + clip_high) * advantages
    loss = torch.maximum(free, held)
    if dual_clip is not None:
        loss = torch.where(advantages < 0, torch.minimum(loss, -dual_clip * advantages), loss)
    return PolicyTerms(loss, ratio.detach(), (held > free).detach())


def cispo_loss(
    ratio: torch.Tensor, log_probs: torch.Tensor, advantages: torch.Tensor, clip_low: float, clip_high: float
) -> PolicyTerms:
    """-sg[clip(r, 1 - ε_low, 1 + ε_high)] · A · log π: no token's gradient is cut off (MiniMax 2025, arXiv:2506.13585).

    The bounds are around 1, as in verl; TRL's upper one is absolute.
    """
    ratio = ratio.detach()
    held = ratio.clamp(1 - clip_low, 1 + clip_high)
    return PolicyTerms(-held * advantages * log_probs, ratio, held != ratio)


def value_loss(
    values: torch.Tensor, old_values: torch.Tensor, returns: torch.Tensor, clip: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """½ max((V - R)², (clip(V, V_old ± ε) - R)²) per token, and whether the clipped branch is the larger one."""
    free = (values - returns).square()
    if clip is None:
        return free / 2, torch.zeros_like(free, dtype=torch.bool)
    held = (values.clamp(old_values - clip, old_values + clip) - returns).square()
    return torch.maximum(free, held) / 2, (held > free).detach()


@dataclass(frozen=True)
class Denominators:
    """How much of the whole mini-batch counts, over all micro-batches and ranks."""

    tokens: int
    sequences: int
    """Those of which a token counts."""
    constant: float = 1.0
    """What `seq-mean-token-sum-norm` divides a sequence's sum by."""


Aggregation = Callable[[torch.Tensor, Denominators], torch.Tensor]
"""(how many tokens count of each sequence, at least 1 [B]; denominators) → the weight of each of these tokens [B]"""

AGGREGATIONS: Mapping[str, Aggregation] = {
    "token-mean": lambda counts, whole: torch.full_like(counts, 1.0 / whole.tokens),
    "seq-mean-token-mean": lambda counts, whole: 1.0 / (whole.sequences * counts),
    "seq-mean-token-sum": lambda counts, whole: torch.full_like(counts, 1.0 / whole.sequences),
    "seq-mean-token-sum-norm": lambda counts, whole: torch.full_like(counts, 1.0 / (whole.sequences * whole.constant)),
    "token-sum": lambda counts, whole: torch.ones_like(counts),
}


def token_weights(
    aggregation: str, mask_N: torch.Tensor, cu_seqlens: torch.Tensor, whole: Denominators
) -> torch.Tensor:
    """The weight of each token, float64 [N]: Σ weight · loss over the mini-batch is its aggregated loss.

    Tokens outside the mask have weight 0.
    """
    counts = sequence_sums(mask_N.double(), cu_seqlens).clamp(min=1.0)
    return AGGREGATIONS[aggregation](counts, whole).repeat_interleave(cu_seqlens.diff()) * mask_N


def counted(numbers_N: torch.Tensor, mask_N: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A statistic of the tokens that count: their sum, and how many they are."""
    return (numbers_N * mask_N).sum(), mask_N.sum()
