"""Speed of hpcrl.models against transformers: CPU seconds of one thread, medians of alternating rounds in one process.

A qwen2 of 5M parameters (6 blocks, hidden 256, 8/2 heads, vocabulary 4,096, tied), 16 prompts × 4 samples, sampled at
temperature 1. Skewed responses are 8 … 256 tokens long, spread evenly in the logarithm. Each figure is one JSON line.
Both sides are run once before they are timed.
"""

import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")

import numpy as np
import torch
import transformers

from hpcrl.engines.flat import new_model
from hpcrl.models.generation import GenerationOptions, Generator
from hpcrl.models.packing import Packing
from hpcrl.models.transformer import Transformer

ROUNDS = 3
PROMPTS, SAMPLES, PROMPT_TOKENS = 16, 4, 48
EQUAL_TOKENS = 128
SHORTEST, LONGEST = 8, 256
VOCABULARY = 4096


@dataclass(frozen=True)
class Pair:
    """One model on both sides, and what both are given."""

    ours: Transformer
    theirs: Any
    prompts: list[np.ndarray]
    response_tokens: list[int]


def build() -> Pair:
    config = transformers.Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=640,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        eos_token_id=None,
    )
    torch.manual_seed(0)
    theirs = transformers.Qwen2ForCausalLM(config).eval()
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        return pair(new_model(folder), theirs)


def pair(ours: Transformer, theirs: Any) -> Pair:
    """With the prompts, and lengths of the responses, that all models are given."""
    numbers = np.random.default_rng(0)
    texts = [numbers.integers(0, VOCABULARY, PROMPT_TOKENS) for _ in range(PROMPTS)]
    rows = PROMPTS * SAMPLES
    lengths = [round(SHORTEST * (LONGEST / SHORTEST) ** (row / (rows - 1))) for row in range(rows)]
    random.Random(0).shuffle(lengths)
    return Pair(ours, theirs, [text for text in texts for _ in range(SAMPLES)], lengths)


def equal_generation(pair: Pair) -> None:
    report(
        "generation, equal lengths, against generate",
        1.25,
        ours_generates(pair, EQUAL_TOKENS),
        generate(pair, EQUAL_TOKENS),
    )


def skewed_generation(pair: Pair) -> None:
    ours = ours_generates(pair, LONGEST, pair.response_tokens)
    report("generation, skewed lengths, against generate", 2.2, ours, generate(pair, LONGEST))
    report("generation, skewed lengths, against continuous batching", 2.2, ours, ContinuousBatching(pair))


def skewed_training(pair: Pair, target: float = 2.2, of: str = "") -> None:
    numbers = np.random.default_rng(1)
    responses = [torch.from_numpy(numbers.integers(0, VOCABULARY, size)) for size in pair.response_tokens]
    prompts = [torch.from_numpy(prompt) for prompt in pair.prompts]

    def packed() -> None:
        packing = Packing.of(
            [len(prompt) + len(response) - 1 for prompt, response in zip(prompts, responses, strict=True)]
        )
        tokens = torch.cat([part for pair in zip(prompts, responses, strict=True) for part in (pair[0], pair[1][:-1])])
        hidden = pair.ours.hidden(tokens, packing, packing.tail_rows(pair.response_tokens))
        (-pair.ours.last.logprobs(hidden, torch.cat(responses))[0].mean()).backward()
        pair.ours.zero_grad()

    def padded() -> None:
        width = PROMPT_TOKENS + max(pair.response_tokens)
        tokens = torch.zeros(len(prompts), width, dtype=torch.int64)
        mask, labels = torch.zeros_like(tokens), torch.full_like(tokens, -100)
        for row, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
            end = PROMPT_TOKENS + len(response)
            tokens[row, :end] = torch.cat([prompt, response])
            mask[row, :end] = 1
            labels[row, PROMPT_TOKENS:end] = response
        pair.theirs(input_ids=tokens, attention_mask=mask, labels=labels, use_cache=False).loss.backward()
        pair.theirs.zero_grad()

    name = "forward and backward, skewed lengths, packed against padded"
    report(f"{of}: {name}" if of else name, target, packed, padded)


def ours_generates(pair: Pair, longest: int, limits: list[int] | None = None) -> Callable[[], None]:
    generator = Generator(pair.ours, GenerationOptions(longest))

    def run() -> None:
        generator.generate(pair.prompts, range(len(pair.prompts)), limits)

    return run


def generate(pair: Pair, longest: int) -> Callable[[], None]:
    """Their static batch: as long as its longest row."""
    prompts = torch.from_numpy(np.stack(pair.prompts[::SAMPLES]))
    config = transformers.GenerationConfig(
        max_new_tokens=longest,
        min_new_tokens=longest,
        do_sample=True,
        top_k=0,
        num_return_sequences=SAMPLES,
        pad_token_id=0,
    )
    mask = torch.ones_like(prompts)

    def run() -> None:
        pair.theirs.generate(prompts, attention_mask=mask, generation_config=config)

    return run


class ContinuousBatching:
    """Their continuous batching with the best of six settings; the manager is kept, every row has its own limit."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        generation = transformers.GenerationConfig(
            max_new_tokens=LONGEST, do_sample=True, top_k=0, eos_token_id=-1, pad_token_id=0
        )
        batching = transformers.ContinuousBatchingConfig(
            num_blocks=720, page_size=32, max_batch_tokens=256, use_cuda_graph=False
        )
        self._manager = pair.theirs.init_continuous_batching(generation, batching)
        self._manager.start()

    def __call__(self) -> None:
        for prompt, limit in zip(self._pair.prompts, self._pair.response_tokens, strict=True):
            self._manager.add_request(prompt.tolist(), max_new_tokens=limit)
        finished = 0
        while finished < len(self._pair.prompts):
            result = self._manager.get_result(timeout=60)
            if result is None:
                raise RuntimeError("transformers' continuous batching gave no result within 60 s")
            finished += result.is_finished()

    def close(self) -> None:
        self._manager.stop(block=True)


def report(name: str, target: float, ours: Callable[[], None], theirs: Callable[[], None]) -> None:
    ours()
    theirs()
    seconds: dict[str, list[float]] = {"ours": [], "theirs": []}
    for _ in range(ROUNDS):
        for side, run in (("ours", ours), ("theirs", theirs)):
            begin = time.process_time()
            run()
            seconds[side].append(time.process_time() - begin)
    if isinstance(theirs, ContinuousBatching):
        theirs.close()
    mine, peer = (statistics.median(seconds[side]) for side in ("ours", "theirs"))
    figure = {"name": name, "ours": round(mine, 3), "theirs": round(peer, 3), "unit": "CPU s"}
    print(json.dumps(figure | {"ratio": round(peer / mine, 2), "target": target}), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    both = build()
    equal_generation(both)
    skewed_generation(both)
    skewed_training(both)
