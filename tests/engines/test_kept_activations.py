"""What a micro-batch keeps for its backward pass against the estimate that placement makes of it."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.tiny_models import CONFIGS, tiny_model

from hpcrl.config.model import TrainedModelConfig
from hpcrl.engines.engine import Sequences
from hpcrl.engines.model import PackedModel
from hpcrl.placement.layouts import Layout
from hpcrl.placement.memory import role_memory

SIZES = {
    "tied": True,
    "hidden_size": 128,
    "intermediate_size": 352,
    "blocks": 5,
    "heads": 4,
    "head_dim": 32,
    "max_positions": 256,
}


def kept(model, sequences):
    """Bytes of all storages that backward needs, parameters apart; and the tokens that the model read."""
    storages, tokens = {}, []
    parameters = model.transformer.memory.data.untyped_storage().data_ptr()

    def keep(tensor):
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    embed = model.transformer.embedding.register_forward_hook(lambda _, given, __: tokens.append(len(given[0])))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        predictions = model.forward(sequences, 1.0, with_entropy=False)
    embed.remove()
    assert predictions.log_probs.requires_grad
    return sum(size for place, (size, _) in storages.items() if place != parameters), tokens[0]


@pytest.mark.parametrize("config", [make(**SIZES) for make in CONFIGS.values()], ids=CONFIGS)
@pytest.mark.parametrize("shared", [False, True])
def test_what_a_micro_batch_keeps_is_within_a_tenth_of_the_estimate(shared, config):
    draw = np.random.default_rng(0)
    prompts = [prompt for prompt in draw.integers(0, 64, (4, 96)) for _ in range(6)]
    sequences = Sequences.from_rows(prompts, [draw.integers(0, 64, draw.integers(16, 48)) for _ in prompts])
    if not shared:
        sequences = replace(sequences, prompts=np.zeros(len(prompts), np.int64))
    model = PackedModel("actor", tiny_model(config, dtype=torch.float32))
    size, tokens = kept(model, sequences)
    role = TrainedModelConfig(path="m", micro_batch_tokens=tokens)
    assert size == pytest.approx(role_memory(config, 0, role, Layout()).activations, rel=0.1)
