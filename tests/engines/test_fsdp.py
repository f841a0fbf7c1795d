"""Models that FSDP2 shards, beside hpcrl's own engine on as many ranks: the same bits where no gradient is clipped."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from support.layouts import GENERATIONS, PROMPTS, ROWS, SEEDS, columns_of, objective
from support.pool import everyone, gloo_pool
from support.sharded import DTYPES, OPTIMIZER, Case
from support.tiny import fsdp, native
from support.tiny_models import CONFIGS, tiny_config

from hpcrl.engines.composed import ComposedEngine
from hpcrl.engines.engine import Objective, Update

SPLIT = [[0, 1, 3, 5, 7, 8, 9], [2, 4, 6]]
"""With micro-batches of 24 tokens, rank 0 has several times as many as rank 1."""


@pytest.fixture(scope="module")
def pool() -> Any:
    with gloo_pool(2) as ranks:
        yield ranks


def trained(engine: ComposedEngine, batches: Sequence[tuple[Sequence[int], Objective]]) -> list[Any]:
    found = []
    for i, (rows, minimised) in enumerate(batches):
        result = engine.train_batch(ROWS.select(rows), columns_of(rows), minimised, Update(1, i, len(batches)))
        found.append((result.loss, result.totals, result.decision, result.grad_norm))
    return found


def spoilt(entropy: bool) -> Objective:
    """Its gradient is not finite."""
    plain = objective(entropy)

    def loss(predictions: Any, columns: Mapping[str, torch.Tensor]) -> Any:
        share, statistics = plain.loss(predictions, columns)
        return share * torch.inf, statistics

    return replace(plain, loss=loss)


def lived(context: Any, maker: Callable[..., ComposedEngine], case: Case) -> dict[str, Any]:
    """Updates of every outcome: of unequal shares, one rank's empty, refused, not finite; what the model says then."""
    engine, rows = case.made(maker, context), SPLIT[context.rank]
    plain = objective(case.head == "vocabulary")
    refused = replace(plain, refuses=lambda means: True)
    nobody: list[int] = []
    batches = [
        (rows, plain),
        (rows if context.rank else nobody, plain),
        (rows, refused),
        (rows, spoilt(case.head == "vocabulary")),
        (rows[:1], plain),
        (rows, plain),
    ]
    before = engine.forward(ROWS.select(rows), 0.8)
    results = trained(engine, batches)
    prompts = [PROMPTS[row] for row in (rows if context.rank else rows[:2])]
    configs = GENERATIONS if case.head == "vocabulary" else ()
    return {
        "before": before,
        "results": [result[:3] for result in results],
        "norms": [result[3] for result in results],
        "digest": engine.digest(),
        "parameters": engine.parameters_digest(),
        "after": engine.forward(ROWS.select(rows[:1] if context.rank else rows), 0.8),
        "nothing": engine.forward(ROWS.select(rows if context.rank else [])),
        "generated": [engine.generate(prompts, SEEDS[: len(prompts)], config) for config in configs],
        "saved": engine.snapshot(),
    }


def both(pool: Any, case: Case) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    return pool.run(lived, native, case), pool.run(lived, fsdp, case)


@pytest.mark.parametrize(
    "case",
    [
        Case(),
        *(pytest.param(Case(dtype=it, tied=False), marks=pytest.mark.slow) for it in ("fp64", "bf16")),
        Case("value", "bf16"),
        Case("value", recompute=True),
        Case(family="mixtral", aux=0.01, recompute=True),
        pytest.param(Case(family="mixtral", dtype="bf16"), marks=pytest.mark.slow),
        *(pytest.param(Case(family=family), marks=pytest.mark.slow) for family in sorted(CONFIGS)),
    ],
    ids=str,
)
def test_a_sharded_model_has_the_bits_of_one_in_flat_buffers(pool: Any, case: Case) -> None:
    for ours, theirs in zip(*both(pool, case), strict=True):
        assert repr(theirs["results"]) == repr(ours["results"])
        assert [result[2].outcome for result in theirs["results"]] == [
            "stepped",
            "stepped",
            "refused",
            "skipped",
            "stepped",
            "stepped",
        ]
        for norm, other in zip(theirs["norms"], ours["norms"], strict=True):
            assert norm == (None if other is None else pytest.approx(other, rel=1e-12))
        for key in ("before", "after", "nothing"):
            np.testing.assert_array_equal(theirs[key], ours[key], strict=True)
        assert (theirs["digest"], theirs["parameters"]) == (ours["digest"], ours["parameters"])
        for one, other in zip(theirs["generated"], ours["generated"], strict=True):
            assert all(map(np.array_equal, one.tokens, other.tokens))
            assert all(map(np.array_equal, one.logprobs, other.logprobs))


