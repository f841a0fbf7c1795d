"""Models that FSDP2 shards, beside hpcrl's own engine on as many ranks: the same bits where no gradient is clipped."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from support.layouts import GENERATIONS, PROMPTS, ROWS, SEEDS, columns_of, objective
from support.pool import everyone, gloo_pool
from support.tiny import fsdp, native
from support.tiny_models import tiny_config

from hpcrl.config.model import OptimizerConfig
from hpcrl.engines.engine import Objective, Update
from hpcrl.engines.native import NativeEngine

SPLIT = [[0, 1, 3, 5, 7, 8, 9], [2, 4, 6]]
"""With micro-batches of 24 tokens, rank 0 has several times as many as rank 1."""
OPTIMIZER = OptimizerConfig(lr=0.02, weight_decay=0.1, grad_clip=0.0)
HEADS = ("vocabulary", "value")
DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Case:
    """What an engine is made of."""

    head: str = "vocabulary"
    dtype: str = "fp32"
    tied: bool = True
    recompute: bool = False
    clip: float = 0.0

    def made(self, maker: Callable[..., NativeEngine], context: Any) -> NativeEngine:
        engine = maker(
            self.head,
            DTYPES[self.dtype],
            everyone(context),
            micro_batch_tokens=24,
            optimizer=replace(OPTIMIZER, grad_clip=self.clip),
            config=tiny_config(tied=self.tied),
        )
        engine._model.transformer.recompute = self.recompute
        return engine


@pytest.fixture(scope="module")
def pool() -> Any:
    with gloo_pool(2) as ranks:
        yield ranks


def trained(engine: NativeEngine, batches: Sequence[tuple[Sequence[int], Objective]]) -> list[Any]:
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


def lived(context: Any, maker: Callable[..., NativeEngine], case: Case) -> dict[str, Any]:
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
        Case(dtype="fp64", tied=False),
        Case(dtype="bf16", tied=False),
        Case("value", "bf16"),
        Case("value", recompute=True),
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
