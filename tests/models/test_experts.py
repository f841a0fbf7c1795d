"""Experts against each row by itself: routing, ties, experts without a row and with all of them, gradients."""

import pytest
import torch
from support.tiny_models import mixtral_config, tiny_model

from hpcrl.families.config import Experts
from hpcrl.models import experts as module
from hpcrl.models.experts import RoutedExperts, Runs, grouped_product, picked

WIDTH, INNER = 6, 5


def made(experts, seed=0, dtype=torch.float64):
    draw = torch.Generator().manual_seed(seed)
    shapes = {
        "router": (WIDTH, experts.count),
        "experts_gate_up": (experts.count, WIDTH, 2 * experts.inner_size),
        "experts_down": (experts.count, experts.inner_size, WIDTH),
    }
    views = {
        name: torch.nn.Parameter(torch.randn(shape, generator=draw, dtype=dtype)) for name, shape in shapes.items()
    }
    return RoutedExperts(experts, "", views)


def slowly(block, x):
    """Row by row, expert by expert."""
    rows = []
    for row in x:
        likely = (row @ block.router_EX).softmax(-1)
        chosen = sorted(range(len(likely)), key=(-likely.detach()).tolist().__getitem__)[: block.experts.per_token]
        whole = likely[chosen].sum() if block.experts.normalized else 1
        added = torch.zeros_like(row)
        for expert in chosen:
            gate, up = (row @ block.gate_up_XEO[expert]).chunk(2)
            added = added + likely[expert] / whole * (torch.nn.functional.silu(gate) * up @ block.down_XIE[expert])
        rows.append(added)
    return torch.stack(rows)


def rows_of(count, seed=1, dtype=torch.float64):
    return torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(seed), dtype=dtype).requires_grad_()


def learned(block, x, forward):
    """What comes out, and the gradients of the rows and of all matrices."""
    inputs = [x, *block.parameters()]
    result = forward(x)
    weights = torch.linspace(-1, 1, result.numel(), dtype=result.dtype).view_as(result)
    return [result, *torch.autograd.grad((result * weights).sum(), inputs)]


@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize(("count", "per_token", "rows"), [(4, 2, 50), (8, 3, 5), (1, 1, 3), (5, 5, 9), (6, 1, 1)])
def test_results_and_gradients_are_those_of_each_row_by_itself(count, per_token, rows, normalized):
    block, x = made(Experts(count, per_token, INNER, normalized)), rows_of(rows)
    for ours, slow in zip(learned(block, x, block), learned(block, x, lambda x: slowly(block, x)), strict=True):
        torch.testing.assert_close(ours, slow, rtol=1e-11, atol=1e-11)


def test_an_expert_with_all_rows_and_one_without_any():
    block, x = made(Experts(4, 1, INNER)), rows_of(12)
    with torch.no_grad():
        x.abs_()
        block.router_EX.zero_()[:, 2] = 1
    found, slow = learned(block, x, block), learned(block, x, lambda x: slowly(block, x))
    gradient = found[3]
    assert gradient[2].abs().min() > 0 and gradient[[0, 1, 3]].abs().max() == 0
    for ours, theirs in zip(found, slow, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11)


def test_of_equally_likely_experts_the_first_are_picked():
    logits = torch.tensor([[1.0, 2, 1, 2, 1, 2], [0.0, 0, 0, 0, 0, 0]])
    weights, chosen = picked(logits, Experts(6, 4, INNER))
    assert chosen.tolist() == [[1, 3, 5, 0], [0, 1, 2, 3]]
    torch.testing.assert_close(weights[1], torch.full((4,), 0.25))
    many = torch.zeros(300, 128)
    assert picked(many, Experts(128, 8, INNER))[1].tolist() == [list(range(8))] * 300


def test_half_precision_is_routed_in_float32():
    logits = torch.tensor([[3.0, 2.99]]).to(torch.bfloat16)
    weights, _ = picked(logits, Experts(2, 2, INNER))
    torch.testing.assert_close(weights.float(), logits.float().softmax(-1), rtol=0, atol=2**-9)


def test_a_row_has_the_same_bits_in_any_company():
    """Also where it is its expert's only one."""
    block, x = made(Experts(4, 2, INNER), dtype=torch.float32), rows_of(40, dtype=torch.float32)
    block.router_EX.data.mul_(3)
    with torch.no_grad():
        together = block(x)
        for count in (4, 7, 19):
            assert torch.equal(block(x[:count]), together[:count])


def test_bits_are_the_same_every_time():
    block, x = made(Experts(4, 2, INNER), dtype=torch.float32), rows_of(40, dtype=torch.float32)
    first, again = learned(block, x, block), learned(block, x, block)
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))


def test_one_kernel_for_all_experts_gives_what_they_give_one_by_one(monkeypatch):
    """torch's own, which a GPU has; here by its kernel for CPUs."""
    draw = torch.Generator().manual_seed(0)
    rows = torch.randn(40, 16, generator=draw).bfloat16().requires_grad_()
    matrices = torch.randn(5, 16, 8, generator=draw).bfloat16().requires_grad_()
    weights = torch.randn(40, 8, generator=draw).bfloat16()
    ends = torch.tensor([3, 3, 20, 39, 40], dtype=torch.int32)

    def found():
        product = grouped_product(rows, matrices, ends)
        return [product, *torch.autograd.grad((product * weights).sum(), (rows, matrices))]

    one_by_one = found()
    monkeypatch.setattr(module, "_is_grouped_at_once", lambda *_: True)
    for at_once, expected in zip(found(), one_by_one, strict=True):
        torch.testing.assert_close(at_once.float(), expected.float(), rtol=0.02, atol=0.02)


def test_runs_name_each_choice_once():
    runs = Runs.of(torch.tensor([[2, 0], [2, 3], [0, 2]]), 5)
    assert runs.order.tolist() == [1, 4, 0, 2, 5, 3]
    assert runs.order[runs.inverse].tolist() == list(range(6))
    assert runs.ends.tolist() == [2, 2, 5, 6, 6]


def test_all_experts_of_a_new_model_are_different_and_normal():
    model = tiny_model(mixtral_config())
    matrices = model.views["layers.1.experts_down"]
    assert len({tuple(matrix.flatten().tolist()) for matrix in matrices}) == 5
    assert 0.15 < float(matrices.std()) < 0.25
