"""A model given packed sequences: what it predicts of their labels. Knows nothing of micro-batches and of training."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from hpcrl.data.prefixes import cut_rows
from hpcrl.engines.engine import Columns, Sequences, take_rows
from hpcrl.engines.flat import FlatTransformer
from hpcrl.errors import InternalError
from hpcrl.models.output import Predictions
from hpcrl.models.packing import Packing


class PackedModel:
    """One role's model on its device; `role` is for messages."""

    def __init__(self, role: str, transformer: FlatTransformer) -> None:
        self.role = role
        self.transformer = transformer

    @property
    def gives_values(self) -> bool:
        """Whether it predicts a value before each label, and not the label's log-probability."""
        return self.transformer.config.head != "vocabulary"

    def forward(self, sequences: Sequences, temperature: float, with_entropy: bool) -> Predictions:
        """Predictions of the labels; the last token of a sequence predicts none, so the model never sees it.

        A prompt that several of the sequences begin with goes through the model once.
        """
        model, ends = self.transformer, np.cumsum(sequences.lengths)
        texts = cut_rows(sequences.lengths, sequences.prompts, sequences.prompt_numbers())
        inputs = torch.from_numpy(texts.inputs(sequences.tokens, sequences.lengths)).to(model.device, torch.int64)
        packing = Packing.of(texts.lengths, model.device, texts.prefixes)
        rows = [np.arange(end - count, end) for end, count in zip(ends, sequences.labels, strict=True)]
        labels = torch.from_numpy(sequences.tokens[np.concatenate(rows)]).to(model.device, torch.int64)
        labelled = torch.from_numpy(texts.label_rows(sequences.lengths, sequences.labels)).to(model.device)
        predictions = model(inputs, packing, labelled, labels, temperature=temperature, with_entropy=with_entropy)
        return replace(predictions, cu_labels=self._bounds(sequences.labels))

    def nothing(self) -> Predictions:
        """Predictions of no label."""
        nothing = torch.zeros(0, dtype=self._wide, device=self.transformer.device)
        return Predictions(nothing, nothing, nothing, self._bounds(np.zeros(0, np.int64)))

    def columns(self, columns: Columns, sequences: Sequences, rows: Sequence[int]) -> Mapping[str, torch.Tensor]:
        """The numbers of these rows and of their labels, in what losses are computed in."""
        picked = {name: take_rows(column, sequences.labels, rows) for name, column in columns.labels.items()}
        picked |= {name: column[np.asarray(rows, np.int64)] for name, column in columns.rows.items()}
        return {
            name: torch.from_numpy(column).to(self.transformer.device, self._wide) for name, column in picked.items()
        }

    def numbers(self, predictions: Predictions) -> np.ndarray:
        """A number for each label, on the host, float32."""
        chosen = predictions.values if self.gives_values else predictions.log_probs
        return chosen.float().cpu().numpy()

    def copied(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every parameter by name, of a copy in host memory."""
        memory = self.transformer.memory
        return memory.cut(memory.data.to("cpu", copy=True))

    def _bounds(self, labels: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.cumsum([0, *labels], dtype=np.int64)).to(self.transformer.device)

    @property
    def _wide(self) -> torch.dtype:
        return torch.promote_types(self.transformer.dtype, torch.float32)


def finite(role: str, what: str, rows: Iterable[np.ndarray]) -> np.ndarray:
    """All rows one after another. Raises InternalError where a number is not finite: the model has diverged."""
    numbers = np.concatenate([np.zeros(0, np.float32), *rows])
    if wrong := int((~np.isfinite(numbers)).sum()):
        raise InternalError(
            f"{role}: {wrong} of {len(numbers)} {what} are not finite; the model has diverged, or {role}.path "
            "has such weights.",
            f"If it is trained, begin from a checkpoint before that with a lower {role}.optimizer.lr: `hpcrl fork RUN "
            f"--step N --{role}.optimizer.lr …`. If not, submit a new run with another {role}.path.",
        )
    return numbers
