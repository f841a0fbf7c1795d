"""The generate call of every algorithm: one response to each prompt, drawn from the sample's own seed."""

from dataclasses import replace

import numpy as np

from hpcrl.config.generation import GenerationConfig
from hpcrl.data.samples import SequenceSample, sample_seed
from hpcrl.dataflow.graph import MFC
from hpcrl.engines.engine import Engine
from hpcrl.workers.host import Outcome, Work


def generate(engine: Engine, config: GenerationConfig, run_seed: int, work: Work, call: MFC) -> Outcome:
    """prompts → responses, logprobs, finished."""
    seeds = [sample_seed(run_seed, work.step, work.call, sample_id) for sample_id in work.batch.ids]
    wanted = replace(config, greedy=True) if call.greedy else config
    made = engine.generate(work.batch.rows("prompts"), seeds, wanted)
    rows = {
        "responses": made.tokens,
        "logprobs": made.logprobs,
        "finished": [np.array([finished]) for finished in made.finished],
    }
    count = float(len(seeds))
    stats = {
        "response_length": (float(sum(map(len, made.tokens))), count),
        "finished": (float(sum(made.finished)), count),
    }
    return Outcome(SequenceSample.from_rows(work.batch.ids, rows), stats)
