"""Speed of each model family against transformers: CPU seconds of one thread, medians of alternating rounds.

Models of about 5M parameters (6 blocks, hidden 256, 8/2 heads, vocabulary 4,096), windows of 64 tokens where a family
has them, on the texts of `models.py`: prompts of 48 tokens, responses of 8 … 256. Each figure is one JSON line.
"""

import tempfile

import models  # first: it sets the threads
import torch
import transformers

from hpcrl.engines.flat import new_model

SIZES = {
    "vocab_size": models.VOCABULARY,
    "hidden_size": 256,
    "intermediate_size": 640,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": True,
    "eos_token_id": None,
}
GPT2 = {
    "vocab_size": models.VOCABULARY,
    "n_embd": 256,
    "n_layer": 6,
    "n_head": 8,
    "n_positions": 1024,
    "eos_token_id": None,
}
FAMILIES = {
    "llama": ("Llama", "Llama", SIZES),
    "qwen3": ("Qwen3", "Qwen3", SIZES | {"head_dim": 32}),
    "mistral": ("Mistral", "Mistral", SIZES | {"sliding_window": 64}),
    "gemma": ("Gemma", "Gemma", SIZES | {"head_dim": 32}),
    "gemma2": ("Gemma2", "Gemma2", SIZES | {"head_dim": 32, "sliding_window": 64, "query_pre_attn_scalar": 32}),
    "gemma3_text": (
        "Gemma3Text",
        "Gemma3",
        SIZES | {"head_dim": 32, "sliding_window": 64, "query_pre_attn_scalar": 32},
    ),
    "gpt2": ("GPT2", "GPT2", GPT2),
}
"""What the names of its classes begin with, configuration and model, and what it is made of."""


def pair_of(family: str) -> models.Pair:
    configuration, model, fields = FAMILIES[family]
    config = getattr(transformers, f"{configuration}Config")(**fields)
    torch.manual_seed(0)
    theirs = getattr(transformers, model + ("LMHeadModel" if family == "gpt2" else "ForCausalLM"))(config).eval()
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        return models.pair(new_model(folder), theirs)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for family in FAMILIES:
        both = pair_of(family)
        models.skewed_training(both, 2.5, family)
        models.report(
            f"{family}: generation, skewed lengths, against generate",
            3.0,
            models.ours_generates(both, models.LONGEST, both.response_tokens),
            models.generate(both, models.LONGEST),
        )
