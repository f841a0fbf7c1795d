"""A classifier that judges the sums of `support.hosts.write_task`, and pairs of answers to them."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from support.hosts import LETTERS
from transformers import LlamaConfig, LlamaForSequenceClassification


def write_judge(folder: Path, labels: int) -> torch.nn.Module:
    """judge/ beside model/, with the tokenizer of that."""
    torch.manual_seed(1)
    sizes: dict[str, Any] = {
        "vocab_size": len(LETTERS) + 1,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 24,
        "num_labels": labels,
    }
    model = LlamaForSequenceClassification(LlamaConfig(**sizes)).eval()
    model.save_pretrained(folder / "judge")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(folder / "model" / name, folder / "judge" / name)
    return model


def write_pairs(source: Path, target: Path) -> None:
    """Of each sum the right answer and a wrong one; every third has two pairs."""
    lines = []
    for number, row in enumerate(map(json.loads, source.read_text().splitlines())):
        count = 2 if number % 3 == 0 else 1
        wrong = [f"# {number + 3 * i + 40}"[: 2 + i + number % 3] for i in range(count)]
        lines.append({"prompt": row["prompt"], "chosen": [row["answer"]] * count, "rejected": wrong})
    target.write_text("".join(json.dumps(line) + "\n" for line in lines))
