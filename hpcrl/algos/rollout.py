"""The generate call of every algorithm: one response to each prompt, drawn from the sample's own seed."""

import numpy as np

from hpcrl.backends.engine import Engine, Sampling
from hpcrl.config.generation import GenerationConfig
from hpcrl.data.samples import SequenceSample, sample_seed
from hpcrl.placement.plan import CallPlan
from hpcrl.workers.roles import Outcome, Work


def generate(engine: Engine, config: GenerationConfig, run_seed: int, work: Work, call: CallPlan) -> Outcome:
    """prompts → responses, logprobs, finished. Evaluation is greedy."""
    seeds = [sample_seed(run_seed, work.step, work.call, sample_id) for sample_id in work.batch.ids]
    made = engine.generate(work.batch.rows("prompts"), seeds, _sampling(config, greedy=call.source == "eval"))
    rows = {
        "responses": [response.tokens for response in made],
        "logprobs": [response.log_probs for response in made],
        "finished": [np.array([response.finished]) for response in made],
    }
    count = float(len(made))
    stats = {
        "response_length": (float(sum(len(response.tokens) for response in made)), count),
        "finished": (float(sum(response.finished for response in made)), count),
    }
    return Outcome(SequenceSample.from_rows(work.batch.ids, rows), stats)


def _sampling(config: GenerationConfig, greedy: bool) -> Sampling:
    return Sampling(
        max_new_tokens=config.max_new_tokens,
        min_new_tokens=config.min_new_tokens,
        temperature=config.temperature,
        top_k=config.top_k,
        top_p=config.top_p,
        greedy=config.greedy or greedy,
        slots=config.slots,
    )
