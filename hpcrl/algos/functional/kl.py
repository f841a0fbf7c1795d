"""Estimates of KL(policy ‖ reference) from the policy's own samples, and the coefficient that follows them.

Schulman, "Approximating KL divergence" (2020); Ziegler et al. 2019 for the adaptive coefficient.
"""

from collections.abc import Callable, Mapping

import torch

K3_LOG_RATIO_LIMIT = 20.0
K3_LIMIT = 10.0


def _k3(log_ratio: torch.Tensor) -> torch.Tensor:
    log_ratio = log_ratio.clamp(-K3_LOG_RATIO_LIMIT, K3_LOG_RATIO_LIMIT)
    return (torch.expm1(-log_ratio) + log_ratio).clamp(-K3_LIMIT, K3_LIMIT)


KL_ESTIMATORS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "k1": lambda log_ratio: log_ratio,
    "k2": lambda log_ratio: log_ratio.square() / 2,
    "k3": _k3,
    "abs": lambda log_ratio: log_ratio.abs(),
}


def token_kl(estimator: str, log_probs: torch.Tensor, ref_log_probs: torch.Tensor) -> torch.Tensor:
    """Per token, of d = log π - log π_ref: k1 = d, k2 = d²/2, k3 = e^-d - 1 + d and abs = |d|.

    As in verl k3 alone is bounded: d to ±20, and k3 itself to ±10. Positive k1 means that the policy likes its
    sample more than the reference does.
    """
    return KL_ESTIMATORS[estimator](log_probs - ref_log_probs)


def adapted_kl_coef(coef: float, kl: float, target: float, horizon: float, sequences: int, error_limit: float) -> float:
    """β ← β · (1 + clip(KL/target - 1, ±0.2) · n/horizon): a KL above the target makes it dearer.

    Above 0 for ever, given a coefficient above 0 and more than 0.2 · n samples of horizon.
    """
    error = min(max(kl / target - 1.0, -error_limit), error_limit)
    return coef * (1.0 + error * sequences / horizon)
