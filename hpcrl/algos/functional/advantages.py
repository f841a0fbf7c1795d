"""Advantages over packed sequences. Pure arithmetic: knows neither roles nor ranks.

A token that does not count (a tool's output, say) is not in the packed arrays at all, which carries value and advantage
over it. Shape legend: N tokens of B sequences; `cu_seqlens` [B + 1] are the sequences' bounds.
"""

import torch

from hpcrl.algos.functional.totals import Total, alone

WHITEN_EPSILON = 1e-8


def generalised_advantages(
    rewards_N: torch.Tensor,
    values_N: torch.Tensor,
    cu_seqlens: torch.Tensor,
    discount: float,
    gae_lambda: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Advantages and returns, [N] each: A_t = δ_t + discount·λ·A_{t+1} and R_t = A_t + V_t, where
    δ_t = r_t + discount·V_{t+1} - V_t.

    The value after a sequence's last token is 0: it has ended.
    Schulman et al. 2016, equation 16, by doubling: after k passes A_t holds its first 2^k terms. What a sequence gets
    does not depend on its neighbours, to the last bit.
    """
    if len(rewards_N) == 0:
        return rewards_N.clone(), rewards_N.clone()
    lengths = cu_seqlens.diff()
    filled = lengths > 0
    ends = cu_seqlens[1:][filled] - 1
    next_values = torch.cat([values_N[1:], values_N.new_zeros(1)])
    next_values[ends] = 0.0
    advantages = rewards_N + discount * next_values - values_N
    left = cu_seqlens[1:].repeat_interleave(lengths) - torch.arange(len(rewards_N), device=cu_seqlens.device)
    reach = 1
    while reach < int(lengths.max()):
        later = torch.where(left[:-reach] > reach, advantages[reach:], 0.0)
        advantages = torch.cat([advantages[:-reach] + (discount * gae_lambda) ** reach * later, advantages[-reach:]])
        reach *= 2
    return advantages, advantages + values_N


def whiten(values_N: torch.Tensor, total: Total = alone) -> torch.Tensor:
    """Shift and scale the values of all ranks together to mean 0 and (Bessel) variance 1, in float64."""
    values = values_N.double()
    count, first = total(torch.stack([values.new_tensor(len(values)), values.sum()])).tolist()
    if count < 2:
        return values * 0.0
    centred = values - first / count
    variance = total(centred.square().sum().reshape(1))[0] / (count - 1)
    return centred * torch.rsqrt(variance + WHITEN_EPSILON)