def loaded(context: Any, maker: Callable[..., ComposedEngine], case: Case, saved: list[Any]) -> tuple[Any, ...]:
    """What it is with a checkpoint of another backend, and what one more update makes of it."""
    engine, rows = case.made(maker, context), SPLIT[context.rank]
    exact = engine.load(saved)
    before = engine.digest(), engine.parameters_digest()
    engine.release({"parameters": "host", "gradients": "drop", "optimizer": "host"})
    assert not any(engine.held().values())
    waiting = engine.snapshot()
    trained(engine, [(rows, objective(case.head == "vocabulary"))])
    return exact, before, engine.digest(), waiting


@pytest.mark.parametrize("case", [Case(), Case("value", "bf16")], ids=str)
def test_checkpoints_go_from_backend_to_backend_with_all_bits(pool: Any, case: Case) -> None:
    flat = pool.run(lived, native, case)
    saved, digests = [found["saved"] for found in flat], (flat[0]["digest"], flat[0]["parameters"])
    sharded = pool.run(loaded, fsdp, case, saved)
    again = pool.run(loaded, native, case, [waiting for *_, waiting in sharded])
    assert [found[:2] for found in (*sharded, *again)] == [(True, digests)] * 4
    assert len({found[2] for found in (*sharded, *again)}) == 1
    alone = native(case.head, DTYPES[case.dtype], config=tiny_config(tied=case.tied))
    assert alone.load([waiting for *_, waiting in sharded])
    assert (alone.digest(), alone.parameters_digest()) == digests


def test_a_clipped_gradient_is_clipped_alike_up_to_rounding(pool: Any) -> None:
    for ours, theirs in zip(*both(pool, Case(dtype="fp64", clip=0.05)), strict=True):
        np.testing.assert_allclose(theirs["after"], ours["after"], rtol=1e-10)


@pytest.mark.parametrize("case", [Case(dtype="fp64"), Case("value", "bf16", recompute=True)], ids=str)
def test_gradients_that_are_added_up_after_each_micro_batch_are_equal_up_to_rounding(pool: Any, case: Case) -> None:
    """With several on a rank, none on another, refused and not finite; and the same bits when it is done again."""
    case = replace(case, reduces_each=True)
    (ours, theirs), again = both(pool, case), pool.run(lived, fsdp, case)
    rtol = 1e-10 if case.dtype == "fp64" else 2e-2
    for flat, sharded, same in zip(ours, theirs, again, strict=True):
        outcomes = [[result[2].outcome for result in found["results"]] for found in (flat, sharded)]
        assert outcomes[0] == outcomes[1]
        np.testing.assert_allclose(sharded["after"], flat["after"], rtol=rtol, atol=rtol)
        assert sharded["digest"] != flat["digest"]
        assert (same["digest"], repr(same["results"])) == (sharded["digest"], repr(sharded["results"]))


def frozen(context: Any, maker: Callable[..., ComposedEngine], dtype: str) -> tuple[Any, ...]:
    """A model that is not trained, and one that another is blended into."""
    engine, rows = maker("vocabulary", DTYPES[dtype], everyone(context), 24, optimizer=None), SPLIT[context.rank]
    blended = maker("vocabulary", DTYPES[dtype], everyone(context), 24, optimizer=None, blended=True)
    blended.blend(2.0 * blended.masters()[1], 0.75)
    says = engine.forward(ROWS.select(rows)), blended.forward(ROWS.select(rows))
    return says, engine.parameters_digest(), blended.digest(), blended.parameters_digest()


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_frozen_and_blended_models_are_sharded_too(pool: Any, dtype: str) -> None:
    keyword = dict(zip(("flat", "sharded"), (native, fsdp), strict=True))
    found = {name: pool.run(frozen, maker, dtype) for name, maker in keyword.items()}
    for ours, theirs in zip(found["flat"], found["sharded"], strict=True):
        assert ours[1:] == theirs[1:]
        assert all(map(np.array_equal, ours[0], theirs[0]))


def on_two_of_three(context: Any, maker: Callable[..., ComposedEngine], case: Case) -> dict[str, Any] | None:
    """Ranks 0 and 2 hold it; the one between has nothing to do with it."""
    context.form([(0, 2)])
    if context.rank == 1:
        return None
    group = context.group((0, 2))
    engine = maker(case.head, DTYPES[case.dtype], group, 24, optimizer=OPTIMIZER)
    rows = SPLIT[group.index]
    trained(engine, [(rows, objective(case.head == "vocabulary"))])
    return {"digest": engine.digest(), "says": engine.forward(ROWS.select(rows))}


def test_a_model_is_sharded_over_some_of_the_workers() -> None:
    with gloo_pool(3) as three:
        ours, theirs = (three.run(on_two_of_three, maker, Case("value", "bf16")) for maker in (native, fsdp))
    assert ours[1] is None is theirs[1]
    for index in (0, 2):
        assert ours[index]["digest"] == theirs[index]["digest"]
        np.testing.assert_array_equal(ours[index]["says"], theirs[index]["says"])
