"""Engines whose masters and moments are in the host's memory, against ones that have them on their device.

Without a GPU both are one memory, so the tests say what is where by whose storage it is: a host has masters of its own,
and the device's buffers hold nothing of them.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from support.devices import ON_A_GPU
from support.offloading import MAKERS, OnRanks
from support.pool import gloo_pool
from support.sharded import Case
from support.tiny import native, random_sequences

from hpcrl.engines import adamw, deepspeed
from hpcrl.engines.chunks import CPU_PIECE, chunks, on_host
from hpcrl.engines.composed import ComposedEngine
from hpcrl.engines.engine import Columns, Objective, Update

SEQUENCES = random_sequences(5)
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
    plain, offloaded = (native(dtype=DTYPES[dtype], offloaded=so) for so in (False, True))
    assert learned(offloaded) == learned(plain)
    device = {tensor.untyped_storage().data_ptr() for kind in offloaded._buffers._buffers.values() for tensor in kind}
    assert offloaded.held() == {**plain.held(), "optimizer": 0}
    assert not device & {tensor.untyped_storage().data_ptr() for tensor in state(offloaded)}


def test_what_either_has_saved_the_other_takes_over() -> None:
    for saves, loads in ((False, True), (True, False)):
        saved, loaded = native(dtype=torch.bfloat16, offloaded=saves), native(dtype=torch.bfloat16, offloaded=loads)
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
    assert learned(native(dtype=torch.float32, offloaded=True)) == expected


@pytest.mark.parametrize("length", [0, 1, 7, 8, 21])
def test_parts_cover_a_buffer(length: int) -> None:
    buffer = torch.arange(float(length))
    parts = [(start, part.tolist()) for start, part in on_host(buffer, 7)]
    assert [start for start, _ in parts] == list(range(0, length, 7))
    assert [number for _, part in parts for number in part] == buffer.tolist()


def on_ranks(context: Any, case: OnRanks) -> tuple[Any, ...]:
    """What each learns. A third has its gradient in parts, each of as many numbers as a processor takes at a time."""
    with pytest.MonkeyPatch.context() as patch:
        engines = [
            Case(dtype=case.dtype, clip=case.clip, offloaded=so).made(case.maker, context) for so in (False, True, True)
        ]
        found = [learned(engine) for engine in engines[:2]]
        patch.setattr(deepspeed, "parts_at", lambda buffer, device: on_host(buffer, 1024))
        found.append(learned(engines[2]))
    return found, dict(engines[1].held()), sum(tensor.nbytes for tensor in state(engines[1]))


CASES = [OnRanks(backend, dtype, clip) for backend in MAKERS for dtype, clip in (("fp32", 0.05), ("bf16", 0.0))]
FAST = [OnRanks("native", "fp32", 0.05), *(OnRanks(backend, "bf16") for backend in ("fsdp", "zero1", "zero3"))]


def check_ranks(cases: Sequence[OnRanks]) -> None:
    with gloo_pool(2) as pool:
        for case in cases:
            for (plain, *offloaded), held, on_its_host in pool.run(on_ranks, case):
                assert offloaded == [plain, plain], case
                assert held["optimizer"] == case.memory.optimizer == 0
                for kind in ("parameters", "gradients"):
                    assert held[kind] == pytest.approx(getattr(case.memory, kind), rel=0.1), (case, kind)
                assert on_its_host == pytest.approx(case.memory.offloaded, rel=0.1), case


def test_ranks_that_offload_have_the_same_bits_and_as_much_memory_as_is_said() -> None:
    check_ranks(FAST)


@pytest.mark.slow
def test_others_do_so_too() -> None:
    check_ranks([case for case in CASES if case not in FAST])


@pytest.mark.parametrize("made", [pytest.param(native, marks=ON_A_GPU)])
def test_a_gpu_holds_neither_masters_nor_moments(made: Callable[..., ComposedEngine]) -> None:
    engine = made(dtype=torch.bfloat16, device="cuda", offloaded=True)
    plain = made(dtype=torch.bfloat16, device="cuda")
    assert all(tensor.device.type == "cpu" and tensor.is_pinned() for tensor in state(engine))
    ours, theirs = learned(engine)[-3], learned(plain)[-3]
    np.testing.assert_allclose(ours, theirs, rtol=2e-2, atol=2e-2)
