"""Models with low-rank adapters: PEFT's numbers, the same in every layout, and merged ones for those who have none."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.adapted import ADAPTERS, adapted, numbers_of
from support.beside_peft import check_beside_peft, peft_model
from support.layouts import ROWS, columns_of, compare, groups_in, objective, worked
from support.pool import gloo_pool
from support.tiny import native
from support.tiny_models import gemma2_config, gpt2_config, qwen3_moe_config, save_hugging_face_model, tiny_config

from hpcrl.engines.composed import ComposedEngine
from hpcrl.engines.engine import Update
from hpcrl.errors import DataError
from hpcrl.families.config import DecoderConfig
from hpcrl.models.pretrained import load_adapters, read_config
from hpcrl.placement.layouts import Layout, parse_layout

EVERY = list(range(len(ROWS)))
MODELS: Mapping[str, DecoderConfig] = {
    "tied": tiny_config(blocks=4, kv_heads=1, vocabulary_size=61, tied=True),
    "critic": tiny_config(blocks=4, head="value"),
    "gpt2": gpt2_config(blocks=4),
    "gemma2": gemma2_config(blocks=4, vocabulary_size=61),
    "qwen3_moe": qwen3_moe_config(blocks=4),
}


@pytest.fixture(scope="module")
def pool() -> Any:
    with gloo_pool(4) as ranks:
        yield ranks


def on_rank(context: Any, config: DecoderConfig, layout: Layout, split: list[list[int]], recompute: bool) -> Any:
    groups = groups_in(context, layout)
    if groups is None:
        return None
    engine = adapted(config, group=groups, micro_batch_tokens=40)
    engine._model.transformer.recompute = recompute
    found = worked(engine, split[groups.dp.index])
    return found | {"merged": engine.parameters_digest(), "saved": engine.snapshot()}


QUICK = [("tied", "d2t2"), ("critic", "t2p2")]
WIDE = [(name, layout) for name in MODELS for layout in ("d2", "t2", "p2", "t4", "d2p2", "t2p2")]


@pytest.mark.parametrize(
    ("name", "layout"), [*QUICK, *(pytest.param(*it, marks=pytest.mark.slow) for it in WIDE if it not in QUICK)]
)
def test_adapters_in_a_layout_give_what_one_process_gives(pool: Any, name: str, layout: str) -> None:
    config, arrangement = MODELS[name], parse_layout(layout)
    split = [EVERY[part :: arrangement.dp] for part in range(arrangement.dp)]
    found = [it for it in pool.run(on_rank, config, arrangement, split, layout == "t2p2") if it is not None]
    one = adapted(config)
    compare(replace(config, adapters=ADAPTERS), arrangement, found, worked(one, EVERY))
    assert len({own["merged"] for own in found}) == 1
    again = adapted(config)
    assert again.load([own["saved"] for own in found])
    assert again.digest() == found[0]["digest"]
    assert again.parameters_digest() == found[0]["merged"]


def test_the_base_is_frozen_and_merged_weights_say_the_same() -> None:
    engine, base = adapted(MODELS["tied"]), native(config=MODELS["tied"], optimizer=None)
    with engine.without_adapters():
        np.testing.assert_array_equal(engine.forward(ROWS, 0.8), base.forward(ROWS, 0.8))
    train(engine)
    with engine.without_adapters():
        np.testing.assert_array_equal(engine.forward(ROWS, 0.8), base.forward(ROWS, 0.8))
    merged = native(config=MODELS["tied"], optimizer=None)
    merged.flat()[1].copy_(engine.flat()[1])
    assert merged.parameters_digest() == engine.parameters_digest()
    said = engine.forward(ROWS, 0.8)
    np.testing.assert_allclose(merged.forward(ROWS, 0.8), said, rtol=0, atol=1e-11)
    assert np.abs(base.forward(ROWS, 0.8) - said).max() > 0.1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_adapters_wait_on_the_host_and_go_on_with_the_same_bits(dtype: torch.dtype) -> None:
    stays, waits = (adapted(MODELS["critic"], dtype) for _ in range(2))
    train(stays)
    waits.release({"parameters": "host", "gradients": "drop", "optimizer": "host"})
    assert not any(waits.held().values())
    saved = waits.snapshot()
    train(waits)
    assert (waits.digest(), waits.parameters_digest()) == (stays.digest(), stays.parameters_digest())
    assert all("lora" in it.place.parameter or ".head" in it.place.parameter for it in saved.spans)
    waits.load([saved])
    train(waits)
    assert waits.digest() == stays.digest()


def train(engine: ComposedEngine, updates: int = 2) -> None:
    entropy = not engine._model.gives_values
    for i in range(updates):
        engine.train_batch(ROWS, columns_of(EVERY), objective(entropy), Update(1, i, updates))


# Beside PEFT

LATER = ("llama", "qwen3", "gemma2", "gemma3_text", "qwen3_moe")


@pytest.mark.parametrize(
    ("family", "task"),
    [
        ("qwen2", "CAUSAL_LM"),
        ("qwen2", "TOKEN_CLS"),
        pytest.param("gpt2", "CAUSAL_LM", marks=pytest.mark.slow),
        *(pytest.param(it, "CAUSAL_LM", marks=pytest.mark.slow) for it in LATER),
        ("mixtral", "CAUSAL_LM"),
        pytest.param("gpt2", "TOKEN_CLS", marks=pytest.mark.slow),
    ],
)
def test_we_load_what_peft_writes_learn_what_it_learns_and_peft_loads_ours(
    family: str, task: str, tmp_path: Path
) -> None:
    changes = {} if task == "CAUSAL_LM" else {"num_labels": 1}
    ending = "CausalLM" if task == "CAUSAL_LM" else "TokenClassification"
    save_hugging_face_model(tmp_path / "base", family, ending, **changes)
    check_beside_peft(tmp_path, task, fan_in_fan_out=family == "gpt2")


def test_new_adapters_add_nothing_and_are_the_same_however_they_are_cut(tmp_path: Path) -> None:
    config = replace(MODELS["tied"], adapters=ADAPTERS)
    made = dict(load_adapters(config, None, seed=3))
    assert {name.rpartition(".")[2] for name in made} == {"lora_A", "lora_B"}
    for name, tensor in made.items():
        if name.endswith("lora_B"):
            assert not tensor.any()
        else:
            assert tensor.abs().max() <= tensor.shape[0] ** -0.5 < 1.2 * tensor.abs().max()
    plain, fresh = native(config=MODELS["tied"], optimizer=None), adapted(MODELS["tied"], zero=True)
    np.testing.assert_array_equal(fresh.forward(ROWS), plain.forward(ROWS))


def test_adapters_of_another_base_are_refused_with_all_that_differs(tmp_path: Path) -> None:
    save_hugging_face_model(tmp_path / "base", "qwen2")
    theirs = peft_model(tmp_path / "base", "CAUSAL_LM", ["q_proj", "up_proj"])
    theirs.save_pretrained(tmp_path / "theirs")
    config = read_config(tmp_path / "base")
    wider = replace(config, intermediate_size=50, adapters=replace(ADAPTERS, rank=5, targets=("q_proj", "k_proj")))
    with pytest.raises(DataError) as raised:
        list(load_adapters(wider, tmp_path / "theirs"))
    told = str(raised.value)
    for part in ("r = 4, but lora.rank = 5", "k_proj", "up_proj", "another base"):
        assert part in told, told
    fields = json.loads((tmp_path / "theirs" / "adapter_config.json").read_text())
    (tmp_path / "theirs" / "adapter_config.json").write_text(json.dumps(fields | {"use_dora": True}))
    same = replace(config, adapters=replace(ADAPTERS, targets=("q_proj", "up_proj")))
    with pytest.raises(DataError, match="use_dora = True; False is supported"):
        list(load_adapters(same, tmp_path / "theirs"))


def test_names_of_a_model_are_those_of_both() -> None:
    config = replace(MODELS["critic"], adapters=ADAPTERS)
    names = [name for name, _ in numbers_of(config)]
    assert len(names) == len(set(names))
