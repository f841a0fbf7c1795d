"""Configuration files and experiments to test with, over a model folder whose weights are an empty file."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpcrl.config import load
from hpcrl.config.validate import Check, bound_problems, section_problems
from hpcrl.plugins import names
from hpcrl.recipes.algorithm import ALGORITHMS, CATALOGUE
from hpcrl.recipes.check import algorithm_problems

KNOWN = names(ALGORITHMS)
VALUES: tuple[Check, ...] = (bound_problems, algorithm_problems, section_problems)
"""All checks that ask for no workers and no models."""

QWEN2_TINY: dict[str, Any] = {
    "model_type": "qwen2",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "tie_word_embeddings": True,
}


def write_inputs(folder: Path) -> None:
    """model/ and rows.jsonl, as a configuration names them."""
    model = folder / "model"
    model.mkdir(parents=True)
    (model / "config.json").write_text(json.dumps(QWEN2_TINY))
    (model / "model.safetensors").touch()
    (model / "tokenizer.json").write_text("{}")
    (folder / "rows.jsonl").write_text('{"prompt": "1+1=", "answer": "#### 2"}\n')


def ppo_values() -> dict[str, Any]:
    """The shortest valid configuration of PPO, relative to the folder of `write_inputs`."""
    return {
        "algorithm": "ppo",
        "control": {"steps": 3},
        "data": {"train": "rows.jsonl", "batch_size": 8, "max_prompt_tokens": 16},
        "actor": {"path": "model"},
        "critic": {"path": "model"},
        "reference": {"path": "model"},
        "reward": {"function": "gsm8k"},
        "generation": {"max_new_tokens": 16},
    }


def write_config(path: Path, values: dict[str, Any]) -> Path:
    """JSON is YAML."""
    path.write_text(json.dumps(values))
    return path


def load_config(path: Path | str, overrides: Sequence[str] = (), checks: Sequence[Check] = VALUES) -> Any:
    """The experiment of a file, whose values alone are checked unless a test asks for more."""
    return load.load_config(path, overrides, CATALOGUE, checks)
