"""Advantages over packed sequences. Pure arithmetic: knows neither roles nor ranks.

A token that does not count (a tool's output, say) is not in the packed arrays at all, which carries value and advantage
over it. Shape legend: N tokens of B sequences; `cu_seqlens` [B + 1] are the sequences' bounds.
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


def whiten(values_N: torch.Tensor, total: Total = alone) -> torch.Tensor:
    """Shift and scale the values of all ranks together to mean 0 and (Bessel) variance 1, in float64."""
    values = values_N.double()
    count, first = total(torch.stack([values.new_tensor(len(values)), values.sum()])).tolist()
    if count < 2:
        return values * 0.0
    centred = values - first / count
    variance = total(centred.square().sum().reshape(1))[0] / (count - 1)
    return centred * torch.rsqrt(variance + WHITEN_EPSILON)
