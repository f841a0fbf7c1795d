"""Given answers as sequences, and how likely a model finds them."""

import numpy as np

from hpcrl.data.samples import SequenceSample
from hpcrl.engines.engine import Engine, Sequences
from hpcrl.workers.host import Outcome, Work


def answers(batch: SequenceSample) -> Sequences:
    """prompts, answers, answer_mask → a sequence each."""
    return Sequences.from_rows(batch.rows("prompts"), batch.rows("answers"), mask=batch.rows("answer_mask"))


def losses(engine: Engine, work: Work) -> Outcome:
    """prompts, answers, answer_mask → losses, of each answer token; their mean over those that count."""
    sequences = answers(work.batch)
    losses_N = -engine.forward(sequences)
    rows = np.split(losses_N, np.cumsum(sequences.labels)[:-1])
    learnt = losses_N[sequences.mask]
    total = (float(learnt.sum(dtype=np.float64)), float(len(learnt)))
    return Outcome(SequenceSample.from_rows(work.batch.ids, {"losses": rows}), {"loss": total, "perplexity": total})
