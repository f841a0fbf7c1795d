"""What algorithms over pairs of answers have in common: their sequences, and numbers of them as rows of samples."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from hpcrl.algos.functional.losses import counted
from hpcrl.algos.functional.preferences import bradley_terry_loss
from hpcrl.algos.functional.sequences import sequence_sums
from hpcrl.data.samples import SequenceSample
from hpcrl.engines.engine import Engine, Labelled, Sequences, Statistic
from hpcrl.workers.host import Outcome, Work


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
    rows = np.split(numbers_B, np.cumsum(counts)[:-1]) if batch.ids else []
    sides = {chosen: [row[0::2] for row in rows], rejected: [row[1::2] for row in rows]}
    return SequenceSample.from_rows(batch.ids, sides)


def sums_of_labels(numbers_P: np.ndarray, sequences: Sequences) -> torch.Tensor:
    """Each sequence's sum, float64 [B]."""
    return sequence_sums(torch.from_numpy(numbers_P).double(), torch.from_numpy(np.cumsum([0, *sequences.labels])))


def of_pairs(
    loss_Q: torch.Tensor, row_weights_B: torch.Tensor, statistics: Mapping[str, torch.Tensor]
) -> tuple[torch.Tensor, Mapping[str, Statistic]]:
    """The loss of a batch, in which a pair has the weight of both its rows, and its statistics, each counted once."""
    weights_Q = 2 * row_weights_B[0::2]
    every_Q = torch.ones_like(weights_Q)
    return (weights_Q * loss_Q).sum(), {name: counted(row, every_Q) for name, row in statistics.items()}


def mean(numbers: Sequence[float] | np.ndarray) -> tuple[float, float]:
    """A statistic of this part: the sum, and how many there are."""
    return float(np.sum(numbers, dtype=np.float64)), float(len(numbers))


def scored(engine: Engine, work: Work, centring: float = 0.0) -> Outcome:
    """prompts, chosen, rejected, margins → chosen_scores, rejected_scores, of each pair. Changes nothing."""
    sequences = pair_sequences(work.batch, "after")
    scores_B = engine.forward(sequences)
    chosen_Q, rejected_Q = (torch.from_numpy(scores_B[side::2]).double() for side in (0, 1))
    margins_Q = torch.from_numpy(work.batch.data["margins"]).double()
    loss_Q = bradley_terry_loss(chosen_Q, rejected_Q, margins_Q, centring)
    stats = {name: mean(row.numpy()) for name, row in score_statistics(chosen_Q, rejected_Q).items()}
    sample = of_sides(scores_B, sequences, work.batch, "chosen_scores", "rejected_scores")
    return Outcome(sample, {"loss": mean(loss_Q.numpy()), **stats})


def score_statistics(chosen_Q: torch.Tensor, rejected_Q: torch.Tensor) -> Mapping[str, torch.Tensor]:
    """Name → a number for each pair."""
    return {
        "accuracy": (chosen_Q > rejected_Q).to(chosen_Q),
        "margin": chosen_Q - rejected_Q,
        "chosen": chosen_Q,
        "rejected": rejected_Q,
    }
