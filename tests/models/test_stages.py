"""The stages of a model, one after another, against the whole model."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.tiny_models import (
    gemma2_config,
    gemma3_config,
    gpt2_config,
    mixtral_config,
    qwen3_config,
    tiny_config,
    tiny_model,
)

from hpcrl.data.slots import Move
from hpcrl.models.decoder import Decoder
from hpcrl.models.packing import Packing
from hpcrl.placement.shards import EMBEDDING, Cut

CONFIGS = {
    "tied": tiny_config(blocks=7, tied=True),
    "untied": tiny_config(blocks=4),
    "critic": tiny_config(blocks=4, tied=True, head="value"),
    "qwen3": qwen3_config(blocks=4),
    "gpt2": gpt2_config(blocks=4),
    "gemma2": gemma2_config(blocks=4),
    "gemma3": gemma3_config(blocks=4),
    "mixtral": mixtral_config(blocks=4),
}
CASES = [(name, pp) for name in CONFIGS for pp in (1, 2, 4)] + [("tied", 3)]
PACKING = Packing.of([23, 5, 9, 1, 12], prefixes=[-1, 0, 0, -1, -1])
TOKENS = torch.from_numpy(np.random.default_rng(1).integers(0, 64, 50))
ROWS = torch.tensor([49, 22, 22, 0, 30, 37])
LABELS = torch.tensor([5, 0, 63, 8, 8, 9])


def stages_of(config, pp, **options):
    return [tiny_model(config, dtype=torch.float64, cut=Cut(stage=stage, pp=pp), **options) for stage in range(pp)]


def numbers(predictions):
    return predictions.values if len(predictions.values) else predictions.log_probs


@pytest.mark.parametrize(("name", "pp"), CASES)
def test_predictions_and_gradients_equal_those_of_the_whole_model(name, pp):
    whole, line = tiny_model(CONFIGS[name], dtype=torch.float64), stages_of(CONFIGS[name], pp)
    expected = numbers(whole(TOKENS, PACKING, ROWS, LABELS, temperature=0.7))
    expected.square().sum().backward()
    left, entered = [], []
    given = TOKENS
    for stage in line[:-1]:
        left.append(stage.decoded(given, PACKING))
        given = stage.entrance(PACKING.tokens).copy_(left[-1].detach()).requires_grad_()
        entered.append(given)
    found = numbers(line[-1](given, PACKING, ROWS, LABELS, temperature=0.7))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    found.square().sum().backward()
    for out, behind in zip(reversed(left), reversed(entered), strict=True):
        out.backward(behind.grad)
    seen = {}
    for stage in line:
        for key, view in stage.views.items():
            seen[key] = seen[key] + view.grad if key in seen else view.grad
    assert seen.keys() == whole.views.keys()
    for key, gradient in seen.items():
        torch.testing.assert_close(gradient, whole.views[key].grad, rtol=0, atol=1e-11)


@pytest.mark.parametrize("pp", [2, 3])
def test_a_stage_holds_its_layers_alone(pp):
    line = stages_of(CONFIGS["tied"], pp)
    held = [name for stage in line for name in stage.views]
    assert sum(len(stage.blocks) for stage in line) == 7
    assert len(held) == len(set(held)) + 1 and held.count(EMBEDDING) == 2
    assert [stage.embedding is not None for stage in line] == [True] + [False] * (pp - 1)
    assert [stage.output is not None for stage in line] == [False] * (pp - 1) + [True]
    untied = stages_of(replace(CONFIGS["tied"], tied=False), pp)
    assert EMBEDDING not in untied[-1].views


@pytest.mark.parametrize(("name", "pp"), [case for case in CASES if case[0] != "critic"])
@torch.inference_mode()
def test_cached_steps_equal_those_of_the_whole_model(name, pp):
    whole = Decoder(tiny_model(CONFIGS[name], dtype=torch.float64), slots=5, longest=30)
    line = [Decoder(stage, slots=5, longest=30) for stage in stages_of(CONFIGS[name], pp)]
    prompts = [np.array(prompt) for prompt in ([5, 9, 4], [7], [5, 9, 4], [8, 8, 8, 60])]

    def prefill(first, rows):
        given = None
        for decoder in line:
            assert given is None or len(given) == decoder.prefill_rows(rows)
            given = decoder.prefill(rows, first, given)
        return given

    def decode(tokens, positions):
        given = None
        for decoder in line:
            assert given is None or len(given) == decoder.decode_rows(len(tokens))
            given = decoder.decode(tokens, positions, int(positions.max()) + 1, given)
        return given

    for first, rows in ((0, prompts[:3]), (3, prompts[3:])):
        torch.testing.assert_close(prefill(first, rows), whole.prefill(rows, first), rtol=0, atol=1e-12)
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    for step in range(6):
        if step == 3:
            for decoder in (whole, *line):
                decoder.leave([Move(3, 0)], 2)
            lengths = lengths[[3, 1]]
        tokens = (torch.arange(len(lengths)) * 13 + step * 7) % 64
        expected = whole.decode(tokens, lengths, int(lengths.max()) + 1)
        torch.testing.assert_close(decode(tokens, lengths), expected, rtol=0, atol=1e-12)
        lengths = lengths + 1
