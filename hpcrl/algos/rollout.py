"""The generate call of every algorithm: responses to each prompt, drawn from the sample's own seed."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hpcrl.algos.in_flight import draw_on
from hpcrl.algos.turns import go_on
from hpcrl.config.generation import GenerationConfig
from hpcrl.data.samples import SequenceSample, grouped, sample_seed
from hpcrl.dataflow.graph import MFC
from hpcrl.dataflow.segment import Segment, segment_name
from hpcrl.engines.engine import Engine
from hpcrl.models.history import Generated
from hpcrl.workers.host import Outcome, Work

NO_TOKENS = np.zeros(0, np.int32)


def generate(engine: Engine, config: GenerationConfig, run_seed: int, work: Work, call: MFC) -> Outcome:
    """prompts → responses, logprobs, finished. Of a further turn: prompts, responses and logprobs so far, open → what
    it adds to those that are open, and nothing to the others."""
    if call.dataset == "eval":
        return evaluate(engine, config, run_seed, work, call)
    if call.in_rounds:
        return draw_on(engine, config, run_seed, work, call)
    return _respond(engine, replace(config, greedy=True) if call.greedy else config, run_seed, work, call, 1)


def evaluate(engine: Engine, config: GenerationConfig, run_seed: int, work: Work, call: MFC) -> Outcome:
    """As `generate`, drawn as evaluations are: several responses to a prompt are sub-sequences of its sample."""
    own = config.evaluation
    if call.greedy or own.temperature is None:
        wanted = replace(config, greedy=True)
    else:
        wanted = replace(config, temperature=own.temperature, greedy=False)
    return _respond(engine, wanted, run_seed, work, call, own.samples_per_prompt)


def _respond(
    engine: Engine, config: GenerationConfig, run_seed: int, work: Work, call: MFC, per_prompt: int
) -> Outcome:
    """So many responses to each prompt, each from a seed of its own."""
    if "open" in work.batch.keys:
        return go_on(engine, config, run_seed, work)
    names = [name for sample in work.batch.ids for name in _names(sample, per_prompt)]
    whole = work.call if call.segment is None else call.segment.whole(work.call)
    seeds = [sample_seed(run_seed, work.step, whole, name) for name in names]
    prompts = [prompt for prompt in work.batch.rows("prompts") for _ in range(per_prompt)]
    if call.segment is None:
        made, stats = engine.generate(prompts, seeds, config), dict[str, tuple[float, float]]()
    else:
        made, stats = _segment(engine, config, call.segment, work.batch, (prompts, seeds))
    flat = {
        "responses": made.tokens,
        "logprobs": made.logprobs,
        "finished": [np.array([finished]) for finished in made.finished],
    }
    rows = {key: grouped(parts, [per_prompt] * len(work.batch.ids)) for key, parts in flat.items()}
    count = float(len(seeds))
    if call.segment is None or call.segment.last:
        stats["response_length"] = (float(sum(map(len, made.tokens))), count)
        stats["finished"] = (float(sum(made.finished)), count)
    return Outcome(SequenceSample.from_rows(work.batch.ids, rows), stats)


def _segment(
    engine: Engine,
    config: GenerationConfig,
    segment: Segment,
    batch: SequenceSample,
    given: tuple[Sequence[np.ndarray], Sequence[int]],
) -> tuple[Generated, dict[str, tuple[float, float]]]:
    """The next tokens of the responses that have not ended, to prompts from seeds; of the last segment all tokens of
    all responses. `open` is the share of those that it continues."""
    prompts, seeds = given
    tokens, logprobs, finished = _begun(batch, segment.number, len(seeds))
    until = config.max_new_tokens if segment.last else config.until(segment.number)
    going = [row for row in range(len(seeds)) if not finished[row] and len(tokens[row]) < until]
    made = engine.generate(
        [prompts[row] for row in going],
        [seeds[row] for row in going],
        config,
        [tokens[row].astype(np.int32) for row in going],
        [until] * len(going),
    )
    found: list[tuple[np.ndarray, np.ndarray, bool]] = [
        (NO_TOKENS, of_row[:0], ended) for of_row, ended in zip(logprobs, finished, strict=True)
    ]
    for row, new in zip(going, zip(*made, strict=True), strict=True):
        found[row] = new
    stats = {"open": (float(len(going)), float(len(seeds)))}
    if segment.last:
        found = [
            (np.concatenate([begun, new]), np.concatenate([of_begun, of_new]), ended)
            for begun, of_begun, (new, of_new, ended) in zip(tokens, logprobs, found, strict=True)
        ]
    return Generated(*map(list, zip(*found, strict=True))), stats


def _begun(batch: SequenceSample, number: int, count: int) -> tuple[list[np.ndarray], list[np.ndarray], list[bool]]:
    """What the segments before one have drawn of so many responses: tokens, log-probabilities as far as they are read,
    and whether each has ended."""

    def of(key: str) -> list[np.ndarray]:
        names = [name for before in range(1, number) if (name := segment_name(key, before)) in batch.keys]
        columns = [[part for parts in batch.parts(name) for part in parts] for name in names]
        return [np.concatenate(row) for row in zip(*columns, strict=True)] if columns else [np.zeros(0)] * count

    return of("responses"), of("logprobs"), [bool(ended.any()) for ended in of("finished")]


def _names(sample: str, count: int) -> list[str]:
    """What the seeds of a sample's responses come from: its id, where there is one."""
    return [sample] if count == 1 else [f"{sample}#{i}" for i in range(count)]
