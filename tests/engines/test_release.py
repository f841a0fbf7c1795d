"""Engines whose memory is released between calls, against ones whose memory stays."""

import numpy as np
import pytest
import torch
from support.pool import everyone, gloo_pool
from support.tiny import native, random_sequences

from hpcrl.config.generation import GenerationConfig
from hpcrl.engines.composed import ComposedEngine
from hpcrl.engines.engine import KINDS, Columns, Held, Objective, Update
from hpcrl.engines.release import Arrival, DeviceBuffers, Layers
from hpcrl.parallel.context import ParallelContext
from hpcrl.parallel.group import Group

SEQUENCES = random_sequences(5)
ALL = dict.fromkeys(KINDS, "host")
NOTHING = dict.fromkeys(KINDS, 0)
PROMPTS = [np.array([1, 2, 3]), np.array([4])]


def update(engine: ComposedEngine, index: int) -> float:
    columns = Columns({"weights": np.cos(np.arange(SEQUENCES.labels.sum()))})
    objective = Objective(lambda predictions, given: ((given["weights"] * predictions.log_probs).sum(), {}))
    return engine.train_batch(SEQUENCES, columns, objective, Update(1, index, 3)).loss


def worked(engine: ComposedEngine, between: dict) -> list:
    """What an engine gives that is released before every call, all bits of it."""
    given = []
    for index in range(3):
        engine.release(between)
        given.append(update(engine, index))
        engine.release(between)
        given.append(engine.forward(SEQUENCES).tolist())
    engine.release(between)
    generated = engine.generate(PROMPTS, [1, 2], GenerationConfig(max_new_tokens=4))
    given += [response.tolist() for response in generated.tokens]
    engine.release(between)
    given += [engine.digest(), engine.parameters_digest()]
    engine.release(between)
    shard = engine.snapshot()
    return [*given, {name: array.tobytes() for name, array in shard.arrays.items()}, shard.state]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("between", [ALL, {**ALL, "gradients": "drop"}, {"optimizer": "host"}, {"parameters": "host"}])
def test_what_is_released_between_calls_comes_back_bit_for_bit(between: dict, dtype: torch.dtype) -> None:
    assert worked(native(dtype=dtype), between) == worked(native(dtype=dtype), {})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_layer_is_read_before_it_is_there(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it is awaited, what comes back holds no number; what was only read is not copied out again."""
    begin, arrived, left = Arrival.__init__, [], []

    def empty(self: Arrival, buffer: torch.Tensor, copy: torch.Tensor, layers: Layers) -> None:
        torch.empty(0, dtype=buffer.dtype).set_(buffer.untyped_storage()).fill_(torch.nan)
        begin(self, buffer, copy, layers)
        arrived.append(layers)

    room = DeviceBuffers._room
    monkeypatch.setattr(Arrival, "__init__", empty)
    monkeypatch.setattr(DeviceBuffers, "_room", lambda self, kind: left.append(kind) or room(self, kind))
    assert worked(native(dtype=dtype), ALL) == worked(native(dtype=dtype), {})
    assert len(arrived) > 5 and all(len(layers) == 4 for layers in arrived)
    assert left.count("parameters") < len(arrived)


def on_ranks(context: ParallelContext) -> tuple[list, list, Held]:
    group: Group = everyone(context)
    engine = native(dtype=torch.float32, group=group)
    released = worked(engine, ALL)
    return released, worked(native(dtype=torch.float32, group=group), {}), engine.held()


def test_a_snapshot_of_a_sharded_engine_brings_nothing_back() -> None:
    with gloo_pool(2) as pool:
        for released, kept, held in pool.run(on_ranks):
            assert released == kept and held == NOTHING


def test_only_what_a_call_needs_comes_back() -> None:
    engine = native(dtype=torch.bfloat16)
    whole = engine.held()
    parameters = whole["parameters"]
    assert whole == {"parameters": parameters, "gradients": 2 * parameters, "optimizer": 6 * parameters}
    engine.release(ALL)
    assert engine.held() == NOTHING
    engine.snapshot()
    assert engine.held() == NOTHING
    engine.forward(SEQUENCES)
    assert engine.held() == {**NOTHING, "parameters": parameters}
    update(engine, 0)
    assert engine.held() == whole


def test_what_was_dropped_comes_back_as_zeros_and_in_the_views() -> None:
    buffer = torch.arange(6.0)
    view = buffer[2:4]
    buffers = DeviceBuffers({"gradients": [buffer]})
    buffers.release("gradients", "drop")
    assert buffers.held() == NOTHING
    buffers.need("gradients")
    assert view.tolist() == [0.0, 0.0] and buffers.held() == {**NOTHING, "gradients": 24}
    view += 1
    buffers.release("gradients", "host")
    buffers.release("gradients", "drop")  # what waits already goes on waiting
    assert buffers.copied(view).tolist() == [1.0, 1.0] and buffers.copied(torch.ones(1)).tolist() == [1.0]
    buffers.need(*KINDS)
    assert buffer.tolist() == [0.0, 0.0, 1.0, 1.0, 0.0, 0.0]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_holds_nothing_of_a_released_engine() -> None:
    before = torch.cuda.memory_allocated()
    engine = native(dtype=torch.bfloat16, device="cuda")
    digest = engine.digest()
    engine.release(ALL)
    assert torch.cuda.memory_allocated() - before < engine._model.transformer.memory.data.nbytes
    assert engine.digest() == digest


def test_what_finds_no_room_stays_away_and_comes_back_when_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = torch.arange(4.0), torch.arange(6.0)
    buffers = DeviceBuffers({"parameters": [first, second]})
    buffers.release("parameters", "host")
    copied = torch.Tensor.copy_

    def full(self: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        if self is second:
            raise torch.OutOfMemoryError("no room")
        return copied(self, source, non_blocking)

    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "copy_", full)
        with pytest.raises(torch.OutOfMemoryError):
            buffers.need("parameters")
    assert buffers.held() == NOTHING
    buffers.need("parameters")
    assert first.tolist() == [0, 1, 2, 3] and second.tolist() == [0, 1, 2, 3, 4, 5]
