import numpy as np
import pytest
import torch
from support.tiny_models import CONFIGS, logits_of, tiny_model

from hpcrl.models.decoder import Decoder
from hpcrl.models.packing import Packing

PROMPTS = [np.array(prompt) for prompt in ([5, 9, 4], [7], [5, 9, 4], [8, 8, 8, 8, 8, 60], [7])]


def full_logits(model, tokens):
    """Logits after the last token, without a cache."""
    packing = Packing.of([len(tokens)])
    return logits_of(model, model.hidden(torch.tensor(tokens), packing, packing.last_rows()))[0]


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@torch.inference_mode()
def test_cached_steps_equal_the_whole_forward_pass(config):
    model = tiny_model(config(), dtype=torch.float64)
    decoder = Decoder(model, slots=6, longest=30)
    texts = [prompt.tolist() for prompt in PROMPTS]
    logits = torch.cat([decoder.prefill(PROMPTS[:2], 0), decoder.prefill(PROMPTS[2:], 2)])
    for step in range(20):
        for text, row in zip(texts, logits, strict=True):
            torch.testing.assert_close(row, full_logits(model, text), atol=1e-12, rtol=0)
        positions = torch.tensor([len(text) for text in texts])
        for place, text in enumerate(texts):
            text.append((7 * step + 13 * place) % 64)
        logits = decoder.decode(torch.tensor([text[-1] for text in texts]), positions, max(map(len, texts)))


@torch.inference_mode()
def test_one_row_alone_has_the_same_logits():
    model = tiny_model(dtype=torch.float64)
    decoder = Decoder(model, slots=1, longest=10)
    torch.testing.assert_close(decoder.prefill(PROMPTS[:1], 0)[0], full_logits(model, [5, 9, 4]), atol=1e-12, rtol=0)
    logits = decoder.decode(torch.tensor([33]), torch.tensor([3]), 4)
    assert logits.shape == (1, 64)
    torch.testing.assert_close(logits[0], full_logits(model, [5, 9, 4, 33]), atol=1e-12, rtol=0)
