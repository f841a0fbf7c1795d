"""Advantages over packed sequences. Pure arithmetic: knows neither roles nor ranks.

Shape legend: N tokens of B sequences; `cu_seqlens` [B + 1] are the sequences' bounds.
"""

import torch

from hpcrl.algos.functional.totals import Total, alone
from hpcrl.ops.gae import gae

WHITEN_EPSILON = 1e-8


def generalised_advantages(
    rewards_N: torch.Tensor,
    values_N: torch.Tensor,
    cu_seqlens: torch.Tensor,
    discount: float,
    gae_lambda: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Advantages and returns, float64 [N] each: A_t = δ_t + discount·λ·A_{t+1} and R_t = A_t + V_t, where
    δ_t = r_t + discount·V_{t+1} - V_t.

    The value after a sequence's last token is 0: it has ended. Schulman et al. 2016, equation 16. What a sequence gets
    does not depend on its neighbours, to the last bit. The tensors are the host's.
    """
    rewards, values = (tensor.double().contiguous().numpy() for tensor in (rewards_N, values_N))
    advantages, returns = gae(rewards, values, cu_seqlens.long().contiguous().numpy(), discount, gae_lambda)
    return torch.from_numpy(advantages), torch.from_numpy(returns)


def masked_advantages(
    rewards_N: torch.Tensor,
    values_N: torch.Tensor,
    mask_N: torch.Tensor,
    cu_seqlens: torch.Tensor,
    discount: float,
    gae_lambda: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`generalised_advantages` of the mask's tokens, as if the others (a tool's, say) were not there: they get 0."""
    if bool(mask_N.all()):
        return generalised_advantages(rewards_N, values_N, cu_seqlens, discount, gae_lambda)
    before = torch.cat([mask_N.new_zeros(1, dtype=torch.int64), mask_N.long().cumsum(0)])
    kept = generalised_advantages(rewards_N[mask_N], values_N[mask_N], before[cu_seqlens], discount, gae_lambda)
    whole = [torch.zeros_like(values_N, dtype=torch.float64) for _ in kept]
    for into, part in zip(whole, kept, strict=True):
        into[mask_N] = part
    return whole[0], whole[1]


def whiten(
    values_N: torch.Tensor, total: Total = alone, mask_N: torch.Tensor | None = None, *, shift: bool = True
) -> torch.Tensor:
    """Shift and scale the values of all ranks together to mean 0 and (Bessel) variance 1, in float64.

    Those outside the mask become 0 and count nowhere. Without `shift` the mean stays.
    """
    values, weights = values_N.double(), torch.ones_like(values_N) if mask_N is None else mask_N
    weights = weights.double()
    count, first = total(torch.stack([weights.sum(), (values * weights).sum()])).tolist()
    if count < 2:
        return values * 0.0 if shift else values * weights
    mean = first / count
    centred = (values - mean) * weights
    variance = total(centred.square().sum().reshape(1))[0] / (count - 1)
    scaled = centred * torch.rsqrt(variance + WHITEN_EPSILON)
    return scaled if shift else scaled + mean * weights
