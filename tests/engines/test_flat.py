import pytest
import torch
from support.tiny_models import odd_config, tiny_config, tiny_model

from hpcrl.engines.flat import FlatParameters
from hpcrl.families.reader import parameters_of
from hpcrl.models.packing import Packing
from hpcrl.placement.shards import WHOLE, Cut, held

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


@pytest.mark.parametrize("cut", [WHOLE, Cut(tensor=1, tp=2), Cut(tensor=3, tp=4, stage=1, pp=2)])
def test_spans_say_which_places_lie_where_in_the_buffers(cut):
    config = odd_config(heads=4, kv_heads=2, blocks=2, vocabulary_size=29, intermediate_size=24)
    wholes = {p.name: torch.arange(p.numel, dtype=torch.float64) + 1e6 * i for i, p in enumerate(parameters_of(config))}
    memory = FlatParameters(config, cut, torch.float64, torch.device("cpu"), trainable=True)
    for span in memory.spans:
        place = span.place
        here = memory.data.as_strided((place.rows, place.run), (span.step, 1), span.offset)
        assert (here == 0).all()
        there = wholes[place.parameter].as_strided((place.rows, place.run), (place.stride, 1), place.first)
        here.copy_(there + 1)
    offsets = dict(memory.layout.spans())
    for part in held(config, cut):
        view, of_itself = memory.views[part.parameter.name], torch.zeros(part.parameter.numel, dtype=torch.float64)
        for span in part.spans:
            place = span.place
            there = wholes[place.parameter].as_strided((place.rows, place.run), (place.stride, 1), place.first)
            of_itself.as_strided((place.rows, place.run), (span.step, 1), span.offset).copy_(there + 1)
        assert torch.equal(view.detach(), of_itself.view(part.parameter.shape)), part.parameter.name
        assert offsets[part.parameter] % 16 == 0
    assert memory.data.count_nonzero() == sum(span.place.numel for span in memory.spans)
