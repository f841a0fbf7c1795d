"""c · tanh(x / c), which keeps attention's scores and logits between -c and c (Gemma 2, arXiv 2408.00118)."""

from torch import Tensor


def capped_(x: Tensor, softcap: float) -> Tensor:
    """In place."""
    return x.div_(softcap).tanh_().mul_(softcap)


def slope_(capped: Tensor, softcap: float) -> Tensor:
    """The derivative where `capped` is the result, in its place: 1 - (capped / c)²."""
    return capped.div_(softcap).square_().neg_().add_(1)
