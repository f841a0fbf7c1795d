import torch
from support.tiny_models import tiny_config, tiny_model

from hpcrl.models.packing import Packing

PACKING = Packing.of((7, 40, 1, 40, 12))
TOKENS = torch.randint(0, 64, (100,), generator=torch.Generator().manual_seed(0))


def test_all_parameters_and_gradients_lie_in_the_flat_buffers():
    model = tiny_model(tiny_config(head="value"))
    hidden = model.hidden(TOKENS, PACKING)
    model.output.values(hidden).square().sum().backward()
    for parameter, offset in model.memory.layout.spans():
        part, view = slice(offset, offset + parameter.numel), model.views[parameter.name]
        assert torch.equal(model.memory.data[part].view(parameter.shape), view)
        assert torch.equal(model.memory.grad[part].view(parameter.shape), view.grad)
        assert view.grad.abs().sum() > 0, parameter.name
    assert set(model.views.values()) == set(model.parameters())


def test_gaps_of_alignment_stay_zero():
    model = tiny_model(tiny_config(hidden_size=20, heads=2, kv_heads=1, head_dim=10))
    model.output.logprobs(model.hidden(TOKENS, PACKING), TOKENS)[0].sum().backward()
    layout = model.memory.layout
    used = torch.zeros(layout.numel, dtype=torch.bool)
    for parameter, offset in layout.spans():
        used[offset : offset + parameter.numel] = True
    assert used.sum() == sum(parameter.numel for parameter in layout.parameters) < layout.numel
    assert model.memory.data[~used].abs().sum() == 0
    assert model.memory.grad[~used].abs().sum() == 0


def test_backward_adds_to_the_flat_gradient_and_zero_grad_keeps_its_views():
    model = tiny_model()
    for _ in range(2):
        model.hidden(TOKENS, PACKING).sum().backward()
    twice = model.memory.grad.clone()
    model.zero_grad()
    assert model.memory.grad.abs().sum() == 0
    model.hidden(TOKENS, PACKING).sum().backward()
    torch.testing.assert_close(2 * model.memory.grad, twice)


def test_bf16_gradients_accumulate_in_fp32():
    exact, rough = tiny_model(), tiny_model(dtype=torch.bfloat16)
    for model in (exact, rough):
        hidden = model.hidden(TOKENS, PACKING)
        model.output.logprobs(hidden, TOKENS)[0].mean().backward()
    assert rough.memory.grad.dtype == torch.float32
    similarity = torch.nn.functional.cosine_similarity(rough.memory.grad, exact.memory.grad, dim=0)
    assert similarity > 0.99


def test_a_frozen_model_has_no_gradient_and_builds_no_graph():
    model = tiny_model(trainable=False)
    assert model.memory.grad is None
    assert not model.hidden(TOKENS, PACKING).requires_grad
