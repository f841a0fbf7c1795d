"""Engines whose masters and moments, or parameters too, are in the host's memory, against ones that have them on their
device.

Without a GPU both are one memory, so the tests say what is where by whose storage it is: a host has masters of its own,
and the device's buffers hold nothing of them.
"""

import pickle
from collections.abc import Callable, Sequence
from typing import Any, get_args

import numpy as np
import pytest
import torch
from support.devices import ON_A_GPU
from support.layouts import GENERATIONS, PROMPTS, SEEDS
from support.offloading import D2, MAKERS, OnRanks, on_its_host
from support.pool import everyone, gloo_pool
from support.sharded import Case
from support.tiny import CONFIG, native, random_sequences

from hpcrl.config.model import ModelConfig, Offload
from hpcrl.engines import adamw, deepspeed
from hpcrl.engines.chunks import CPU_PIECE, chunks, on_host
from hpcrl.engines.composed import ComposedEngine
from hpcrl.engines.engine import Columns, Objective, Update
from hpcrl.families.reader import parameter_count
from hpcrl.placement.abilities import backend_of
from hpcrl.placement.memory import as_sharded, role_memory

SEQUENCES = random_sequences(5)
WHAT: tuple[Offload, ...] = get_args(Offload)
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp64": torch.float64}


def learned(engine: ComposedEngine) -> list[Any]:
    """All bits of what an engine gives in three updates, of which a gradient is clipped."""
    columns = Columns({"weights": np.cos(np.arange(SEQUENCES.labels.sum()))})
    objective = Objective(lambda predictions, given: ((given["weights"] * predictions.log_probs).sum(), {}))
    given: list[Any] = [engine.digest()]
    for index in range(3):
        result = engine.train_batch(SEQUENCES, columns, objective, Update(1, index, 3))
        given += [result.loss, result.grad_norm, engine.digest(), engine.parameters_digest()]
    given.append(engine.forward(SEQUENCES).tolist())
    shard = engine.snapshot()
    return [*given, {name: array.tobytes() for name, array in shard.arrays.items()}, shard.state]


def state(engine: ComposedEngine) -> list[torch.Tensor]:
    return list(engine._saved._masters.parts.values())


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_the_host_updates_has_the_same_bits(dtype: str) -> None:
    plain, offloaded = (native(dtype=DTYPES[dtype], offload=what) for what in WHAT[:2])
    assert learned(offloaded) == learned(plain)
    device = {tensor.untyped_storage().data_ptr() for kind in offloaded._buffers._buffers.values() for tensor in kind}
    assert offloaded.held() == {**plain.held(), "optimizer": 0}
    assert not device & {tensor.untyped_storage().data_ptr() for tensor in state(offloaded)}


def test_what_either_has_saved_the_other_takes_over() -> None:
    for saves, loads in (WHAT[:2], WHAT[1::-1]):
        saved, loaded = (native(dtype=torch.bfloat16, offload=what) for what in (saves, loads))
        learned(saved)
        assert loaded.load([saved.snapshot()]) and loaded.digest() == saved.digest()
        assert loaded.parameters_digest() == saved.parameters_digest()


def test_a_gradient_that_comes_in_parts_makes_the_same_update(monkeypatch: pytest.MonkeyPatch) -> None:
    """As from a GPU, from which parts are copied ahead into room that is used again. Parts are as long as what is
    worked on at a time, so that no loop ends elsewhere: that would be another rounding."""
    expected = learned(native(dtype=torch.float32))

    def staged(buffer: torch.Tensor, device: torch.device) -> Any:
        for start, part in on_host(buffer, CPU_PIECE):
            for piece in chunks(part):
                yield slice(start + piece.start, start + piece.stop), part[piece]

    monkeypatch.setattr(adamw, "chunks_at", staged)
    assert learned(native(dtype=torch.float32, offload="optimizer")) == expected


@pytest.mark.parametrize("length", [0, 1, 7, 8, 21])
def test_parts_cover_a_buffer(length: int) -> None:
    buffer = torch.arange(float(length))
    parts = [(start, part.tolist()) for start, part in on_host(buffer, 7)]
    assert [start for start, _ in parts] == list(range(0, length, 7))
    assert [number for _, part in parts for number in part] == buffer.tolist()


