"""What a backend gives the algorithms: one model over the ranks of its role, with its optimizer if it is trained.

Shape legend: B sequences; L tokens of all of them; P labels of all of them (the tokens whose prediction counts).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from hpcrl.config.generation import GenerationConfig
from hpcrl.models.generation import Generated


@dataclass(frozen=True, eq=False)
class Sequences:
    """Packed token sequences on the host; of sequence i the last `labels[i]` tokens are predicted. No padding.

    Knows nothing of roles: for PPO the labels are the response, for SFT the answer.
    """

    tokens: np.ndarray  # int [L]
    lengths: np.ndarray  # int64 [B]
    labels: np.ndarray  # int64 [B], 1 ≤ labels < lengths

    def __post_init__(self) -> None:
        if self.tokens.shape != (int(self.lengths.sum()),):
            raise ValueError(f"tokens has shape {self.tokens.shape}, but the lengths add up to {self.lengths.sum()}")
        wrong = np.flatnonzero((self.labels < 1) | (self.labels >= self.lengths))
        if len(wrong):
            i = int(wrong[0])
            raise ValueError(
                f"sequence {i} of {self.lengths[i]} tokens has {self.labels[i]} labels; it needs at least one label "
                "and, before it, at least one token to predict it from"
            )

    def __len__(self) -> int:
        return len(self.lengths)

    @staticmethod
    def from_rows(prompts: Sequence[np.ndarray], responses: Sequence[np.ndarray]) -> "Sequences":
        rows = [part for pair in zip(prompts, responses, strict=True) for part in pair]
        return Sequences(
            tokens=np.concatenate(rows) if rows else np.zeros(0, np.int32),
            lengths=np.array([len(p) + len(r) for p, r in zip(prompts, responses, strict=True)], np.int64),
            labels=np.array([len(r) for r in responses], np.int64),
        )

    def select(self, rows: Sequence[int]) -> "Sequences":
        where = np.asarray(rows, np.int64)
        return Sequences(take_rows(self.tokens, self.lengths, where), self.lengths[where], self.labels[where])


def take_rows(packed: np.ndarray, lengths: np.ndarray, rows: Sequence[int] | np.ndarray) -> np.ndarray:
    """The given rows of a packed array, one after another."""
    ends = np.cumsum(lengths)
    parts = [packed[ends[i] - lengths[i] : ends[i]] for i in rows]
    return np.concatenate(parts) if parts else packed[:0]


@dataclass(frozen=True, eq=False)
class Predictions:
    """What a model says of P labels, on the engine's device: at least fp32 [P], or [0] where it says nothing of it."""

    log_probs: torch.Tensor
    entropy: torch.Tensor
    values: torch.Tensor


Columns = Mapping[str, np.ndarray]
"""name → one number per label, [P] in the order of the sequences."""

Loss = Callable[[Predictions, Mapping[str, torch.Tensor]], tuple[torch.Tensor, Mapping[str, torch.Tensor]]]
"""(predictions, columns as tensors) of one micro-batch → (its share of the loss, statistics to be added up).

Shares add up over micro-batches and ranks, so the columns carry weights with global denominators. Of a rank without
rows the loss is asked with P = 0.
"""

Totals = Mapping[str, float]
"""Statistics of a whole mini-batch, added up over micro-batches and ranks in float64; "loss" is one of them."""


@dataclass(frozen=True)
class TrainResult:
    """What became of one mini-batch. `grad_norm` is that before clipping; None where no step was made."""

    totals: Totals
    grad_norm: float | None

    @property
    def stepped(self) -> bool:
        return self.grad_norm is not None


Shard = tuple[Mapping[str, np.ndarray], Mapping[str, Any]]
"""Arrays and JSON-able numbers of one rank's part of the state."""

Writer = Callable[[Path], None]
"""Writes a model's folder in Hugging Face format, from any thread."""


class Engine(Protocol):
    """A model that is not trained. Hides layout and micro-batches.

    All ranks of the role call the same methods in the same order, each with the rows of its data-parallel part.
    """

    def total(self, vector: torch.Tensor) -> torch.Tensor:
        """The sum of a float64 vector over all data-parallel parts, added up in rank order."""
        ...

    def forward(self, sequences: Sequences, temperature: float = 1.0) -> np.ndarray:
        """Log-probabilities (of a critic: values) of all labels, float32 [P]. A value is that *before* its label."""
        ...

    def generate(self, prompts: Sequence[np.ndarray], seeds: Sequence[int], config: GenerationConfig) -> Generated:
        """One response to each prompt; what is drawn for a prompt follows from its seed alone."""
        ...

    def export(self) -> Writer | None:
        """Copy the weights now; what is returned writes them later. None on a rank that has nothing to write."""
        ...

    def release(self) -> None:
        """Keep everything in host memory only, until `restore`. Nothing else may be called between the two."""
        ...

    def restore(self) -> None: ...


class TrainableEngine(Engine, Protocol):
    """A model with its optimizer, all of whose workings are hidden."""

    def train_batch(
        self,
        sequences: Sequences,
        columns: Columns,
        loss: Loss,
        learning_rate: float,
        *,
        temperature: float = 1.0,
        with_entropy: bool = False,
        accept: Callable[[Totals], bool] | None = None,
    ) -> TrainResult:
        """Gradients of the loss over the mini-batch of all ranks (here is this rank's share), then one optimizer step.

        Where `accept` refuses the totals nothing is changed at all, momentum and weight decay included. Raises
        InternalError where the gradient is not finite.
        """
        ...

    def state(self) -> Shard:
        """A copy of this rank's part of parameters and optimizer."""
        ...

    def load_state(self, shards: Iterable[Shard]) -> None:
        """Take over what `state` gave on all ranks of any layout."""
        ...

    def digest(self) -> str:
        """Checksum of parameters, moments and number of updates over all ranks, equal on all of them."""
        ...
