"""What scores become before they are rewards of tokens. Shape legend: N tokens of B responses."""

import torch


def scaled(scores_B: torch.Tensor, scale: float, bias: float, bound: float | None) -> torch.Tensor:
    """(s - bias) · scale, within ± bound."""
    scores_B = (scores_B - bias) * scale
    return scores_B if bound is None else scores_B.clamp(-bound, bound)


def overlong_penalty(lengths_B: torch.Tensor, longest: int, buffer: int, penalty: float) -> torch.Tensor:
    """What a response loses that reaches into the last `buffer` of `longest` tokens: 0 to `penalty`, in proportion.

    Yu et al. 2025 (DAPO), arXiv:2503.14476, equation 13.
    """
    return ((lengths_B.double() - (longest - buffer)) / buffer).clamp(0.0, 1.0) * penalty


def token_rewards(
    scores_N: torch.Tensor, scores_B: torch.Tensor, scale: float, shaped_B: torch.Tensor, last_B: torch.Tensor
) -> torch.Tensor:
    """The rewards of tokens whose sums are `shaped_B`: each token's own score, scaled; the rest is that of the last.

    `scores_B` are the sums of the tokens' scores; `last_B` is where each response's last token is that is the model's.
    """
    rewards_N = scores_N * scale
    rewards_N[last_B] += shaped_B - scores_B * scale
    return rewards_N
