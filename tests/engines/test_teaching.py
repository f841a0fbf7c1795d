"""Routers' own losses: those of transformers, and equal however rows are split over micro-batches and ranks."""

from functools import cache, partial

import numpy as np
import pytest
import torch
from support.layouts import ROWS, alone, columns_of, compare, objective, on_rank, worked
from support.pool import gloo_pool
from support.tiny import WITH_NOBODY, native
from support.tiny_models import hugging_face_model, mixtral_config
from support.wide import Wide

from hpcrl.engines.engine import Sequences, Update
from hpcrl.engines.flat import new_model
from hpcrl.engines.model import PackedModel
from hpcrl.engines.pipeline import Pipeline
from hpcrl.engines.teaching import taught_routers
from hpcrl.families.config import ROUTER_STATISTICS
from hpcrl.models.lessons import RouterLoss
from hpcrl.models.pretrained import load_pretrained
from hpcrl.placement.layouts import parse_layout

MODEL = mixtral_config(blocks=4)
LOSS = RouterLoss(aux=0.7, z=0.2)


def taught(model, sequences, loss, tokens=10_000):
    """The value of the losses, and their gradients alone."""
    packed = PackedModel("actor", model)
    pipeline = Pipeline(packed, WITH_NOBODY.pp, tokens)
    model.zero_grad()
    with taught_routers(loss, packed, pipeline, WITH_NOBODY, sequences) as told:
        pipeline.train(sequences, 1.0, False, lambda rows, predictions: 0 * predictions.log_probs.sum())
        value = told().loss
    return value, {name: view.grad.clone() for name, view in model.views.items()}


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe"])
def test_the_losses_are_those_of_transformers_over_all_blocks(family, tmp_path):
    """Also where a block has no experts. The z-loss is worked out by the router's logits."""
    theirs = hugging_face_model(family).double()
    theirs.set_experts_implementation("eager")
    theirs.save_pretrained(tmp_path / "model")
    ours = new_model(tmp_path / "model", dtype=torch.float64)
    text = np.random.default_rng(0).integers(0, 64, 40)
    sequences = Sequences.from_rows([text[:10]], [text[10:]])
    with Wide():
        found = theirs(torch.from_numpy(text[:-1])[None], output_router_logits=True)
        squares = torch.cat([logits.logsumexp(-1).square() for logits in found.router_logits]).mean()
    for loss, expected in ((RouterLoss(0.5), 0.5 * found.aux_loss), (RouterLoss(z=0.3), 0.3 * squares)):
        theirs.zero_grad()
        with Wide():
            expected.backward(retain_graph=True)
        value, gradients = taught(ours, sequences, loss)
        assert value == pytest.approx(expected.item(), rel=1e-6)  # theirs counts in float32
        copy = hugging_face_model(family).double()
        for parameter, of in zip(copy.parameters(), theirs.parameters(), strict=True):
            parameter.data.copy_(torch.zeros_like(of) if of.grad is None else of.grad)
        copy.save_pretrained(tmp_path / "gradients")
        scale = max(float(gradient.abs().max()) for gradient in gradients.values())
        for name, gradient in load_pretrained(tmp_path / "gradients")[1]:
            torch.testing.assert_close(
                gradients[name], gradient, rtol=0, atol=1e-6 * scale, msg=lambda m, n=name: n + m
            )
        assert scale > 1e-4


def test_the_gradients_are_those_of_the_value():
    """By differences; the shares of choices stay as they are where no choice changes."""
    model = native(config=MODEL)._model.transformer
    value, gradients = taught(model, ROWS, LOSS, tokens=40)
    for name in ("layers.1.router", "layers.3.router", "layers.2.qkv", "layers.0.embedding"):
        direction, view, step = torch.randn_like(gradients[name]), model.views[name].data, 1e-6
        view.add_(direction, alpha=step)
        ahead, _ = taught(model, ROWS, LOSS, tokens=40)
        view.sub_(direction, alpha=2 * step)
        behind, _ = taught(model, ROWS, LOSS, tokens=40)
        view.add_(direction, alpha=step)
        slope = float((gradients[name] * direction).sum())
        assert (ahead - behind) / (2 * step) == pytest.approx(slope, rel=1e-5, abs=1e-8), name
    assert value > 0


@pytest.mark.parametrize("tokens", [20, 60, 10_000])
def test_any_cut_into_micro_batches_gives_the_same(tokens):
    """Also where prompts are read once for several rows, and rows do not count."""
    counted = np.arange(len(ROWS)) % 4 != 0
    sequences = Sequences(**{**vars(ROWS), "counted": counted})
    lonely = Sequences(**{**vars(sequences), "prompts": np.zeros(len(ROWS), np.int64)})
    model = native(config=MODEL)._model.transformer
    value, gradients = taught(model, lonely, LOSS, tokens=1)
    found, again = taught(model, sequences, LOSS, tokens)
    assert found == pytest.approx(value, rel=1e-12)
    for name, gradient in again.items():
        torch.testing.assert_close(gradient, gradients[name], rtol=0, atol=1e-12)


