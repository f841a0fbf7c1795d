"""Models that Megatron-core computes and trains, beside hpcrl's own engine in the same layout: equal up to rounding."""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from support.layouts import GENERATIONS, PROMPTS, ROWS, SEEDS, columns_of, groups_in, objective
from support.megatron_cpu import megatron, on_cpu
from support.pool import gloo_pool
from support.sharded import DTYPES, OPTIMIZER, Case
from support.tiny import ALONE, native
from support.tiny_models import tiny_config

from hpcrl.engines.composed import ComposedEngine
from hpcrl.engines.engine import Objective, Update
from hpcrl.families.config import RotaryConfig
from hpcrl.placement.layouts import Layout, parse_layout
from hpcrl.placement.shards import WHOLE as WHOLE_MODEL

SPLIT = [[0, 1, 3, 5, 7, 8, 9], [2, 4, 6]]
"""With micro-batches of 24 tokens, the first part has several times as many as the second."""
WHOLE = [[*SPLIT[0], *SPLIT[1]]]
SPLITS = {1: WHOLE, 2: SPLIT, 4: [*SPLIT, [9], [6, 8]]}
LLAMA = tiny_config(family="llama", qkv_bias=False, kv_heads=4, rotary=RotaryConfig(500.0, "llama3", 4.0, 1.0, 4.0, 32))
WINDOWED = tiny_config(windows=(0, 6))


@pytest.fixture(scope="module")
def pool() -> Any:
    with gloo_pool(2) as ranks:
        yield ranks


@pytest.fixture(scope="module")
def four() -> Any:
    with gloo_pool(4) as ranks:
        yield ranks


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


def check_equal(pool: Any, case: Case, text: str, config: Any = None) -> None:
    layout = parse_layout(text)
    ours, theirs = (pool.run(lived, maker, case, layout, config)[: layout.size] for maker in (native, megatron))
    assert len({own["digest"] for own in theirs}) == 1
    if case.dtype == "bf16":
        check_near(ours, theirs, pool.run(lived, native, replace(case, dtype="fp32"), layout, config))
        return
    for own, reference in zip(theirs, ours, strict=True):
        assert own["held"] == reference["held"]
        for key in ("before", "after", "result"):
            np.testing.assert_allclose(own[key], reference[key], rtol=1e-5, atol=1e-5, err_msg=key)
        if case.head == "vocabulary":
            assert all(map(np.array_equal, own["generated"].tokens, reference["generated"].tokens))


def check_near(ours: list[Any], theirs: list[Any], exact: list[Any]) -> None:
    """Megatron's bf16 is about as far from fp32 as ours."""
    for own, reference, wide in zip(theirs, ours, exact, strict=False):
        for key in ("before", "after"):
            far, ours_far = (np.abs(it[key] - wide[key]).mean() for it in (own, reference))
            assert 0 < far < 2 * ours_far < 0.2, key
        assert own["result"] == pytest.approx(wide["result"], rel=0.05)


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("case", "text"),
    [
        (Case(clip=0.05), "d2"),
        (Case(clip=0.05), "p2"),
        (Case(tied=False), "t2"),
        (Case("value", "bf16"), "t2"),
        pytest.param(Case(clip=0.05), "d1", marks=SLOW),
        pytest.param(Case("value", "bf16"), "d1", marks=SLOW),
        pytest.param(Case("value", "bf16"), "d2", marks=SLOW),
        pytest.param(Case("value", "bf16"), "p2", marks=SLOW),
        pytest.param(Case(dtype="bf16"), "t2", marks=SLOW),
    ],
    ids=str,
)
def test_updates_equal_those_of_hpcrls_own_engine(pool: Any, case: Case, text: str) -> None:
    check_equal(pool, case, text)


@pytest.mark.parametrize(
    ("case", "config", "text"),
    [
        (Case(recompute=True), WINDOWED, "t2"),
        pytest.param(Case(tied=False), LLAMA, "p2", marks=SLOW),
        pytest.param(Case("value"), LLAMA, "d2", marks=SLOW),
        pytest.param(Case("reward", recompute=True), WINDOWED, "d1", marks=SLOW),
    ],
    ids=["windows", "llama-in-stages", "llama-value", "windows-reward"],
)
def test_every_kind_of_model_is_computed(pool: Any, case: Case, config: Any, text: str) -> None:
    check_equal(pool, case, text, config)


@pytest.mark.slow
@pytest.mark.parametrize("text", ["d2t2", "d2p2", "t2p2", "t4", "d4"])
@pytest.mark.parametrize("case", [Case(clip=0.05), Case(tied=False, recompute=True), Case("value", "bf16")], ids=str)
def test_four_ranks_update_as_hpcrls_own_engine_does(four: Any, case: Case, text: str) -> None:
    check_equal(four, case, text)


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


