"""Responses that are drawn a segment at a time against those that are drawn at once: CPU seconds of one thread, medians
of rounds in turn in one process. The difference is the prefills; spills and lines of a segment are milliseconds.

A qwen2 of 5M parameters (6 blocks, hidden 256, 8/2 heads, vocabulary 4,096, tied). Each figure is one JSON line.
"""

import json
import os
import statistics
import time
from collections.abc import Sequence

os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", HF_HUB_OFFLINE="1")

import numpy as np
import torch

from hpcrl.engines.flat import FlatTransformer
from hpcrl.families.config import DecoderConfig
from hpcrl.models.generation import GenerationOptions, Generator
from hpcrl.models.init import random_init

ROUNDS = 3
ROWS, SLOTS, PROMPT_TOKENS = 4, 4, 48
SEGMENT, LONGEST = 512, 4096
MODEL = DecoderConfig(
    family="qwen2",
    vocabulary_size=4096,
    hidden_size=256,
    intermediate_size=640,
    blocks=6,
    heads=8,
    kv_heads=2,
    head_dim=32,
    max_positions=8192,
    qkv_bias=True,
    tied=True,
)


class Sides:
    """One model; responses of given lengths, drawn either way."""

    def __init__(self, lengths: Sequence[int]) -> None:
        model = FlatTransformer(MODEL)
        model.load(random_init(MODEL, 0))
        self._lengths = list(lengths)
        numbers = np.random.default_rng(0)
        self._prompts = [numbers.integers(0, MODEL.vocabulary_size, PROMPT_TOKENS) for _ in lengths]
        self._generator = Generator(model, GenerationOptions(LONGEST, slots=SLOTS))

    def at_once(self) -> list[list[int]]:
        made = self._generator.generate(self._prompts, range(len(self._lengths)), self._lengths)
        return [tokens.tolist() for tokens in made.tokens]

    def in_segments(self) -> list[list[int]]:
        drawn = [np.zeros(0, np.int32) for _ in self._lengths]
        for until in range(SEGMENT, max(self._lengths) + SEGMENT, SEGMENT):
            rows = [row for row, tokens in enumerate(drawn) if len(tokens) < self._lengths[row]]
            limits = [min(until, self._lengths[row]) for row in rows]
            begun = [drawn[row] for row in rows]
            made = self._generator.generate([self._prompts[row] for row in rows], rows, limits, begun)
            for row, tokens in zip(rows, made.tokens, strict=True):
                drawn[row] = np.append(drawn[row], tokens)
        return [tokens.tolist() for tokens in drawn]


def report(name: str, target: float | None, lengths: Sequence[int]) -> None:
    sides = Sides(lengths)
    seconds: dict[str, list[float]] = {"at_once": [], "in_segments": []}
    for number in range(ROUNDS):
        found = {}
        for side in sorted(seconds, reverse=number % 2 == 1):
            begin = time.process_time()
            found[side] = getattr(sides, side)()
            seconds[side].append(time.process_time() - begin)
        same = sum(one == two for one, two in zip(*found.values(), strict=True))
    whole, cut = (statistics.median(seconds[side]) for side in ("at_once", "in_segments"))
    figure = {"name": name, "at_once": round(whole, 3), "in_segments": round(cut, 3), "alike": f"{same}/{len(lengths)}"}
    print(json.dumps(figure | {"ratio": round(cut / whole, 3), "target": target}), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    report("segments of 512 over none, responses of 4,096 tokens", 1.05, [LONGEST] * ROWS)
    spread = np.exp(np.random.default_rng(0).normal(0, 1, 2 * ROWS)) * 700
    report("the same, lengths lognormal with σ = 1", None, np.clip(spread, 64, LONGEST).astype(int).tolist())
