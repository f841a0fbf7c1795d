"""Speed of a mixtral: CPU seconds of one thread, medians of alternating rounds.

8 experts of which each token gets 2, otherwise the model and the texts of `models.py`. Against transformers, and
against a dense model of the same family of blocks whose MLP is as large as those two experts. Each figure is one JSON
line.
"""

import tempfile
from collections.abc import Callable

import models  # first: it sets the threads
import numpy as np
import torch
import transformers

from hpcrl.engines.flat import new_model
from hpcrl.models.packing import Packing
from hpcrl.models.transformer import Transformer

INNER, PICKED = 320, 2
SIZES = {
    "vocab_size": models.VOCABULARY,
    "hidden_size": 256,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": True,
    "eos_token_id": None,
}
EXPERTS = {"num_local_experts": 8, "num_experts_per_tok": PICKED, "intermediate_size": INNER}


def both(name: str, **own: object) -> tuple[Transformer, transformers.PreTrainedModel]:
    """Ours and theirs."""
    config = getattr(transformers, f"{name}Config")(**SIZES, **own)
    torch.manual_seed(0)
    theirs = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        return new_model(folder), theirs


def trains(model: Transformer, pair: models.Pair) -> Callable[[], None]:
    """Forward and backward over all tokens of its texts."""
    draw = np.random.default_rng(1)
    lengths = [models.PROMPT_TOKENS + size for size in pair.response_tokens]
    tokens = torch.from_numpy(draw.integers(0, models.VOCABULARY, sum(lengths)))
    packing, labels = Packing.of(lengths), tokens.roll(-1)

    def step() -> None:
        (-model(tokens, packing, torch.arange(len(tokens)), labels).log_probs.mean()).backward()
        model.zero_grad()

    return step


if __name__ == "__main__":
    torch.set_num_threads(1)
    ours, theirs = both("Mixtral", **EXPERTS)
    dense, _ = both("Llama", intermediate_size=PICKED * INNER)
    pair = models.pair(ours, theirs)
    models.skewed_training(pair, 2.0, "mixtral")
    name = "mixtral: forward and backward, against a dense model with as many active parameters"
    models.report(name, 0.6, trains(ours, pair), trains(dense, pair))
