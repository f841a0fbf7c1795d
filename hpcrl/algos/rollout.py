"""The generate call of every algorithm: responses to each prompt, drawn from the sample's own seed."""

from dataclasses import replace

import numpy as np

from hpcrl.config.generation import GenerationConfig
from hpcrl.data.samples import SequenceSample, grouped, sample_seed
from hpcrl.dataflow.graph import MFC
from hpcrl.engines.engine import Engine
from hpcrl.workers.host import Outcome, Work


def generate(engine: Engine, config: GenerationConfig, run_seed: int, work: Work, call: MFC) -> Outcome:
    """prompts → responses, logprobs, finished."""
    if call.dataset == "eval":
        return evaluate(engine, config, run_seed, work, call)
    return _respond(engine, replace(config, greedy=True) if call.greedy else config, run_seed, work, 1)


def evaluate(engine: Engine, config: GenerationConfig, run_seed: int, work: Work, call: MFC) -> Outcome:
    """As `generate`, drawn as evaluations are: several responses to a prompt are sub-sequences of its sample."""
    own = config.evaluation
    if call.greedy or own.temperature is None:
        wanted = replace(config, greedy=True)
    else:
        wanted = replace(config, temperature=own.temperature, greedy=False)
    return _respond(engine, wanted, run_seed, work, own.samples_per_prompt)


def _respond(engine: Engine, config: GenerationConfig, run_seed: int, work: Work, per_prompt: int) -> Outcome:
    """So many responses to each prompt, each from a seed of its own."""
    names = [name for sample in work.batch.ids for name in _names(sample, per_prompt)]
    seeds = [sample_seed(run_seed, work.step, work.call, name) for name in names]
    prompts = [prompt for prompt in work.batch.rows("prompts") for _ in range(per_prompt)]
    made = engine.generate(prompts, seeds, config)
    flat = {
        "responses": made.tokens,
        "logprobs": made.logprobs,
        "finished": [np.array([finished]) for finished in made.finished],
    }
    rows = {key: grouped(parts, [per_prompt] * len(work.batch.ids)) for key, parts in flat.items()}
    count = float(len(seeds))
    stats = {
        "response_length": (float(sum(map(len, made.tokens))), count),
        "finished": (float(sum(made.finished)), count),
    }
    return Outcome(SequenceSample.from_rows(work.batch.ids, rows), stats)


def _names(sample: str, count: int) -> list[str]:
    """What the seeds of a sample's responses come from: its id, where there is one."""
    return [sample] if count == 1 else [f"{sample}#{i}" for i in range(count)]