@pytest.fixture(scope="module")
def expected():
    return cache(lambda: alone(MODEL, LOSS))


@pytest.mark.parametrize(
    "layout", ["t2p2", *(pytest.param(it, marks=pytest.mark.slow) for it in ("d2t2", "d2p2", "d2t2p2"))]
)
def test_a_layout_learns_as_one_process(layout, expected):
    layout = parse_layout(layout)
    split = [list(range(part, len(ROWS), layout.dp)) for part in range(layout.dp)]
    with gloo_pool(layout.size) as pool:
        compare(MODEL, layout, pool.run(on_rank, MODEL, layout, split, 40, LOSS), expected())


def test_a_part_without_rows_learns_with_the_others(expected):
    layout = parse_layout("d2")
    with gloo_pool(2) as pool:
        compare(MODEL, layout, pool.run(on_rank, MODEL, layout, [list(range(len(ROWS))), []], 40, LOSS), expected())


def test_without_weights_nothing_is_asked_and_nothing_changes(monkeypatch):
    asked = []
    monkeypatch.setattr(Pipeline, "visit", lambda *_: asked.append(1))
    plain, weightless = (
        worked(native(config=MODEL, **given), range(4), 1) for given in ({}, {"router_loss": RouterLoss()})
    )
    assert plain["digest"] == weightless["digest"] and asked == []


@pytest.mark.parametrize("tokens", [20, 10_000])
@pytest.mark.parametrize("loss", [RouterLoss(), LOSS], ids=["weightless", "weighed"])
def test_statistics_are_those_of_every_row_that_an_update_reads(loss, tokens):
    """Without weights, the last block's routers see the rows of labels alone. Worked out by what routers pick."""
    counted = np.arange(len(ROWS)) % 4 != 0
    sequences = Sequences(**{**vars(ROWS), "counted": counted})
    model = native(config=MODEL)._model.transformer
    packed = PackedModel("actor", model)
    pipeline = Pipeline(packed, WITH_NOBODY.pp, tokens)
    with taught_routers(loss, packed, pipeline, WITH_NOBODY, sequences) as told:
        pipeline.train(sequences, 1.0, False, lambda rows, predictions: predictions.log_probs.sum())
        totals = told().totals
    logits = routed(model, counted, labels_only=not loss.aux)
    rows, experts, per_token = torch.cat(logits), MODEL.experts.count, MODEL.experts.per_token
    shares = [torch.bincount(said.topk(per_token).indices.reshape(-1), minlength=experts) for said in logits]
    picked = sum(shares).double() / len(rows)
    expected = {
        "router_aux_loss": experts * float(picked @ rows.softmax(-1).mean(0)),
        "router_z_loss": float(rows.logsumexp(-1).square().mean()),
        "router_max_share": max(float(share.max().double() / share.sum()) for share in shares),
    }
    assert totals == {name: (pytest.approx(number, rel=1e-9), 1.0) for name, number in expected.items()}
    assert 1 / experts < expected["router_max_share"] <= 1 / per_token


def listened(heard, experts, given):
    heard.append(given[0] @ experts.router_EX)


def routed(model, counted, labels_only):
    """What each block's router says of every row that is read and counts, one text at a time."""
    said = [[] for _ in model.blocks]
    for number in np.flatnonzero(counted):
        one, own = ROWS.select([int(number)]), []
        listen = partial(listened, own)
        hooks = [block.mlp.experts.register_forward_pre_hook(listen) for block in model.blocks]
        with torch.no_grad():
            PackedModel("actor", model).rows(one)
        for hook in hooks:
            hook.remove()
        own[-1] = own[-1][-int(one.labels[0]) :] if labels_only else own[-1]
        for block, logits in zip(said, own, strict=True):
            block.append(logits)
    return [torch.cat(logits) for logits in said]


def test_a_model_without_experts_has_no_statistics_of_routers():
    result = native().train_batch(ROWS, columns_of(range(len(ROWS))), objective(True), Update(1, 0, 1))
    assert not set(result.totals) & set(ROUTER_STATISTICS)


def test_the_loss_of_an_update_has_the_routers_losses():
    engine, taught_engine = native(config=MODEL), native(config=MODEL, router_loss=LOSS)
    value, _ = taught(engine._model.transformer, ROWS, LOSS)
    losses = [
        each.train_batch(ROWS, columns_of(range(len(ROWS))), objective(True), Update(1, 0, 1)).loss
        for each in (engine, taught_engine)
    ]
    assert losses[1] - losses[0] == pytest.approx(value, rel=1e-9)
