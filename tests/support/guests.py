"""What is compared of a library's engine with hpcrl's own in the same layout. Ranks of a pool are told by pickle what
to make."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from support.layouts import GENERATIONS, PROMPTS, ROWS, SEEDS, columns_of, groups_in, objective
from support.sharded import DTYPES, OPTIMIZER, Case
from support.tiny import native
from support.tiny_models import tiny_config

from hpcrl.engines.composed import ComposedEngine
from hpcrl.engines.engine import Objective, Update
from hpcrl.placement.layouts import Layout, parse_layout

SPLIT = [[0, 1, 3, 5, 7, 8, 9], [2, 4, 6]]
"""With micro-batches of 24 tokens, the first part has several times as many as the second."""
WHOLE = [[*SPLIT[0], *SPLIT[1]]]
SPLITS = {1: WHOLE, 2: SPLIT, 4: [*SPLIT, [9], [6, 8]]}


def spoilt(entropy: bool) -> Objective:
    """Its gradient is not finite."""
    plain = objective(entropy)

    def loss(predictions: Any, columns: Mapping[str, torch.Tensor]) -> Any:
        share, statistics = plain.loss(predictions, columns)
        return share * torch.inf, statistics

    return replace(plain, loss=loss)


def made(maker: Callable[..., ComposedEngine], case: Case, groups: Any, config: Any = None) -> ComposedEngine:
    """With an eps by which an update is about as exact as its gradient."""
    engine = maker(
        case.head,
        DTYPES[case.dtype],
        groups,
        micro_batch_tokens=24,
        optimizer=replace(OPTIMIZER, lr=0.002, eps=1e-4, grad_clip=case.clip),
        config=config or tiny_config(tied=case.tied),
    )
    engine._model.transformer.recompute = case.recompute
    return engine


def trained(engine: ComposedEngine, batches: list[tuple[list[int], Objective]]) -> list[Any]:
    return [
        engine.train_batch(ROWS.select(rows), columns_of(rows), minimised, Update(1, i, len(batches)))
        for i, (rows, minimised) in enumerate(batches)
    ]


def lived(
    context: Any, maker: Callable[..., ComposedEngine], case: Case, layout: Layout, config: Any = None
) -> dict[str, Any] | None:
    """Updates of every outcome: of unequal shares, one part's empty, refused, not finite; what the model says then."""
    groups = groups_in(context, layout)
    if groups is None:
        return None
    engine = made(maker, case, groups, config)
    rows = SPLITS[layout.dp][groups.dp.index]
    plain = objective(case.head == "vocabulary")
    before = engine.forward(ROWS.select(rows), 0.8)
    trained(engine, [(rows, plain), (rows if groups.dp.index or layout.dp == 1 else [], plain)])
    untouched = engine.digest(), engine.parameters_digest()
    unmade = trained(engine, [(rows, replace(plain, refuses=lambda means: True)), (rows, spoilt(plain.with_entropy))])
    assert [result.decision.outcome for result in unmade] == ["refused", "skipped"]
    assert (engine.digest(), engine.parameters_digest()) == untouched
    results = trained(engine, [(rows, plain)])
    prompts, seeds = [PROMPTS[row] for row in rows], [SEEDS[row] for row in rows]
    return {
        "before": before,
        "result": (results[0].loss, results[0].grad_norm),
        "after": engine.forward(ROWS.select(rows), 0.8),
        "generated": engine.generate(prompts, seeds, GENERATIONS[0]) if case.head == "vocabulary" else None,
        "held": engine.held(),
        "digest": engine.digest(),
        "saved": engine.snapshot(),
    }


def check_equal(
    pool: Any, maker: Callable[..., ComposedEngine], case: Case, text: str, config: Any = None, held: bool = True
) -> None:
    """`held`: whether it has as many bytes of each kind."""
    layout = parse_layout(text)
    ours, theirs = (pool.run(lived, it, case, layout, config)[: layout.size] for it in (native, maker))
    assert len({own["digest"] for own in theirs}) == 1
    if case.dtype == "bf16":
        check_near(ours, theirs, pool.run(lived, native, replace(case, dtype="fp32"), layout, config))
        return
    for own, reference in zip(theirs, ours, strict=True):
        assert (own["held"] == reference["held"]) is held
        for key in ("before", "after", "result"):
            np.testing.assert_allclose(own[key], reference[key], rtol=1e-5, atol=1e-5, err_msg=key)
        if case.head == "vocabulary":
            assert all(map(np.array_equal, own["generated"].tokens, reference["generated"].tokens))


def check_near(ours: list[Any], theirs: list[Any], exact: list[Any]) -> None:
    """A library's bf16 is about as far from fp32 as ours."""
    for own, reference, wide in zip(theirs, ours, exact, strict=False):
        for key in ("before", "after"):
            far, ours_far = (np.abs(it[key] - wide[key]).mean() for it in (own, reference))
            assert 0 < far < 2 * ours_far < 0.2, key
        assert own["result"] == pytest.approx(wide["result"], rel=0.05)


def loaded(context: Any, maker: Callable[..., ComposedEngine], case: Case, layout: Layout, saved: list[Any]) -> Any:
    """What it is with a checkpoint of another backend, what it saves of it, and what one more update makes of it."""
    groups = groups_in(context, layout)
    if groups is None:
        return None
    engine = made(maker, case, groups)
    exact = engine.load(saved)
    before = engine.digest(), engine.parameters_digest()
    engine.release({"parameters": "host", "gradients": "drop", "optimizer": "host"})
    assert not any(engine.held().values())
    waiting = engine.snapshot()
    trained(engine, [(WHOLE[0], objective(case.head == "vocabulary"))])
    return exact, before, waiting, engine.digest()
