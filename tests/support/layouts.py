"""What engines in a layout say, learn and generate, beside one process that does all of it, in float64."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from support.cut_models import assembled
from support.tiny import native

from hpcrl.algos.functional.losses import counted
from hpcrl.config.generation import GenerationConfig
from hpcrl.config.model import OptimizerConfig
from hpcrl.engines.adapters import AdaptedTransformer
from hpcrl.engines.composed import NO_ROUTER_LOSS, ComposedEngine
from hpcrl.engines.engine import Columns, Objective, Sequences, Update
from hpcrl.families.config import DecoderConfig
from hpcrl.models.lessons import RouterLoss
from hpcrl.models.output import Predictions
from hpcrl.parallel.context import ParallelContext
from hpcrl.parallel.replica import ReplicaGroups, groups_of, sharing
from hpcrl.placement.layouts import Layout
from hpcrl.placement.shards import cut_of

OPTIMIZER = OptimizerConfig(lr=0.02, eps=1.0, weight_decay=0.1, grad_clip=0.05)
"""With a large eps, by which an update is as exact as its gradient; each is clipped."""


def some_rows(tokens: int = 60) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Rows of very different lengths, several of one prompt among them."""
    draw = np.random.default_rng(0)
    prompts = [draw.integers(1, tokens, size, np.int32) for size in (23, 9, 14, 3, 1)]
    owners = [0, 2, 4, 0, 1, 0, 3, 2, 4, 0]
    responses = [draw.integers(0, tokens, size, np.int32) for size in (5, 1, 4, 1, 3, 9, 9, 5, 2, 12)]
    return [prompts[owner] for owner in owners], responses


PROMPTS, RESPONSES = some_rows()
ROWS = Sequences.from_rows(PROMPTS, RESPONSES)
SEEDS = [7 * row + 1 for row in range(len(PROMPTS))]
GENERATIONS = (
    GenerationConfig(max_new_tokens=5, greedy=True),
    GenerationConfig(max_new_tokens=9, min_new_tokens=3, temperature=0.9, slots=4),
    GenerationConfig(max_new_tokens=4, top_k=7, slots=3),
)


def objective(entropy: bool) -> Objective:
    def loss(predictions: Predictions, columns: Mapping[str, torch.Tensor]) -> Any:
        chosen = predictions.values if len(predictions.values) else predictions.log_probs
        share = columns["weights"] * columns["advantages"] * chosen.square()
        if entropy:
            share = share - 0.01 * columns["weights"] * predictions.entropy
        return share.sum(), {"chosen": counted(chosen.detach(), torch.ones_like(chosen))}

    return Objective(loss, temperature=0.8, with_entropy=entropy)


def columns_of(rows: Sequence[int]) -> Columns:
    numbers = np.split(np.sin(np.arange(ROWS.labels.sum())), np.cumsum(ROWS.labels)[:-1])
    picked = np.concatenate([numbers[row] for row in rows] or [np.zeros(0)])
    return Columns({"advantages": picked, "weights": np.full(len(picked), 1 / ROWS.labels.sum())})


def worked(engine: ComposedEngine, rows: Sequence[int], updates: int = 3) -> dict[str, Any]:
    """What it says of these rows, what updates by them come to, what it is then, and what it generates."""
    model, transformer = engine._model, engine._model.transformer
    views: Any = transformer.memory.trained.views if isinstance(transformer, AdaptedTransformer) else transformer.views
    before = engine.forward(ROWS.select(rows), 0.8)
    results = [
        engine.train_batch(
            ROWS.select(rows), columns_of(rows), objective(not model.gives_values), Update(1, i, updates)
        )
        for i in range(updates)
    ]
    prompts, seeds = [PROMPTS[row] for row in rows], [SEEDS[row] for row in rows]
    configs = () if model.gives_values else GENERATIONS
    return {
        "rows": list(rows),
        "before": np.split(before, np.cumsum(ROWS.labels[rows])[:-1]),
        "updates": [
            (result.loss, result.grad_norm, *(number for _, pair in sorted(result.totals.items()) for number in pair))
            for result in results
        ],
        "parameters": {name: view.detach().clone() for name, view in views.items()},
        "totals": [result.totals for result in results],
        "generated": [engine.generate(prompts, seeds, config) for config in configs],
        "digest": engine.digest(),
    }


def alone(config: DecoderConfig, router_loss: RouterLoss = NO_ROUTER_LOSS) -> dict[str, Any]:
    engine = native(config.head, optimizer=OPTIMIZER, config=config, router_loss=router_loss)
    return worked(engine, range(len(ROWS)))


def groups_in(context: ParallelContext, layout: Layout) -> ReplicaGroups | None:
    """This rank's in a replica on the first ranks; None on the others."""
    ranks = tuple(range(layout.size))
    context.form(sharing(layout, ranks))
    return groups_of(context, layout, ranks) if context.rank in ranks else None


def on_rank(
    context: ParallelContext,
    config: DecoderConfig,
    layout: Layout,
    split: Sequence[Sequence[int]],
    tokens: int = 40,
    router_loss: RouterLoss = NO_ROUTER_LOSS,
    recompute: bool = False,
) -> dict[str, Any] | None:
    """The same by one of the layout's ranks, on the rows of its part; None on others."""
    groups = groups_in(context, layout)
    if groups is None:
        return None
    engine = native(
        config.head,
        group=groups,
        micro_batch_tokens=tokens,
        optimizer=OPTIMIZER,
        config=config,
        router_loss=router_loss,
    )
    engine._model.transformer.recompute = recompute
    return worked(engine, split[groups.dp.index])


def compare(config: DecoderConfig, layout: Layout, found: Sequence[dict[str, Any]], one: dict[str, Any]) -> None:
    """What all ranks of a layout found, with what one process did."""
    assert len(found) == layout.size
    for own in found:
        rows = own["rows"]
        for place, row in enumerate(rows):
            np.testing.assert_allclose(own["before"][place], one["before"][row], rtol=0, atol=1e-9)
        for ours, theirs in zip(own["updates"], one["updates"], strict=True):
            assert ours == pytest.approx(theirs, rel=1e-9, abs=1e-11)
            assert ours[1] > OPTIMIZER.grad_clip
        for ours, theirs in zip(own["generated"], one["generated"] if rows else [], strict=bool(rows)):
            for place, row in enumerate(rows):
                np.testing.assert_array_equal(ours.tokens[place], theirs.tokens[row])
                np.testing.assert_allclose(ours.logprobs[place], theirs.logprobs[row], rtol=0, atol=1e-9)
                assert ours.finished[place] == theirs.finished[row]
        assert own["digest"] == found[0]["digest"]
    for part in range(layout.dp):
        ranks = layout.data_part(part, tuple(range(layout.size)))
        cuts = [cut_of(layout, rank) for rank in ranks]
        whole = assembled(config, [(cut, found[rank]["parameters"]) for cut, rank in zip(cuts, ranks, strict=True)])
        for name, parameter in whole.items():
            torch.testing.assert_close(parameter, one["parameters"][name], rtol=0, atol=1e-9)
