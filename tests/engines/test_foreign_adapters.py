"""Models of transformers with low-rank adapters: PEFT's numbers, a frozen base, the same on two workers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.adapted import ADAPTERS
from support.beside_peft import check_beside_peft
from support.foreign_models import KINDS, foreign_adapted, foreign_engine, learn, save_library_model
from support.layouts import PROMPTS, ROWS, SEEDS
from support.pool import everyone, gloo_pool
from support.sharded import DTYPES
from support.tiny import WITH_NOBODY

from hpcrl.config.generation import GenerationConfig
from hpcrl.config.model import TrainedModelConfig
from hpcrl.engines.adapters import adapted_in_flat_buffers
from hpcrl.engines.composed import ComposedEngine
from hpcrl.engines.foreign import FlatForeign
from hpcrl.errors import DataError
from hpcrl.families.adapters import targets_of
from hpcrl.families.foreign import ForeignConfig
from hpcrl.families.reader import family_of, read_config
from hpcrl.models.adapters import Adapted
from hpcrl.models.foreign_adapters import BesideModules
from hpcrl.parallel.replica import over_data
from hpcrl.placement.layouts import Layout
from hpcrl.placement.memory import as_adapted, parameters_held, role_memory
from hpcrl.placement.shards import WHOLE


@pytest.mark.parametrize(
    ("kind", "task"),
    [
        ("gpt_neox", "TOKEN_CLS"),
        *(pytest.param(it, "CAUSAL_LM", marks=() if it == "gpt2" else pytest.mark.slow) for it in KINDS),
        pytest.param("bloom", "TOKEN_CLS", marks=pytest.mark.slow),
    ],
)
def test_we_load_what_peft_writes_learn_what_it_learns_and_peft_loads_ours(
    kind: str, task: str, tmp_path: Path
) -> None:
    save_library_model(tmp_path / "base", kind, **({} if task == "CAUSAL_LM" else {"num_labels": 1}))
    check_beside_peft(tmp_path, task, "transformers", fan_in_fan_out=kind == "gpt2")


def trained(engine: ComposedEngine) -> tuple[Any, ...]:
    return engine.digest(), engine.parameters_digest(), *engine.forward(ROWS)


def test_the_base_is_frozen_and_merged_weights_say_the_same(tmp_path: Path) -> None:
    save_library_model(tmp_path, "gpt_neox")
    engine, base = foreign_adapted(tmp_path), foreign_engine(tmp_path, dtype=torch.float64)
    learn(engine)
    with engine.without_adapters():
        np.testing.assert_array_equal(engine.forward(ROWS), base.forward(ROWS))
    said = engine.forward(ROWS)
    assert np.abs(base.forward(ROWS) - said).max() > 0.1
    merged = foreign_engine(tmp_path, dtype=torch.float64)
    merged.flat()[1].copy_(engine.flat()[1])
    assert merged.parameters_digest() == engine.parameters_digest()
    np.testing.assert_allclose(merged.forward(ROWS), said, rtol=0, atol=1e-6)
    config = GenerationConfig(max_new_tokens=6, temperature=0.9)
    one, other = (it.generate(PROMPTS, SEEDS, config) for it in (engine, merged))
    assert all(map(np.array_equal, one.tokens, other.tokens))


@pytest.mark.parametrize("kind", ["gpt_neox", pytest.param("bloom", marks=pytest.mark.slow)])
def test_activations_made_again_and_adapters_that_wait_change_no_bit(kind: str, tmp_path: Path) -> None:
    save_library_model(tmp_path, kind)
    kept, again = (foreign_adapted(tmp_path) for _ in range(2))
    again._model.transformer.recompute = True
    again.release({"parameters": "host", "gradients": "drop", "optimizer": "host"})
    assert not any(again.held().values())
    assert learn(kept) == learn(again)
    assert trained(kept) == trained(again)
    saved = again.snapshot()
    assert all("lora" in it.place.parameter for it in saved.spans)
    other = foreign_adapted(tmp_path)
    assert other.load([saved])
    assert trained(other) == trained(kept)


def on_rank(context: Any, folder: Path) -> dict[str, Any]:
    engine = foreign_adapted(folder, groups=over_data(everyone(context)))
    losses = learn(engine, rows=[row for row in range(len(ROWS)) if (row % 3 == 0) is bool(context.rank)])
    digests = engine.digest(), engine.parameters_digest()
    return {"losses": losses, "says": engine.forward(ROWS), "digests": digests, "saved": engine.snapshot()}


@pytest.fixture(scope="module")
def pool() -> Any:
    with gloo_pool(2) as ranks:
        yield ranks


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gpt_neox", "olmoe"])
def test_two_workers_learn_as_one_does(pool: Any, kind: str, tmp_path: Path) -> None:
    save_library_model(tmp_path, kind)
    alone = foreign_adapted(tmp_path)
    losses = learn(alone)
    found = pool.run(on_rank, tmp_path)
    for one in found:
        assert one["losses"] == pytest.approx(losses, rel=1e-6)
        np.testing.assert_allclose(one["says"], alone.forward(ROWS), atol=1e-6)
        assert one["digests"] == found[0]["digests"]
    again = foreign_adapted(tmp_path)
    assert again.load([one["saved"] for one in found])
    assert (again.digest(), again.parameters_digest()) == found[0]["digests"]


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_what_is_held_is_what_the_plan_says(dtype: str, tmp_path: Path) -> None:
    save_library_model(tmp_path, "gpt_neox", hidden_size=128, intermediate_size=256)
    held = foreign_adapted(tmp_path, DTYPES[dtype]).held()
    role = TrainedModelConfig(path=str(tmp_path), dtype=dtype, model="transformers")
    model = read_config(tmp_path, kind="transformers")
    memory = role_memory(model, parameters_held(model, WHOLE), role, Layout())
    memory = as_adapted(memory, replace(model, adapters=ADAPTERS), role, Layout())
    for kind, size in held.items():
        assert getattr(memory, kind) == pytest.approx(size, rel=0.1), kind


def test_modules_that_compute_nothing_are_refused(tmp_path: Path) -> None:
    """Those of Mamba whose matrices others multiply by are no targets; one that is missed is found when it is made."""
    save_library_model(tmp_path, "mamba")
    config = read_config(tmp_path, kind="transformers")
    assert isinstance(config, ForeignConfig)
    assert {target.name for target in targets_of(config, family_of(config))} == {"in_proj"}
    library = replace(config.library, linear={"in_proj": False, "dt_proj": False})
    with pytest.raises(DataError, match="computes nothing by its modules dt_proj"):
        adapted_in_flat_buffers(
            replace(config, library=library, adapters=ADAPTERS), WITH_NOBODY, torch.float32, torch.device("cpu")
        )
    save_library_model(tmp_path / "mixtral", "mixtral")
    config = read_config(tmp_path / "mixtral", kind="transformers")
    assert isinstance(config, ForeignConfig)
    library = FlatForeign(config, trainable=False).model.library
    with pytest.raises(DataError, match="has no linear module"):
        BesideModules(library, Adapted(1.0), {"model.layers.0.block_sparse_moe.gate": ()})