@pytest.mark.parametrize("case", [pytest.param(Case(), marks=SLOW), Case("value", "bf16")], ids=str)
def test_a_checkpoint_goes_through_megatron_and_back_with_all_bits(pool: Any, case: Case) -> None:
    (first, *_) = pool.run(lived, native, case, parse_layout("d1"))
    saved, digest = [first["saved"]], first["digest"]
    for maker, text in ((megatron, "t2"), (megatron, "p2"), (megatron, "d2"), (native, "d1"), (megatron, "d1")):
        layout = parse_layout(text)
        found = pool.run(loaded, maker, case, layout, saved)[: layout.size]
        assert all(exact and before[0] == digest for exact, before, *_ in found), text
        saved = [waiting for *_, waiting, _ in found]


def test_a_resumed_engine_goes_on_with_the_same_bits(pool: Any) -> None:
    case, layout = Case("value", "bf16"), parse_layout("t2")
    lives = pool.run(lived, megatron, case, layout)
    saved = [own["saved"] for own in lives]
    ends = [found[3] for _ in range(2) for found in pool.run(loaded, megatron, case, layout, saved)]
    assert len(set(ends)) == 1


def frozen(context: Any, maker: Callable[..., ComposedEngine], layout: Layout, blended: bool) -> Any:
    """A model that is not trained, or one that another is blended into."""
    groups = groups_in(context, layout)
    engine = maker("vocabulary", DTYPES["bf16"], groups, 24, optimizer=None, blended=blended)
    if blended:
        engine.blend(2.0 * engine.masters()[1], 0.75)
    return engine.forward(ROWS.select(WHOLE[0])), engine.parameters_digest()


def left_alone(context: Any, going: str) -> None:
    """Rank 1 is gone between the first block and the second."""
    groups = groups_in(context, parse_layout("t2"))
    assert groups is not None
    engine = made(megatron, Case(), groups)
    stage = engine._model.transformer.memory.stage  # type: ignore[attr-defined]
    block = stage._model.decoder.layers[0]
    if groups.tp.index:
        hooked = block.register_forward_hook if going == "forward" else block.register_full_backward_hook
        hooked(lambda *_: os._exit(7))
    trained(engine, [(WHOLE[0], objective(True))])


@pytest.mark.parametrize("going", ["backward", pytest.param("forward", marks=SLOW)])
def test_what_megatrons_collectives_raise_tells_of_the_peer(going: str) -> None:
    with gloo_pool(2) as ranks, pytest.raises(AssertionError) as raised:
        ranks.run(left_alone, going)
    assert f"PeerLostError: Megatron's {going} pass, operation" in str(raised.value)
    assert "died with exit code 7" in str(raised.value)


def laid_out(context: Any, begin: int) -> None:
    """Two vectors, of which the second is expected at `begin`."""
    from hpcrl.models.megatron import megatron_config
    from hpcrl.parallel.megatron import ShardedUpdates, collection, prepare

    config = tiny_config()
    with on_cpu():
        prepare()
        parameters = {torch.nn.Parameter(torch.zeros(5)): at for at in (0, begin)}
        stage = megatron_config(config, WHOLE_MODEL, torch.float32)
        ShardedUpdates(stage, parameters, (), ALONE, collection(ALONE, ALONE))


def test_a_version_that_lays_parameters_out_otherwise_is_refused(pool: Any) -> None:
    pool.run(laid_out, 64)
    with pytest.raises(AssertionError, match=r"megatron-core lays parameters out at \[0, 64\], not at \[0, 16\]"):
        pool.run(laid_out, 16)


def begins(context: Any, maker: Callable[..., ComposedEngine]) -> list[float]:
    groups = groups_in(context, parse_layout("d3"))
    assert groups is not None
    return made(maker, Case("value"), groups).masters()[1].tolist()


@SLOW
def test_masters_are_told_as_hpcrls_own_lie_whatever_the_number_of_workers() -> None:
    with gloo_pool(3) as three:
        ours, theirs = (three.run(begins, maker) for maker in (native, megatron))
    assert ours == theirs


def ends(context: Any, case: Case, layout: Layout) -> str:
    groups = groups_in(context, layout)
    assert groups is not None
    engine = made(megatron, case, groups)
    trained(engine, [(WHOLE[0], objective(True))])
    return engine.digest()


def test_recomputing_has_the_same_bits(pool: Any) -> None:
    digests = [pool.run(ends, Case(recompute=recompute), parse_layout("t2")) for recompute in (False, True)]
    assert digests[0] == digests[1]


@pytest.mark.parametrize("blended", [pytest.param(False, marks=SLOW), True])
def test_frozen_and_blended_models_are_held_too(pool: Any, blended: bool) -> None:
    ours, theirs = (pool.run(frozen, maker, parse_layout("t2"), blended) for maker in (native, megatron))
    for (said, digest), (says, their_digest) in zip(ours, theirs, strict=True):
        assert digest == their_digest
        np.testing.assert_allclose(says, said, atol=0.1)
