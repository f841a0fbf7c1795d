"""PPO with models of 7 billion parameters, of which there are shapes alone."""

from pathlib import Path
from typing import Any

from support.experiments import ppo_values, write_config, write_inputs, write_model

QWEN_7B: dict[str, Any] = {
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
}


def write_seven_billion(folder: Path, batch_size: int) -> Path:
    """Inputs, models, and a ppo.yaml of them with paths relative to the folder."""
    write_inputs(folder)
    write_model(folder / "model", **QWEN_7B)
    values = ppo_values()
    values["data"] |= {"train": "rows.jsonl", "batch_size": batch_size, "max_prompt_tokens": 512}
    values |= {role: {"path": "model", "dtype": "bf16"} for role in ("actor", "critic", "reference")}
    values["generation"] = {"max_new_tokens": 512}
    write_config(folder / "ppo.yaml", values)
    return folder