def on_ranks(context: Any, case: OnRanks) -> tuple[Any, ...]:
    """What each learns, and goes on to learn with what the other has saved. A third has its gradient in parts, each of
    as many numbers as a processor takes at a time."""
    with pytest.MonkeyPatch.context() as patch:
        plain, engine, third = (
            Case(dtype=case.dtype, clip=case.clip, offload=what).made(case.maker, context)
            for what in ("none", case.offload, case.offload)
        )
        found = [learned(plain), learned(engine)]
        patch.setattr(deepspeed, "parts_at", lambda buffer, device: on_host(buffer, 1024))
        found.append(learned(third))
    held, on_host_ = dict(engine.held()), on_its_host(engine)
    assert torch.equal(engine.flat()[1], plain.flat()[1]) and torch.equal(engine.masters()[1], plain.masters()[1])
    engine.release({"gradients": "drop"})
    for one, other in ((plain, engine), (engine, plain)):
        saved = (
            everyone(context).told(pickle.dumps(one.snapshot()), 0),
            everyone(context).told(pickle.dumps(one.snapshot()), 1),
        )
        learned(other)
        assert other.load([pickle.loads(shard) for shard in saved]) and other.digest() == one.digest()
        assert learned(other) == learned(one)
    return found, held, on_host_


CASES = [
    *(OnRanks(backend, dtype, clip) for backend in MAKERS for dtype, clip in (("fp32", 0.05), ("bf16", 0.0))),
    *(OnRanks(backend, dtype, 0.05, "parameters") for backend in ("fsdp", "zero3") for dtype in ("fp32", "bf16")),
]
FAST = [
    OnRanks("native", "fp32", 0.05),
    *(OnRanks(backend, "bf16") for backend in ("zero1",)),
    *(OnRanks(backend, "bf16", 0.05, "parameters") for backend in ("fsdp", "zero3")),
]


def check_ranks(cases: Sequence[OnRanks]) -> None:
    with gloo_pool(2) as pool:
        for case in cases:
            for (plain, *offloaded), held, there in pool.run(on_ranks, case):
                assert offloaded == [plain, plain], case
                assert held["optimizer"] == 0
                for kind, size in held.items():
                    assert size == pytest.approx(getattr(case.memory, kind), rel=0.1), (case, kind)
                assert there == pytest.approx(case.memory.offloaded, rel=0.1), case


@pytest.mark.slow
def test_ranks_that_offload_have_the_same_bits_and_as_much_memory_as_is_said() -> None:
    check_ranks(FAST)


@pytest.mark.slow
def test_others_do_so_too() -> None:
    check_ranks([case for case in CASES if case not in FAST])


def untrained(context: Any, backend: str) -> list[Any]:
    """What a model that is frozen says, and one that another is blended into, with parameters here and there."""
    found = []
    for what in (WHAT[0], WHAT[2]):
        frozen, blended = (
            MAKERS[backend](
                "vocabulary", torch.bfloat16, everyone(context), 24, optimizer=None, blended=so, offload=what
            )
            for so in (False, True)
        )
        blended.blend(2.0 * blended.masters()[1], 0.75)
        said = [engine.forward(SEQUENCES).tolist() for engine in (frozen, blended)]
        told = frozen.generate(PROMPTS, SEEDS, GENERATIONS[0]).tokens
        digests = frozen.parameters_digest(), blended.parameters_digest(), blended.digest()
        if what == "parameters":
            assert not any(frozen.held().values()) and not any(blended.held().values())
            config = ModelConfig(path="m", dtype="bf16", offload=what)
            memory = role_memory(CONFIG, parameter_count(CONFIG), config, D2)
            estimate = as_sharded(memory, CONFIG, config, D2, by=backend_of(backend).shards or "rows")
            assert on_its_host(frozen) == pytest.approx(estimate.offloaded, rel=0.1) and estimate.lasting == 0
        found.append((said, [tokens.tolist() for tokens in told], digests))
    return found


def test_parameters_of_frozen_and_blended_models_are_in_the_hosts_memory_too() -> None:
    with gloo_pool(2) as pool:
        for backend in ("fsdp", "zero3"):
            for plain, offloaded in pool.run(untrained, backend):
                assert offloaded == plain


@pytest.mark.parametrize("made", [pytest.param(native, marks=ON_A_GPU)])
def test_a_gpu_holds_neither_masters_nor_moments(made: Callable[..., ComposedEngine]) -> None:
    engine = made(dtype=torch.bfloat16, device="cuda", offload="optimizer")
    plain = made(dtype=torch.bfloat16, device="cuda")
    assert all(tensor.device.type == "cpu" and tensor.is_pinned() for tensor in state(engine))
    ours, theirs = learned(engine)[-3], learned(plain)[-3]
    np.testing.assert_allclose(ours, theirs, rtol=2e-2, atol=2e-2)
