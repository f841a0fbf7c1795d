"""Losses over pairs of answers, the first of which is preferred. Pure arithmetic: knows neither roles nor ranks.

Shape legend: B sequences, each pair's preferred one and then the other; Q = B / 2 pairs.
"""

from torch import Tensor
from torch.nn.functional import logsigmoid


def sides(numbers_B: Tensor) -> tuple[Tensor, Tensor]:
    """Of each pair the preferred sequence's number, and the other's; [Q] each."""
    return numbers_B[0::2], numbers_B[1::2]


def bradley_terry_loss(chosen_Q: Tensor, rejected_Q: Tensor, margins_Q: Tensor, centring: float) -> Tensor:
    """-log σ(r_w - r_l - margin) + c · (r_w + r_l)², [Q].

    Bradley and Terry 1952 as in Ouyang et al. 2022, equation 1; the margin of Touvron et al. 2023 (arXiv:2307.09288),
    equation 2; centring of Eisenstein et al. 2023 (arXiv:2312.09244), equation 2.
    """
    return -logsigmoid(chosen_Q - rejected_Q - margins_Q) + centring * (chosen_Q + rejected_Q).square()


def sigmoid_loss(log_ratios_Q: Tensor, beta: float, label_smoothing: float) -> Tensor:
    """-(1 - ε) log σ(βΔ) - ε log σ(-βΔ), [Q]; Δ is how much more the policy than the reference prefers the chosen one.

    Rafailov et al. 2023 (arXiv:2305.18290), equation 7; with ε, the share of labels that are flipped, its appendix and
    Mitchell's cDPO (2023).
    """
    return -(1 - label_smoothing) * logsigmoid(beta * log_ratios_Q) - label_smoothing * logsigmoid(-beta * log_ratios_Q)


def ipo_loss(log_ratios_Q: Tensor, beta: float) -> Tensor:
    """(Δ - 1 / 2β)², [Q]; Azar et al. 2023 (arXiv:2310.12036), equation 17, whose τ is β."""
    return (log_ratios_Q - 1 / (2 * beta)).square()
