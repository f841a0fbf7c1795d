"""The next tokens of rows that are being generated, from their logits. Knows no cache and no schedule.

Shapes: N rows, V this rank's tokens of the vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from hpcrl.models.sampling import SamplingOptions
from hpcrl.models.sampling_together import choose_together
from hpcrl.models.vocabulary import Vocabulary


class Draw:
    """A function of tensors on one device: it asks the host nothing, so that it may be recorded."""

    def __init__(
        self,
        sampling: SamplingOptions,
        vocabulary: Vocabulary,
        least: int,
        ending: Sequence[int],
        device: torch.device,
    ) -> None:
        """Before `least` tokens none of `ending` can come."""
        self._sampling = sampling
        self._vocabulary = vocabulary
        self._least = least
        self._ending = vocabulary.local(torch.tensor(ending, dtype=torch.int64, device=device))

    def __call__(self, logits_NV: Tensor, seeds_N: Tensor, counts_N: Tensor) -> tuple[Tensor, Tensor]:
        """The next token of each row, of which it has `counts_N` so far, and its log-probability. May change the
        logits."""
        if self._least and self._ending.numel():
            early = (counts_N < self._least)[:, None]
            logits_NV[:, self._ending] = logits_NV[:, self._ending].masked_fill(early, -torch.inf)
        return choose_together(logits_NV, seeds_N, counts_N, self._sampling, self._vocabulary)
