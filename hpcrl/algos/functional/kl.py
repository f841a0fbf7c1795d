"""Estimates of KL(policy ‖ reference) from the policy's own samples, and the coefficient that follows them.

Schulman, "Approximating KL divergence" (2020); Ziegler et al. 2019 for the adaptive coefficient.
Shape legend: N tokens of B sequences; `cu_seqlens` [B + 1] are the sequences' bounds.
"""

from collections.abc import Callable, Mapping

import torch

LOG_RATIO_LIMIT = 20.0
K3_LIMIT = 10.0


def _k3(log_ratio: torch.Tensor) -> torch.Tensor:
    return (torch.expm1(-log_ratio) + log_ratio).clamp(-K3_LIMIT, K3_LIMIT)


KL_ESTIMATORS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "k1": lambda log_ratio: log_ratio,
    "k2": lambda log_ratio: log_ratio.square() / 2,
    "k3": _k3,
}


def token_kl(estimator: str, log_probs: torch.Tensor, ref_log_probs: torch.Tensor) -> torch.Tensor:
    """Per token, of d = log π - log π_ref (within ±20): k1 = d, k2 = d²/2, k3 = e^-d - 1 + d (within ±10).

    Positive k1 means that the policy likes its sample more than the reference does.
    """
    log_ratio = (log_probs - ref_log_probs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return KL_ESTIMATORS[estimator](log_ratio)


def sequence_means(tokens_N: torch.Tensor, cu_seqlens: torch.Tensor) -> torch.Tensor:
    """Each sequence's mean per token, float64 [B]. Their mean is the KL that the adaptive coefficient follows."""
    lengths = cu_seqlens.diff()
    owner = torch.arange(len(lengths), device=tokens_N.device).repeat_interleave(lengths)
    sums = torch.zeros(len(lengths), dtype=torch.float64, device=tokens_N.device)
    return sums.index_add_(0, owner, tokens_N.double()) / lengths.clamp(min=1)


def adapted_kl_coef(coef: float, kl: float, target: float, horizon: float, sequences: int, error_limit: float) -> float:
    """β ← β · (1 + clip(KL/target - 1, ±0.2) · n/horizon): a KL above the target makes it dearer.

    Above 0 for ever, given a coefficient above 0 and more than 0.2 · n samples of horizon.
    """
    error = min(max(kl / target - 1.0, -error_limit), error_limit)
    return coef * (1.0 + error * sequences / horizon)
