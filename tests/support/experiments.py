"""Configuration files and experiments to test with, over a model folder whose weights are nothing but zeros."""

import json
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split

from hpcrl.config import load
from hpcrl.config.fields import settings
from hpcrl.config.validate import Check, bound_problems, section_problems
from hpcrl.families.reader import read_config
from hpcrl.families.stored import shapes
from hpcrl.plugins import names
from hpcrl.recipes.algorithm import ALGORITHMS, CATALOGUE, algorithm_of
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


ROWS = 64
CHARACTERS = "0123456789+-*=#. "


def write_inputs(folder: Path) -> None:
    """model/ and rows.jsonl, as a configuration names them."""
    model = folder / "model"
    write_model(model)
    vocabulary = {text: number for number, text in enumerate(["<end>", *CHARACTERS])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token=" "))
    tokenizer.pre_tokenizer = Split("", "isolated")
    tokenizer.decoder = Fuse()
    tokenizer.save(str(model / "tokenizer.json"))
    (model / "tokenizer_config.json").write_text('{"eos_token": "<end>"}')
    rows = ({"prompt": f"{number}+1=", "answer": f"#### {number + 1}"} for number in range(ROWS))
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def write_model(folder: Path, **changes: Any) -> Path:
    """config.json and weights that are zeros and take no space on disk, of a tiny qwen2 with changes."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(QWEN2_TINY | changes))
    header, end = {}, 0
    for name, shape in shapes(read_config(folder)).items():
        begin, end = end, end + 4 * prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    return folder


def ppo_values() -> dict[str, Any]:
    """A short configuration of PPO with all roles, relative to the folder of `write_inputs`."""
    return {
        "algorithm": "ppo",
        "control": {"steps": 3},
        "data": {"train": "rows.jsonl", "batch_size": 8, "max_prompt_tokens": 16},
        "actor": {"path": "model"},
        "critic": {"path": "model"},
        "reference": {"path": "model"},
        "reward": {"function": "gsm8k"},
        "generation": {"max_new_tokens": 16},
        "ppo": {"kl": {"mode": "reward"}},
    }


def values_of(algorithm: str) -> dict[str, Any]:
    """A short valid configuration of an algorithm of hpcrl's, relative to the folder of `write_inputs`."""
    own = list(settings(algorithm_of(algorithm).experiment))
    known = {setting.key for setting in own}
    sections = {name: values for name, values in ppo_values().items() if isinstance(values, dict)}
    fitting = {
        name: {key: value for key, value in values.items() if f"{name}.{key}" in known}
        for name, values in sections.items()
    }
    models = [setting.key.split(".")[0] for setting in own if setting.required and setting.key.endswith(".path")]
    filled = {name: {"path": "model"} for name in models} | {name: values for name, values in fitting.items() if values}
    return filled | {"algorithm": algorithm}


def write_config(path: Path, values: dict[str, Any]) -> Path:
    """JSON is YAML."""
    path.write_text(json.dumps(values))
    return path


def load_config(path: Path | str, overrides: Sequence[str] = (), checks: Sequence[Check] = VALUES) -> Any:
    """The experiment of a file, whose values alone are checked unless a test asks for more."""
    return load.load_config(path, overrides, CATALOGUE, checks)
