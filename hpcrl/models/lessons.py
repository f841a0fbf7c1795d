"""What routers learn beside the objective: to use all experts alike, with small logits (arXiv 2101.03961, 2202.08906).

Over the rows of a mini-batch in all blocks that have experts, R in all: the auxiliary loss is X · Σ share · likelihood
over the experts, as transformers computes it, where `share` is how many choices an expert has, over R, and `likelihood`
the mean of its probability; the z-loss is the mean of logsumexp². Both are sums over rows once the shares are known,
so that a row's gradient is the same however the rows are split. Knows no group: whoever has all numbers adds them up.
Shapes: T rows, P of them that predict labels, X experts, B blocks.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hpcrl.families.config import ROUTER_STATISTICS


class RouterLoss(NamedTuple):
    """The weights of both losses."""

    aux: float = 0.0
    z: float = 0.0


@dataclass(frozen=True)
class RouterNumbers:
    """What a mini-batch gives of its routers."""

    loss: float = 0.0
    """By its weights."""
    totals: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Its statistics, each with the weight 1: both losses without theirs, and the largest share that an expert has of
    the choices of its block. None where no block has experts."""


class RouterSums:
    """Over rows; those of several ranks are added up as one vector."""

    def __init__(self, blocks: int, experts: int, device: torch.device) -> None:
        self.vector = torch.zeros(blocks * experts + experts + 2, dtype=torch.float64, device=device)
        """Choices of each expert in each block, the experts' probabilities, logsumexp², and rows."""
        self._parts = [blocks * experts, experts, 1, 1]

    def add(self, block: int, choices_X: Tensor, likely_X: Tensor, squares: Tensor, rows: Tensor) -> None:
        choices_BX, *others = self._split(self.vector)
        choices_BX[block] += choices_X
        for own, more in zip(others, (likely_X, squares, rows), strict=True):
            own += more

    def picked(self, vector: Tensor) -> tuple[Tensor, float]:
        """How many choices each expert has in all blocks, [X], and how many rows there are."""
        choices_BX, _, _, rows = self._split(vector)
        return choices_BX.sum(0), float(rows)

    def numbers(self, vector: Tensor, loss: RouterLoss) -> RouterNumbers:
        choices_BX, likely_X, squares, rows = self._split(vector)
        if not float(rows):
            return RouterNumbers(totals=dict.fromkeys(ROUTER_STATISTICS, (0.0, 0.0)))
        picked_X = choices_BX.sum(0)
        aux = len(likely_X) * float(picked_X / rows @ (likely_X / rows))
        z = float(squares / rows)
        fullest = float((choices_BX.max(-1).values / choices_BX.sum(-1).clamp(min=1)).max())
        totals = dict(zip(ROUTER_STATISTICS, ((aux, 1.0), (z, 1.0), (fullest, 1.0)), strict=True))
        return RouterNumbers(loss.aux * aux + loss.z * z, totals)

    def _split(self, vector: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        choices, likely_X, squares, rows = vector.split(self._parts)
        return choices.view(-1, len(likely_X)), likely_X, squares, rows


class Lessons:
    """One mini-batch's, of all blocks: what routers say of the rows is noted; then they may be taught by it."""

    def __init__(self, blocks: int, experts: int, device: torch.device, teaches: bool) -> None:
        self.sums = RouterSums(blocks, experts, device)
        self.teaches = teaches
        """Whether every block sees all rows; else the last one sees those that predict labels."""
        self.weights_T = torch.ones(0, dtype=torch.float64, device=device)
        self.pull_X: Tensor | None = None
        self.z = 0.0
        self.notes = True
        self._of_labels_P = self.weights_T

    def of(self, layer: int) -> "Lesson":
        return Lesson(self, layer - 1)

    def weigh(self, weights_T: Tensor, of_labels_P: Tensor) -> None:
        """How many rows each of those stands for that come next, and each of those that predict labels."""
        self.weights_T, self._of_labels_P = weights_T, of_labels_P

    def labels_only(self) -> None:
        """The next block sees nothing but rows that predict labels."""
        self.weights_T = self._of_labels_P

    def again(self) -> AbstractContextManager[None]:
        """While it is open, the next block sees the same rows as now once more: they are noted already."""
        return self._again(self.weights_T)

    @contextmanager
    def _again(self, weights_T: Tensor) -> Iterator[None]:
        later, self.weights_T, self.notes = self.weights_T, weights_T, False
        try:
            yield
        finally:
            self.weights_T, self.notes = later, True

    def forget(self) -> None:
        """What was noted."""
        self.sums.vector.zero_()

    def begin(self, loss: RouterLoss, vector: Tensor, ranks: int) -> None:
        """Teach from now on, by the sums of all rows; `ranks` compute each row alike and add their gradients up."""
        picked_X, rows = self.sums.picked(vector)
        self.pull_X = picked_X.to(self.weights_T.device) * (loss.aux * len(picked_X) / rows**2 / ranks)
        self.z = 2 * loss.z / rows / ranks


class Lesson:
    """That of one block."""

    def __init__(self, lessons: Lessons, block: int) -> None:
        self._lessons = lessons
        self._block = block

    @torch.no_grad()
    def note(self, logits_TX: Tensor, picked_TK: Tensor) -> None:
        """Add up what a router says; nothing any more once it is taught, or where it says it again."""
        lessons = self._lessons
        if lessons.pull_X is not None or not lessons.notes:
            return
        wide_TX, weights_T1 = logits_TX.double(), lessons.weights_T[:, None]
        choices_TX = torch.zeros_like(wide_TX).scatter_(1, picked_TK, weights_T1.expand(picked_TK.shape))
        squares_T = wide_TX.logsumexp(-1).square() * lessons.weights_T
        likely_TX = wide_TX.softmax(-1) * weights_T1
        lessons.sums.add(self._block, choices_TX.sum(0), likely_TX.sum(0), squares_T.sum(), lessons.weights_T.sum())

    def teach(self, logits_TX: Tensor) -> Tensor:
        """The same logits, whose gradient then has that of these losses too."""
        lessons = self._lessons
        if lessons.pull_X is None or not torch.is_grad_enabled():
            return logits_TX
        taught_TX: Tensor = _Taught.apply(logits_TX, lessons.weights_T, lessons.pull_X, lessons.z)
        return taught_TX


class _Taught(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits_TX: Tensor, weights_T: Tensor, pull_X: Tensor, z: float) -> Tensor:
        ctx.save_for_backward(logits_TX, weights_T, pull_X)
        ctx.z = z
        return logits_TX.view_as(logits_TX)

    @staticmethod
    def backward(ctx: Any, grad_TX: Tensor) -> tuple[Tensor, None, None, None]:
        logits_TX, weights_T, pull_X = ctx.saved_tensors
        wide_TX = logits_TX.to(torch.promote_types(logits_TX.dtype, torch.float32))
        likely_TX, pull_X = wide_TX.softmax(-1), pull_X.to(wide_TX.dtype)
        pulled_TX = pull_X - (likely_TX @ pull_X)[:, None] + ctx.z * wide_TX.logsumexp(-1, keepdim=True)
        own_TX = likely_TX * pulled_TX * weights_T.to(wide_TX.dtype)[:, None]
        return grad_TX + own_TX.to(grad_TX.dtype), None, None, None
