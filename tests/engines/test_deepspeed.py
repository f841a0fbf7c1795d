"""Models that DeepSpeed's ZeRO trains, beside hpcrl's own engine on as many ranks: equal up to rounding."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.guests import SPLITS, check_equal, lived, loaded, made, trained
from support.layouts import GENERATIONS, PROMPTS, ROWS, SEEDS, groups_in, objective
from support.megatron_cpu import megatron
from support.pool import everyone, gloo_pool
from support.sharded import DTYPES, Case
from support.tiny import fsdp, native
from support.zero import MAKERS, zero1, zero2, zero3

from hpcrl.parallel.deepspeed import ShardedUpdates
from hpcrl.parallel.replica import over_data
from hpcrl.parallel.zero3 import PartitionedModules
from hpcrl.placement.layouts import parse_layout

SLOW = pytest.mark.slow


@pytest.fixture(scope="module")
def pool() -> Any:
    with gloo_pool(2, "guests") as ranks:
        yield ranks


@pytest.mark.parametrize("backend", MAKERS)
@pytest.mark.parametrize(
    "case",
    [
        Case(clip=0.05),
        Case("value", "bf16"),
        pytest.param(Case(tied=False, recompute=True), marks=SLOW),
        pytest.param(Case(dtype="bf16"), marks=SLOW),
    ],
    ids=str,
)
def test_updates_equal_those_of_hpcrls_own_engine(pool: Any, backend: str, case: Case) -> None:
    check_equal(pool, MAKERS[backend], case, "d2", held=False)


@pytest.mark.parametrize("case", [pytest.param(Case(), marks=SLOW), Case("value", "bf16")], ids=str)
def test_a_checkpoint_goes_from_backend_to_backend_with_all_bits(pool: Any, case: Case) -> None:
    """Through all that hold a model otherwise, with no update between: the first digest again."""
    (first, *_) = pool.run(lived, native, case, parse_layout("d1"))
    saved, digest = [first["saved"]], first["digest"]
    chain = [(fsdp, "d2"), (zero1, "d2"), (zero3, "d2"), (megatron, "t2"), (zero2, "d2"), (zero3, "d2"), (native, "d1")]
    for maker, text in chain:
        layout = parse_layout(text)
        found = pool.run(loaded, maker, case, layout, saved)[: layout.size]
        assert all(exact and before[0] == digest for exact, before, *_ in found), (maker, text)
        saved = [waiting for *_, waiting, _ in found]


@pytest.mark.parametrize("backend", [pytest.param(it, marks=() if it == "zero3" else SLOW) for it in MAKERS])
def test_a_resumed_engine_goes_on_with_the_same_bits(pool: Any, backend: str) -> None:
    case, layout, maker = Case("value", "bf16", recompute=True), parse_layout("d2"), MAKERS[backend]
    saved = [own["saved"] for own in pool.run(lived, maker, case, layout)]
    plain = replace(case, recompute=False)
    ends = [found[3] for of in (case, case, plain) for found in pool.run(loaded, maker, of, layout, saved)]
    assert len(set(ends)) == 1


def on_two_of_three(context: Any, backend: str) -> Any:
    """Ranks 0 and 2 hold it; the one between has nothing to do with it."""
    context.form([(0, 2)])
    if context.rank == 1:
        return None
    engine = made(MAKERS[backend], Case(), over_data(context.group((0, 2))))
    (result,) = trained(engine, [(SPLITS[2][context.rank // 2], objective(True))])
    return result.loss, result.grad_norm, engine.digest()


def on_three(context: Any, maker: Any) -> tuple[list[float], tuple[float, float], np.ndarray]:
    """Masters as they begin, what an update comes to, and what the model says then."""
    groups = groups_in(context, parse_layout("d3"))
    assert groups is not None
    engine, rows = made(maker, Case("value", clip=0.05), groups), [SPLITS[1][0], [], SPLITS[2][1]][context.rank]
    masters = engine.masters()[1].tolist()
    result = trained(engine, [(rows, objective(False))] * 2)[-1]
    assert result.grad_norm is not None
    return masters, (result.loss, result.grad_norm), engine.forward(ROWS)


def test_some_of_the_workers_hold_a_model_and_three_learn_what_hpcrls_own_do() -> None:
    """Three divide neither its buffers nor its parameters."""
    with gloo_pool(3, "guests") as three:
        on_two = {backend: three.run(on_two_of_three, backend) for backend in ("zero2", "zero3")}
        ours, *theirs = (three.run(on_three, maker) for maker in (native, zero2, zero3))
    for first, nothing, second in on_two.values():
        assert nothing is None and first == second
    for found in theirs:
        for (_, result, says), (_, reference, expected) in zip(found, ours, strict=True):
            assert result == pytest.approx(reference, rel=1e-5)
            np.testing.assert_allclose(says, expected, rtol=1e-5, atol=1e-5)
    assert [masters for masters, *_ in theirs[0]] == [masters for masters, *_ in ours], "cut as ours are"


def frozen(context: Any, maker: Any, dtype: str) -> tuple[Any, ...]:
    """A model that is not trained, and one that another is blended into."""
    rows, group = SPLITS[2][context.rank], everyone(context)
    made_of = {"micro_batch_tokens": 24, "optimizer": None}
    engine, blended = (maker("vocabulary", DTYPES[dtype], group, blended=it, **made_of) for it in (False, True))
    blended.blend(2.0 * blended.masters()[1], 0.75)
    says = engine.forward(ROWS.select(rows)), blended.forward(ROWS.select(rows))
    said = engine.generate([PROMPTS[row] for row in rows], [SEEDS[row] for row in rows], GENERATIONS[0]).tokens
    return (*says, *said), (engine.parameters_digest(), blended.digest(), blended.parameters_digest())


@pytest.mark.parametrize("dtype", ["bf16", pytest.param("fp32", marks=SLOW)])
def test_frozen_and_blended_models_are_cut_by_zero3_too(pool: Any, dtype: str) -> None:
    for ours, theirs in zip(*(pool.run(frozen, maker, dtype) for maker in (native, zero3)), strict=True):
        assert ours[1] == theirs[1]
        assert all(map(np.array_equal, ours[0], theirs[0]))


def laid_out(context: Any, begin: int) -> None:
    """Two vectors, of which the second is expected at `begin`, though it lies within the first."""
    parameters = {torch.nn.Parameter(torch.zeros(64)): at for at in (0, begin)}
    ShardedUpdates(parameters, 128, everyone(context), each=False)


def partitioned(context: Any, begin: int) -> None:
    """The same of parts."""
    parameters = {torch.nn.Parameter(torch.zeros(64)): at for at in (0, begin)}
    PartitionedModules([torch.nn.ParameterList(parameters)], parameters, everyone(context))


def test_a_version_that_lays_parameters_out_otherwise_is_refused(pool: Any) -> None:
    pool.run(laid_out, 64)
    with pytest.raises(AssertionError, match=r"deepspeed lays parameters out at \[0, 64\], not at \[0, 16\]"):
        pool.run(laid_out, 16)
    pool.run(partitioned, 32)
    with pytest.raises(AssertionError, match=r"deepspeed lays parts out at \[0, 32\], not at \[0, 16\]"):
        pool.run(partitioned, 16)


def left_alone(context: Any, backend: str) -> None:
    """Rank 1 is gone before its second backward pass."""
    groups = groups_in(context, parse_layout("d2"))
    assert groups is not None
    engine = made(MAKERS[backend], Case(), groups)
    if groups.dp.index:
        engine._model.transformer.blocks[0].register_full_backward_hook(lambda *_: os._exit(7))
    trained(engine, [(SPLITS[2][groups.dp.index], objective(True))])


@pytest.mark.parametrize("backend", [pytest.param("zero1", marks=SLOW), "zero2", "zero3"])
def test_what_deepspeeds_collectives_raise_tells_of_the_peer(backend: str) -> None:
    with gloo_pool(2, "guests") as ranks, pytest.raises(AssertionError) as raised:
        ranks.run(left_alone, backend)
    assert "PeerLostError: DeepSpeed's" in str(raised.value)
    assert "died with exit code 7" in str(raised.value)


@pytest.mark.slow
def test_nothing_is_compiled_and_no_file_is_written(tmp_path: Path) -> None:
    """A process of its own, whose home and folder for extensions stay empty."""
    folders = {"HOME": tmp_path / "home", "TORCH_EXTENSIONS_DIR": tmp_path / "extensions"}
    for folder in folders.values():
        folder.mkdir()
    told = {name: str(folder) for name, folder in folders.items()} | {"PYTHONPATH": str(Path(__file__).parents[1])}
    environment = {**os.environ, **told}
    subprocess.run([sys.executable, "-c", IN_A_PROCESS], env=environment, cwd=folders["HOME"], check=True)
    assert {*tmp_path.rglob("*")} == {*folders.values()}


IN_A_PROCESS = """
import sys
sys.dont_write_bytecode = True
from support.pool import gloo_pool
from support.guests import lived
from support.sharded import DTYPES, Case
from support.zero import zero3
from hpcrl.placement.layouts import parse_layout

if __name__ == "__main__":
    with gloo_pool(2) as ranks:
        ranks.run(lived, zero3, Case("value"), parse_layout("d2"))
"""


def test_the_process_that_workers_are_forked_from_does_not_import_deepspeed() -> None:
    """It would ask for a GPU, which no worker could use then. Told of its device, DeepSpeed leaves no word of it."""
    script = (
        "import os, sys, torch, hpcrl.engines.deepspeed, hpcrl.parallel.deepspeed as it\n"
        "assert 'deepspeed' not in sys.modules\n"
        "with it.told(it.ACCELERATOR, 'cpu'):\n"
        "    from deepspeed.accelerator import get_accelerator\n"
        "assert get_accelerator().device_name() == 'cpu' and it.ACCELERATOR not in os.environ\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
