"""The further turns of responses that an environment has answered."""

import numpy as np

from hpcrl.config.generation import GenerationConfig
from hpcrl.data.samples import SequenceSample, sample_seed
from hpcrl.engines.engine import Engine
from hpcrl.workers.host import Outcome, Work


def go_on(engine: Engine, config: GenerationConfig, run_seed: int, work: Work) -> Outcome:
    """A further turn of the responses that are open, as long as generation.max_new_tokens leaves them."""
    batch = work.batch
    begun, is_open = batch.rows("responses"), [bool(row[0]) for row in batch.rows("open")]
    where = [i for i, more in enumerate(is_open) if more]
    made = engine.generate(
        [np.concatenate([batch.rows("prompts")[i], begun[i]]) for i in where],
        [sample_seed(run_seed, work.step, work.call, batch.ids[i]) for i in where],
        config,
        limits=[config.max_new_tokens - len(begun[i]) for i in where],
    )
    kinds = [row.dtype for row in batch.rows("logprobs")]
    rows: dict[str, list[np.ndarray]] = {
        "responses": [np.zeros(0, np.int32)] * len(batch.ids),
        "logprobs": [np.zeros(0, kind) for kind in kinds],
        "finished": [np.array([True])] * len(batch.ids),
    }
    for i, tokens, logprobs, finished in zip(where, made.tokens, made.logprobs, made.finished, strict=True):
        rows["responses"][i], rows["logprobs"][i], rows["finished"][i] = tokens, logprobs, np.array([finished])
    stats = {
        "response_length": (float(sum(map(len, made.tokens))), float(len(where))),
        "finished": (float(sum(made.finished)), float(len(where))),
    }
    return Outcome(SequenceSample.from_rows(batch.ids, rows), stats)
