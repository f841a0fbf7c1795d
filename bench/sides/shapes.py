"""The model, prompts and texts that all sides are given. Imported in the project's environment and in the peers'.

A qwen2 of 5M parameters: 6 blocks, hidden 256, 8/2 heads, vocabulary 4,096.
"""

import json
import random
from collections.abc import Sequence
from pathlib import Path

VOCABULARY = 4096
PAD = VOCABULARY
"""A token that is never sampled."""
PROMPTS, SAMPLES, PROMPT_TOKENS, RESPONSE_TOKENS = 16, 4, 48, 128
GROUPS, GROUP, GROUP_PROMPT_TOKENS = 8, 8, 96
"""Prompts of a step of a group method, the responses to each, and the length of the prompts, about GSM8K's."""
TEXTS, SHORTEST, LONGEST = 64, 8, 256


def write_model(folder: Path) -> None:
    from transformers import Qwen2Config, Qwen2ForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=640,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        eos_token_id=None,
        bos_token_id=None,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)


def prompts() -> list[list[int]]:
    """Each prompt as often as it is sampled from."""
    draw = random.Random(0)
    texts = [[draw.randrange(VOCABULARY) for _ in range(PROMPT_TOKENS)] for _ in range(PROMPTS)]
    return [text for text in texts for _ in range(SAMPLES)]


def group_prompts() -> list[list[int]]:
    """Each prompt of a group method, once."""
    draw = random.Random(2)
    return [[draw.randrange(VOCABULARY) for _ in range(GROUP_PROMPT_TOKENS)] for _ in range(GROUPS)]


def even_share(tokens: Sequence[int]) -> float:
    """A reward that costs nothing."""
    return sum(int(token) % 2 == 0 for token in tokens) / len(tokens)


def texts() -> list[tuple[list[int], list[int]]]:
    """Prompts with answers, 8 to 256 tokens long together, spread evenly in the logarithm; a quarter is prompt."""
    draw = random.Random(1)
    lengths = [round(SHORTEST * (LONGEST / SHORTEST) ** (row / (TEXTS - 1))) for row in range(TEXTS)]
    draw.shuffle(lengths)
    rows = [[draw.randrange(VOCABULARY) for _ in range(length)] for length in lengths]
    return [(row[: max(1, len(row) // 4)], row[max(1, len(row) // 4) :]) for row in rows]


def write_tokenizer(folder: Path) -> None:
    """A word a token, and one to pad with."""
    vocabulary = {f"t{token}": token for token in range(VOCABULARY)} | {"<pad>": PAD}
    file = {
        "version": "1.0",
        "added_tokens": [
            {
                "id": PAD,
                "content": "<pad>",
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
        ],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "t0"},
    }
    (folder / "tokenizer.json").write_text(json.dumps(file))
