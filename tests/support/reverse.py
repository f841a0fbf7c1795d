"""Eight letters are to be written backwards: a task on which a policy shows in seconds of one core whether it learns.

After a few steps of supervised fine-tuning a model of 0.1 million parameters gets no held-out text wholly right, and a
few letters; the reward is the share of right places. Positions of the model are learned ones: a place to read that
depends on the place to write is what rotary positions, which know distances only, take much longer to find.
"""

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support.learning import exported, submit, write_config

from hpcrl.families import gpt2
from hpcrl.families.config import DecoderConfig
from hpcrl.models.pretrained import write_random_pretrained

LETTERS = "abcdefghij>"
LENGTH = 8
ROWS = 8192
HELD_OUT = 400
FINE_TUNING_STEPS = 40
ACCURACY = "eval_rew/accuracy"
RIGHT = 0.95
"""Where a run has learnt the task and stops."""
REWARD = '''
def right_places(prompt, response, row):
    """The share of places with the right letter; a response that is too long has a place more."""
    answer = row["answer"]
    places = max(len(answer), len(response))
    return sum(a == b for a, b in zip(answer, response)) / places


def wrong_places(prompt, response, row):
    """The share of wrong places, as a loss: -1 to 0, so that nothing is better than not to be scored."""
    return right_places(prompt, response, row) - 1
'''


def write(folder: Path, seed: int) -> None:
    """rows.jsonl, held_out.jsonl, reward.py, model/ that has seen none of it, and started/, fine-tuned a little."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(seed)
    texts = ["".join(draw.choice(LETTERS[:-1]) for _ in range(LENGTH)) for _ in range(ROWS + HELD_OUT)]
    rows = [{"id": str(i), "prompt": f"{text}>", "answer": text[::-1]} for i, text in enumerate(texts)]
    for name, part in (("rows.jsonl", rows[:ROWS]), ("held_out.jsonl", rows[ROWS:])):
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in part))
    (folder / "reward.py").write_text(REWARD)
    write_random_pretrained(folder / "model", decoder(), seed)
    write_tokenizer(folder / "model")
    values = settings(folder, seed, "sft", FINE_TUNING_STEPS)
    values["actor"] |= {"path": str(folder / "model")}
    values["data"] |= {"batch_size": 64}
    submit(write_config(folder / "sft.yaml", values), folder / "sft")
    exported(folder / "sft", "actor").rename(folder / "started")


def decoder() -> DecoderConfig:
    choices: Any = dict(gpt2.CHOICES)
    return DecoderConfig(
        family="gpt2",
        vocabulary_size=len(LETTERS) + 1,
        hidden_size=64,
        intermediate_size=256,
        blocks=2,
        heads=4,
        kv_heads=4,
        head_dim=16,
        max_positions=32,
        tied=True,
        **choices,
    )


def settings(folder: Path, seed: int, algorithm: str, steps: int) -> dict[str, Any]:
    """A run of an algorithm on the task, of so many steps at most."""
    optimizer = {"lr": 1e-3, "betas": [0.9, 0.95], "weight_decay": 0.0}
    model = {"path": str(folder / "started"), "optimizer": optimizer}
    values: dict[str, Any] = {
        "algorithm": algorithm,
        "seed": seed,
        "cluster": {"workers_per_node": 1, "device": "cpu"},
        "data": {"train": str(folder / "rows.jsonl"), "evaluate": str(folder / "held_out.jsonl"), "batch_size": 256},
        "actor": model,
        "reward": {"function": f"{folder / 'reward.py'}:right_places"},
        "generation": {"max_new_tokens": LENGTH + 1, "slots": 256},
        "control": {"steps": steps, "evaluate": {"steps": 15}, "stop_when": f"{ACCURACY} >= {RIGHT}"},
    }
    if algorithm == "ppo":
        values["critic"] = model
    if algorithm != "sft":
        values[algorithm] = {"minibatches": 2}
    return values


def grouped(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same number of responses, eight to a prompt."""
    return {**values, "data": {**values["data"], "batch_size": 32, "samples_per_prompt": 8}}


def write_tokenizer(folder: Path) -> None:
    """A letter a token, and one that ends a text."""
    vocabulary = {letter: number for number, letter in enumerate(LETTERS)} | {"<end>": len(LETTERS)}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    file = {
        "version": "1.0",
        "added_tokens": [{"id": len(LETTERS), "content": "<end>", **flags, "special": True}],
        "pre_tokenizer": {"type": "Split", "pattern": {"String": ""}, "behavior": "Isolated", "invert": False},
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<end>"},
    }
    (folder / "tokenizer.json").write_text(json.dumps(file))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>"}))
