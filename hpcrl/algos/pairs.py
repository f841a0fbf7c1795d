"""What algorithms over pairs of answers have in common: their sequences, and numbers of them as rows of samples."""

from collections.abc import Sequence

import numpy as np
import torch

from hpcrl.algos.functional.sequences import sequence_sums
from hpcrl.data.samples import SequenceSample
from hpcrl.engines.engine import Labelled, Sequences


def pair_sequences(batch: SequenceSample, labelled: Labelled = "response") -> Sequences:
    """prompts, chosen, rejected → two sequences a pair, chosen and then rejected; all pairs of a row are one sample."""
    answers = [
        [side for pair in zip(chosen, rejected, strict=True) for side in pair]
        for chosen, rejected in zip(batch.parts("chosen"), batch.parts("rejected"), strict=True)
    ]
    counts = [len(of_row) for of_row in answers]
    return Sequences.from_rows(
        [prompt for prompt, count in zip(batch.rows("prompts"), counts, strict=True) for _ in range(count)],
        [answer for of_row in answers for answer in of_row],
        labelled=labelled,
        samples=np.arange(len(counts)).repeat(np.array(counts, np.int64)),
    )


def of_sides(
    numbers_B: np.ndarray, sequences: Sequences, batch: SequenceSample, chosen: str, rejected: str
) -> SequenceSample:
    """Numbers of sequences as rows of their samples, under a key for each side."""
    counts = np.bincount(sequences.samples, minlength=len(batch.ids))
    rows = np.split(numbers_B.astype(np.float32), np.cumsum(counts)[:-1]) if batch.ids else []
    sides = {chosen: [row[0::2] for row in rows], rejected: [row[1::2] for row in rows]}
    return SequenceSample.from_rows(batch.ids, sides)


def sums_of_labels(numbers_P: np.ndarray, sequences: Sequences) -> torch.Tensor:
    """Each sequence's sum, float64 [B]."""
    return sequence_sums(torch.from_numpy(numbers_P).double(), torch.from_numpy(np.cumsum([0, *sequences.labels])))


def mean(numbers: Sequence[float] | np.ndarray) -> tuple[float, float]:
    """A statistic of this part: the sum, and how many there are."""
    return float(np.sum(numbers, dtype=np.float64)), float(len(numbers))
