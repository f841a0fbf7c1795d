"""A model given packed sequences: what it predicts of their labels. Knows nothing of micro-batches and of training."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch

from hpcrl.data.prefixes import Texts, cut_rows
from hpcrl.engines.engine import Columns, Sequences, take_rows
from hpcrl.engines.memory import HeldModel
from hpcrl.errors import InternalError
from hpcrl.models.output import Predictions
from hpcrl.models.packing import Packing
from hpcrl.placement.flops import ModelFlops, Text, flops_of

FIRST_ROW = np.zeros(1, np.int64)
"""Of a text that says nothing, what is asked for, weighs nothing, and is dropped."""


class Size(NamedTuple):
    """How much a micro-batch is: tokens that go through the model, those of its longest sequence, operations."""

    tokens: int
    longest: int
    forward: float
    backward: float


class PackedModel:
    """One role's model on its device; `role` is for messages."""

    def __init__(self, role: str, transformer: HeldModel) -> None:
        self.role = role
        self.transformer = transformer

    @cached_property
    def flops(self) -> ModelFlops | None:
        """Of what this rank has of it; None where nobody can say."""
        held = self.transformer
        return flops_of(held.trained_config, held.cut)

    @property
    def gives_values(self) -> bool:
        """Whether it predicts a value before each label, and not the label's log-probability."""
        return self.transformer.config.head != "vocabulary"

    @property
    def number(self) -> type[np.floating]:
        """What its numbers are on the host: float32, or float64 where it computes in that."""
        return np.float64 if self._wide == torch.float64 else np.float32

    def forward(
        self, sequences: Sequences, temperature: float, with_entropy: bool, given: torch.Tensor | None = None
    ) -> Predictions:
        """Predictions of the labels; the last token of a sequence predicts none, so the model never sees it.

        A prompt that several of the sequences begin with goes through the model once; of no sequences a token that
        says nothing goes through it. A last stage that is not the first is `given` the rows of the stage before.
        """
        model, texts = self.transformer, self._texts(sequences)
        tokens, at = _labels(sequences), texts.label_rows(sequences.lengths, sequences.labels)
        if not len(sequences):
            tokens = at = FIRST_ROW
        labels = torch.from_numpy(tokens).to(model.device, torch.int64)
        labelled = torch.from_numpy(at).to(model.device)
        packing = self._packing(sequences, texts)
        entering = self._tokens(sequences, texts) if given is None else given
        predictions = model(entering, packing, labelled, labels, temperature=temperature, with_entropy=with_entropy)
        bounds = self._bounds(sequences.labels)
        if not len(sequences):
            of_none = (predictions.log_probs[:0], predictions.entropy[:0], predictions.values[:0])
            return Predictions(*of_none, bounds)
        return predictions._replace(cu_labels=bounds)

    def size(self, sequences: Sequences) -> Size:
        """Of a pass over these sequences."""
        texts, flops = self._texts(sequences), self.flops
        tokens, longest = sum(texts.lengths), int(sequences.lengths.max(initial=0))
        if flops is None:
            return Size(tokens, longest, 0.0, 0.0)
        lengths = texts.lengths
        parts = [Text(own, lengths[at] if at >= 0 else 0) for own, at in zip(lengths, texts.prefixes, strict=True)]
        labels, lessons = int(sequences.labels.sum()), self.transformer.lessons
        picks = self.transformer.cut.is_last and (lessons is None or not lessons.teaches)
        passes = (flops.forward(parts, labels, picks=picks), flops.backward(parts, labels, picks=picks))
        return Size(tokens, longest, *passes)

    def rows(self, sequences: Sequences, given: torch.Tensor | None = None) -> torch.Tensor:
        """What the next stage is given; of the last stage, what its output module is."""
        texts = self._texts(sequences)
        packing = self._packing(sequences, texts)
        return self.transformer.decoded(self._tokens(sequences, texts) if given is None else given, packing)

    def entrance(self, sequences: Sequences) -> torch.Tensor:
        """Room for what a stage that is not the first is given."""
        return self.transformer.entrance(sum(self._texts(sequences).lengths))

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
        """A number for each label, on the host, of type `number`."""
        chosen = predictions.values if self.gives_values else predictions.log_probs
        return chosen.to(self._wide).cpu().numpy()

    def prompt_numbers(self, sequences: Sequences) -> np.ndarray:
        """int64 [B], equal for sequences that share their prompt here."""
        return sequences.prompt_numbers() if self.transformer.shares_prefixes else np.arange(len(sequences))

    def _texts(self, sequences: Sequences) -> Texts:
        return cut_rows(sequences.lengths, sequences.prompts, self.prompt_numbers(sequences))

    def _packing(self, sequences: Sequences, texts: Texts) -> Packing:
        """Of these texts; routers that are noted are told how many sequences that count each row is of."""
        packing, lessons = Packing.of(texts.lengths, self.transformer.device, texts.prefixes), self.transformer.lessons
        if lessons is not None:
            readers, device = texts.readers(sequences.counted).repeat(texts.lengths), packing.positions.device
            weights = torch.from_numpy(readers.astype(np.float64)).to(device)
            counted = sequences.counted.repeat(sequences.labels) if len(sequences) else FIRST_ROW
            of_labels = torch.from_numpy(counted.astype(np.float64)).to(device)
            lessons.weigh(weights if packing.order is None else weights[packing.order], of_labels)
        return packing

    def _tokens(self, sequences: Sequences, texts: Texts) -> torch.Tensor:
        read = texts.inputs(sequences.tokens, sequences.lengths)
        return torch.from_numpy(read).to(self.transformer.device, torch.int64)

    def _bounds(self, labels: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.cumsum([0, *labels], dtype=np.int64)).to(self.transformer.device)

    @property
    def _wide(self) -> torch.dtype:
        return torch.promote_types(self.transformer.dtype, torch.float32)


def _labels(sequences: Sequences) -> np.ndarray:
    """The token of each label."""
    ends = np.cumsum(sequences.lengths)
    rows = [np.arange(end - count, end) for end, count in zip(ends, sequences.labels, strict=True)]
    return sequences.tokens[np.concatenate(rows)] if rows else sequences.tokens


def finite(role: str, what: str, numbers: np.ndarray) -> np.ndarray:
    """The same numbers. Raises InternalError where one is not finite: the model has diverged."""
    if wrong := int((~np.isfinite(numbers)).sum()):
        raise InternalError(
            f"{role}: {wrong} of {len(numbers)} {what} are not finite; the model has diverged, or {role}.path "
            "has such weights.",
            f"If it is trained, begin from a checkpoint before that with a lower {role}.optimizer.lr: `hpcrl fork RUN "
            f"--step N --{role}.optimizer.lr …`. If not, submit a new run with another {role}.path.",
        )
    return numbers
