"""A task on which preferences are learnt in seconds of one core: of two answers, the one with more vowels wins.

Runs have no master: calls are made in one process, in the order of the graph.
"""

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support.hosts import run_of, write_model

from hpcrl.config.experiment import ExperimentConfig
from hpcrl.families.config import DecoderConfig
from hpcrl.models.pretrained import write_random_pretrained
from hpcrl.recipes.algorithm import experiment_from

LETTERS = "abcdefghij>"
VOWELS = "aei"
LENGTH = 8
ROWS = 4096
HELD_OUT = 400


def write_vowels(folder: Path, seed: int) -> None:
    """pairs.jsonl, held_out.jsonl, and in model/ a model that has seen none of it."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(seed)
    for name, count in (("pairs.jsonl", ROWS), ("held_out.jsonl", HELD_OUT)):
        (folder / name).write_text("".join(json.dumps(_pair(draw)) + "\n" for _ in range(count)))
    config = DecoderConfig(
        family="qwen2",
        vocabulary_size=len(LETTERS) + 1,
        hidden_size=64,
        intermediate_size=192,
        blocks=2,
        heads=4,
        kv_heads=4,
        head_dim=16,
        max_positions=32,
        qkv_bias=True,
        tied=True,
    )
    write_model(folder / "model", LETTERS, max_positions=32)
    write_random_pretrained(folder / "model", config, seed)


def vowels(text: str) -> int:
    return sum(text.count(vowel) for vowel in VOWELS)


def _pair(draw: random.Random) -> dict[str, str]:
    prompt, first, second = ("".join(draw.choice(LETTERS[:-1]) for _ in range(LENGTH)) for _ in range(3))
    if vowels(first) == vowels(second):
        return _pair(draw)
    chosen, rejected = sorted((first, second), key=vowels, reverse=True)
    return {"prompt": f"{prompt}>", "chosen": chosen, "rejected": rejected}


def preferring(folder: Path, algorithm: str, seed: int, lr: float, **sections: Mapping[str, Any]) -> ExperimentConfig:
    """An experiment of an algorithm over pairs on the task."""
    trained = {"dpo": "actor"}.get(algorithm, algorithm)
    optimizer = {"lr": lr, "betas": [0.9, 0.95], "schedule": "constant"}
    values: dict[str, Any] = {
        "algorithm": algorithm,
        "seed": seed,
        "control": {"steps": 1000, "evaluate": {"steps": 1}},
        "data": {"train": str(folder / "pairs.jsonl"), "evaluate": str(folder / "held_out.jsonl"), "batch_size": 64},
        trained: {"path": str(folder / "model"), "optimizer": optimizer},
    }
    if algorithm == "dpo":
        values["reference"] = {"path": str(folder / "model")}
    made: ExperimentConfig = experiment_from(values | sections)
    return made


def held_out_accuracy(experiment: ExperimentConfig, steps: int, export: tuple[str, Path] | None = None) -> float:
    """The share of held-out pairs that are put in the right order after so many steps; the model may be kept."""
    with run_of(experiment) as conductor:
        for step in range(1, steps + 1):
            conductor.step(step)
        if export is not None:
            conductor.export(*export)
        return conductor.evaluate(steps).mean("eval_pairs/accuracy")
