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
PAIRS, PAIR_PROMPT, ANSWER = 32, (16, 128), (16, 192)
"""Pairs of a step, and the least and the most tokens of their prompts and of each of their answers."""
ENDS, FILLS = 0, 1
"""The token that every answer of a pair ends with, and one that no pair has: what TRL pads with."""


def write_model(folder: Path, scores: bool = False) -> None:
    """With a head for tokens, or for the score of a text."""
    from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2ForSequenceClassification
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
        **({"num_labels": 1, "pad_token_id": FILLS} if scores else {}),
    )
    (Qwen2ForSequenceClassification if scores else Qwen2ForCausalLM)(config).save_pretrained(folder)


def prompts() -> list[list[int]]:
    """Each prompt as often as it is sampled from."""
    draw = random.Random(0)
    texts = [[draw.randrange(VOCABULARY) for _ in range(PROMPT_TOKENS)] for _ in range(PROMPTS)]
    return [text for text in texts for _ in range(SAMPLES)]


def limits(how: str) -> list[int]:
    """How long each response is to be: `equal`, or `skewed`, spread evenly in the logarithm."""
    rows = PROMPTS * SAMPLES
    if how == "equal":
        return [RESPONSE_TOKENS] * rows
    lengths = [round(SHORTEST * (LONGEST / SHORTEST) ** (row / (rows - 1))) for row in range(rows)]
    random.Random(0).shuffle(lengths)
    return lengths


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


def pairs() -> list[tuple[list[int], list[int], list[int]]]:
    """Prompts, chosen and rejected answers, their lengths spread evenly in the logarithm, apart from one another."""
    draw = random.Random(3)
    of_prompts, *of_answers = (_spread(draw, *bounds) for bounds in (PAIR_PROMPT, ANSWER, ANSWER))
    return [
        (_tokens(draw, prompt), [*_tokens(draw, chosen - 1), ENDS], [*_tokens(draw, rejected - 1), ENDS])
        for prompt, chosen, rejected in zip(of_prompts, *of_answers, strict=True)
    ]


def _spread(draw: random.Random, least: int, most: int) -> list[int]:
    lengths = [round(least * (most / least) ** (row / (PAIRS - 1))) for row in range(PAIRS)]
    draw.shuffle(lengths)
    return lengths


def _tokens(draw: random.Random, count: int) -> list[int]:
    return [draw.randrange(FILLS + 1, VOCABULARY) for _ in range(count)]


def word(token: int) -> str:
    """None is the beginning of another: what a tokenizer is told to be special it finds within words, too."""
    return f"t{token:04}"


def write_tokenizer(folder: Path) -> None:
    """A word a token, and one to pad with."""
    vocabulary = {word(token): token for token in range(VOCABULARY)} | {"<pad>": PAD}
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
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": word(0)},
    }
    (folder / "tokenizer.json").write_text(json.dumps(file))
