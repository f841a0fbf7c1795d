"""Models that Megatron-core computes and trains, beside hpcrl's own engine in the same layout: equal up to rounding."""

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.guests import WHOLE, check_equal, lived, loaded, made, trained
from support.layouts import ROWS, groups_in, objective
from support.megatron_cpu import megatron, on_cpu
from support.pool import gloo_pool
from support.sharded import DTYPES, Case
from support.tiny import ALONE, native
from support.tiny_models import tiny_config

from hpcrl.engines.composed import ComposedEngine
from hpcrl.families.config import RotaryConfig
from hpcrl.placement.layouts import Layout, parse_layout
from hpcrl.placement.shards import WHOLE as WHOLE_MODEL

LLAMA = tiny_config(family="llama", qkv_bias=False, kv_heads=4, rotary=RotaryConfig(500.0, "llama3", 4.0, 1.0, 4.0, 32))
WINDOWED = tiny_config(windows=(0, 6))


@pytest.fixture(scope="module")
def pool() -> Any:
    with gloo_pool(2, "guests") as ranks:
        yield ranks


@pytest.fixture(scope="module")
def four() -> Any:
    with gloo_pool(4, "guests") as ranks:
        yield ranks


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
    check_equal(pool, megatron, case, text)


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
    check_equal(pool, megatron, case, text, config)


@pytest.mark.slow
@pytest.mark.parametrize("text", ["d2t2", "d2p2", "t2p2", "t4", "d4"])
@pytest.mark.parametrize("case", [Case(clip=0.05), Case(tied=False, recompute=True), Case("value", "bf16")], ids=str)
def test_four_ranks_update_as_hpcrls_own_engine_does(four: Any, case: Case, text: str) -> None:
    check_equal(four, megatron, case, text)


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
    with gloo_pool(2, "guests") as ranks, pytest.raises(AssertionError) as raised:
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
    with gloo_pool(3, "guests") as three:
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
