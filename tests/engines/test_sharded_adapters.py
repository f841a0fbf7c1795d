"""Models with adapters that FSDP2 shards, beside those in flat buffers on as many ranks: the same bits."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.adapted_cases import Case
from support.foreign_models import save_library_model
from support.layouts import GENERATIONS, PROMPTS, ROWS, SEEDS, columns_of, objective
from support.pool import everyone, gloo_pool
from support.tiny import ALONE
from support.tiny_models import CONFIGS, tiny_config

from hpcrl.engines.engine import Update

SPLIT = [[0, 1, 3, 5, 7, 8, 9], [2, 4, 6]]
"""With micro-batches of 24 tokens, rank 0 has several times as many as rank 1."""


@pytest.fixture(scope="module")
def pool() -> Any:
    with gloo_pool(2) as ranks:
        yield ranks


def lived(context: Any, case: Case, sharded: bool) -> dict[str, Any]:
    """Updates of every outcome, one rank's share once empty; what the model says before and after, and without them."""
    engine, rows = case.made(everyone(context), sharded), SPLIT[context.rank]
    plain = objective(case.head == "vocabulary")
    refused = replace(plain, refuses=lambda means: True)
    spoilt = replace(plain, loss=lambda *given: (plain.loss(*given)[0] * torch.inf, plain.loss(*given)[1]))
    nobody: list[int] = []
    batches = [
        (rows, plain),
        (rows if context.rank else nobody, plain),
        (rows, refused),
        (rows, spoilt),
        (rows[:1], plain),
    ]
    results = [
        engine.train_batch(ROWS.select(its), columns_of(its), minimised, Update(1, i, len(batches)))
        for i, (its, minimised) in enumerate(batches)
    ]
    assert [it.decision.outcome for it in results] == ["stepped", "stepped", "refused", "skipped", "stepped"]
    prompts = [PROMPTS[row] for row in rows[: 2 + context.rank]]
    with engine.without_adapters():
        base = engine.forward(ROWS.select(rows), 0.8)
    engine.release({"parameters": "host", "gradients": "drop", "optimizer": "host"})
    assert not any(engine.held().values())
    return {
        "saved": engine.snapshot(),
        "results": repr([(it.loss, it.totals, it.decision, it.grad_norm) for it in results]),
        "digests": (engine.digest(), engine.parameters_digest()),
        "says": [
            base,
            engine.forward(ROWS.select(rows[:1] if context.rank else rows)),
            engine.forward(ROWS.select(nobody)),
        ],
        "generated": [
            engine.generate(prompts, SEEDS[: len(prompts)], config)
            for config in (GENERATIONS if case.head == "vocabulary" else ())
        ],
    }


def check_the_same(pool: Any, case: Case) -> None:
    flat, sharded = (pool.run(lived, case, it) for it in (False, True))
    for ours, theirs in zip(flat, sharded, strict=True):
        assert (theirs["results"], theirs["digests"]) == (ours["results"], ours["digests"])
        assert all(map(np.array_equal, theirs["says"], ours["says"]))
        for one, other in zip(theirs["generated"], ours["generated"], strict=True):
            assert all(map(np.array_equal, one.tokens, other.tokens))
            assert all(map(np.array_equal, one.logprobs, other.logprobs))
    alone = case.made(ALONE, sharded=False)
    assert alone.load([it["saved"] for it in sharded])
    assert (alone.digest(), alone.parameters_digest()) == sharded[0]["digests"]


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [
        ("gpt_neox", {}),
        pytest.param("olmoe", {}, marks=pytest.mark.slow),
        pytest.param("mixtral", {"num_local_experts": 3}, marks=pytest.mark.slow),
    ],
)
def test_so_have_those_of_models_that_transformers_computes(
    pool: Any, kind: str, sizes: dict[str, int], tmp_path: Path
) -> None:
    save_library_model(tmp_path, kind, **sizes)
    check_the_same(pool, Case(folder=tmp_path))


OWN = {
    "tied": Case(tiny_config(blocks=3, tied=True)),
    "critic": Case(tiny_config(blocks=3), head="value", dtype="bf16", recompute=True),
    **{name: Case(config(), dtype="fp64") for name, config in CONFIGS.items()},
}


FAST = ("tied", "critic")


@pytest.mark.parametrize("name", [pytest.param(it, marks=() if it in FAST else pytest.mark.slow) for it in OWN])
def test_adapters_beside_a_sharded_model_have_the_bits_of_those_beside_flat_buffers(pool: Any, name: str) -> None:
    check_the_same(pool, OWN[name])


def on_two_of_three(context: Any, case: Case, sharded: bool) -> Any:
    """Ranks 0 and 2 hold it; the one between has nothing to do with it."""
    context.form([(0, 2)])
    if context.rank == 1:
        return None
    group = context.group((0, 2))
    engine, rows = case.made(group, sharded), SPLIT[group.index]
    engine.train_batch(ROWS.select(rows), columns_of(rows), objective(case.head == "vocabulary"), Update(1, 0, 1))
    return engine.digest(), engine.parameters_digest(), engine.forward(ROWS.select(rows)).tolist()


@pytest.mark.slow
def test_a_model_is_sharded_over_some_of_the_workers() -> None:
    with gloo_pool(3) as three:
        ours, theirs = (three.run(on_two_of_three, OWN["critic"], it) for it in (False, True))
    assert ours == theirs and ours[1] is None
