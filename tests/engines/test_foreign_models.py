"""Models of transformers in an engine: they learn, speak, generate and are saved as transformers has them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from support.foreign_models import KINDS, PADDED, foreign_engine, learn, learnt_on_rank, save_library_model
from support.layouts import PROMPTS, RESPONSES, ROWS, SEEDS, columns_of
from support.pool import gloo_pool
from support.sharded import DTYPES
from support.tiny import engine_of

from hpcrl.config.classifier import ClassifierConfig
from hpcrl.config.generation import GenerationConfig
from hpcrl.config.model import OptimizerConfig, TrainedModelConfig
from hpcrl.durable.model_folder import write_model
from hpcrl.engines.composed import ComposedEngine
from hpcrl.engines.engine import Sequences
from hpcrl.engines.flat import new_model
from hpcrl.engines.foreign import FlatForeign
from hpcrl.errors import DataError
from hpcrl.families.foreign import ForeignConfig
from hpcrl.families.reader import parameters_of, read_config
from hpcrl.families.stored import check_tensors
from hpcrl.models.foreign import blocks_of
from hpcrl.placement.judges import whole_because
from hpcrl.placement.layouts import Layout
from hpcrl.placement.memory import buffer_length, role_memory
from hpcrl.placement.shards import WHOLE

OPTIMIZER = OptimizerConfig(lr=0.01, eps=1.0, grad_clip=0.0, weight_decay=0.1)
LARGE_SEEDS = [2**64 - 1 - seed for seed in SEEDS]
FAST = ("opt", "gpt_neox", "mamba", "mixtral")


def kinds(fast: tuple[str, ...] = FAST) -> list[Any]:
    return [pytest.param(kind, marks=() if kind in fast else pytest.mark.slow) for kind in KINDS]


def taught(library: Any, updates: int = 3) -> list[float]:
    """What transformers and torch make of the same rows, one text after another."""
    decaying = [it for it in library.parameters() if it.dim() > 1]
    groups = [
        {"params": decaying, "weight_decay": OPTIMIZER.weight_decay},
        {"params": [it for it in library.parameters() if it.dim() < 2], "weight_decay": 0.0},
    ]
    adamw = torch.optim.AdamW(groups, lr=OPTIMIZER.lr, betas=OPTIMIZER.betas, eps=OPTIMIZER.eps)
    columns, losses = columns_of(range(len(ROWS))), []
    advantages = np.split(columns.labels["advantages"], np.cumsum(ROWS.labels)[:-1])
    for _ in range(updates):
        adamw.zero_grad()
        total = 0.0
        for prompt, response, advantage in zip(PROMPTS, RESPONSES, advantages, strict=True):
            text = torch.from_numpy(np.concatenate([prompt, response])).long()
            logits = library(text[None, :-1], use_cache=False).logits[0, len(prompt) - 1 :] / 0.8
            spread = logits.log_softmax(-1)
            chosen = spread.gather(-1, text[len(prompt) :, None])[:, 0]
            entropy = -(spread.exp() * spread).sum(-1)
            loss = (torch.from_numpy(advantage) * chosen.square() - 0.01 * entropy).sum() / int(ROWS.labels.sum())
            loss.backward()
            total += loss.item()
        adamw.step()
        losses.append(total)
    return losses


def values_of(engine: ComposedEngine) -> dict[str, torch.Tensor]:
    transformer = engine._model.transformer
    assert isinstance(transformer, FlatForeign)
    return {name: view.detach() for name, view in transformer.memory.views.items()}


@pytest.mark.parametrize("kind", kinds())
def test_a_model_learns_as_it_does_from_one_text_after_another(kind: str, tmp_path: Path) -> None:
    library = save_library_model(tmp_path, kind)
    engine = foreign_engine(tmp_path, optimizer=OPTIMIZER, dtype=torch.float64)
    model = engine._model.transformer
    assert isinstance(model, FlatForeign) and bool(model.padded_because) == (kind in PADDED), model.padded_because
    library.set_experts_implementation("eager")  # torch's grouped products have no float64
    np.testing.assert_allclose(learn(engine), taught(library.double()), rtol=1e-6)
    library.save_pretrained(tmp_path / "taught")
    with safe_open(tmp_path / "taught" / "model.safetensors", "np") as theirs:
        for name, value in values_of(engine).items():
            np.testing.assert_allclose(value, theirs.get_tensor(name), rtol=0, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("kind", kinds())
def test_greedy_responses_are_those_of_generate(kind: str, tmp_path: Path) -> None:
    library = save_library_model(tmp_path, kind)
    config = GenerationConfig(max_new_tokens=7, greedy=True, slots=3)
    found = foreign_engine(tmp_path).generate(PROMPTS, SEEDS, config)
    for prompt, tokens in zip(PROMPTS, found.tokens, strict=True):
        given = torch.from_numpy(prompt)[None].long()
        theirs = library.generate(given, max_new_tokens=7, do_sample=False, eos_token_id=0, pad_token_id=0)
        assert theirs[0, len(prompt) :][: len(tokens)].tolist() == tokens.tolist()
        assert len(tokens) == 7 or tokens[-1] == 0


def test_log_probabilities_of_what_is_drawn_are_those_that_forward_says(tmp_path: Path) -> None:
    save_library_model(tmp_path, "gpt_neox")
    engine = foreign_engine(tmp_path, dtype=torch.float64)
    config = GenerationConfig(max_new_tokens=9, min_new_tokens=1, temperature=0.9, slots=8)
    drawn = engine.generate(PROMPTS, SEEDS, config)
    says = engine.forward(Sequences.from_rows(PROMPTS, drawn.tokens), 0.9)
    firsts = np.cumsum([0, *map(len, drawn.tokens)])[:-1]
    later = np.setdiff1d(np.arange(len(says)), firsts)  # the first may not be the end, which is left out
    np.testing.assert_allclose(np.concatenate(drawn.logprobs)[later], says[later], atol=1e-6)
    again = engine.generate(PROMPTS[::-1], SEEDS[::-1], config)
    assert all(map(np.array_equal, drawn.tokens, again.tokens[::-1]))


def test_what_follows_tokens_that_are_drawn_is_what_is_drawn_at_once(tmp_path: Path) -> None:
    save_library_model(tmp_path, "gpt_neox")
    engine = foreign_engine(tmp_path, dtype=torch.float64)
    config = GenerationConfig(max_new_tokens=9, min_new_tokens=6, slots=8)
    whole = engine.generate(PROMPTS, SEEDS, config)
    counts = [row % 4 for row in range(len(PROMPTS))]
    begun = [tokens[:count] for tokens, count in zip(whole.tokens, counts, strict=True)]
    limits = [5 + row % 5 for row in range(len(PROMPTS))]
    made = engine.generate(PROMPTS, SEEDS, config, begun, limits)
    for row, (count, limit) in enumerate(zip(counts, limits, strict=True)):
        assert made.tokens[row].tolist() == whole.tokens[row][count:limit].tolist()
        np.testing.assert_allclose(made.logprobs[row], whole.logprobs[row][count:limit], atol=1e-12)
        assert made.finished[row] == (whole.finished[row] and len(whole.tokens[row]) <= limit)


def test_a_llama_of_transformers_is_the_llama_of_our_own(tmp_path: Path) -> None:
    save_library_model(tmp_path, "llama")
    theirs = foreign_engine(tmp_path, optimizer=OPTIMIZER, dtype=torch.float64)
    ours = engine_of(new_model(tmp_path, dtype=torch.float64), micro_batch_tokens=40, optimizer=OPTIMIZER)
    np.testing.assert_allclose(theirs.forward(ROWS, 0.8), ours.forward(ROWS, 0.8), atol=1e-5)
    np.testing.assert_allclose(learn(theirs), learn(ours), rtol=1e-6)
    np.testing.assert_allclose(theirs.forward(ROWS, 0.8), ours.forward(ROWS, 0.8), atol=1e-5)
    for config in (GenerationConfig(max_new_tokens=6), GenerationConfig(max_new_tokens=6, top_k=7, top_p=0.9)):
        one, other = (engine.generate(PROMPTS, LARGE_SEEDS, config) for engine in (theirs, ours))
        assert all(map(np.array_equal, one.tokens, other.tokens))
        np.testing.assert_allclose(np.concatenate(one.logprobs), np.concatenate(other.logprobs), atol=1e-5)


@pytest.mark.parametrize("kind", ["gpt_neox", pytest.param("bloom", marks=pytest.mark.slow)])
def test_a_critic_says_a_value_before_each_label(kind: str, tmp_path: Path) -> None:
    import transformers

    save_library_model(tmp_path, kind)
    engine = foreign_engine(tmp_path, "value", optimizer=OPTIMIZER)
    learn(engine)
    export(engine, tmp_path / "critic")
    library = transformers.AutoModelForTokenClassification.from_pretrained(tmp_path / "critic").eval()
    says = np.split(engine.forward(ROWS), np.cumsum(ROWS.labels)[:-1])
    for prompt, response, own in zip(PROMPTS, RESPONSES, says, strict=True):
        text = torch.from_numpy(np.concatenate([prompt, response])).long()
        with torch.no_grad():
            values = library(text[None, :-1]).logits[0, len(prompt) - 1 :, 0]
        np.testing.assert_allclose(own, values, atol=1e-5)
    again = read_config(tmp_path / "critic", kind="transformers")
    assert again.head == "value"
    check_tensors(tmp_path / "critic", again, "value")


def export(engine: ComposedEngine, folder: Path) -> None:
    config, values = engine._model.transformer.config, values_of(engine)
    write_model(folder, config, "float32", lambda parameter: values[parameter.name].numpy())


@pytest.mark.parametrize("kind", kinds(("opt", "gpt_neox")))
def test_an_export_has_every_tensor_and_field_and_is_loaded(kind: str, tmp_path: Path) -> None:
    import transformers

    library = save_library_model(tmp_path, kind)
    engine = foreign_engine(tmp_path)
    export(engine, tmp_path / "out")
    with (
        safe_open(tmp_path / "model.safetensors", "np") as given,
        safe_open(tmp_path / "out" / "model.safetensors", "np") as made,
    ):
        assert set(given.keys()) == set(made.keys())
        assert all(np.array_equal(given.get_tensor(name), made.get_tensor(name)) for name in set(given.keys()))
    said, says = (json.loads((folder / "config.json").read_text()) for folder in (tmp_path, tmp_path / "out"))
    assert says == said
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    for name, parameter in loaded.named_parameters():
        assert torch.equal(parameter, library.get_parameter(name)), name


@pytest.mark.parametrize("kind", ["gpt_neox", pytest.param("bloom", marks=pytest.mark.slow)])
def test_activations_that_are_made_again_give_the_same_bits(kind: str, tmp_path: Path) -> None:
    save_library_model(tmp_path, kind)
    kept, again = (foreign_engine(tmp_path, optimizer=OPTIMIZER) for _ in range(2))
    again._model.transformer.recompute = True
    assert learn(kept) == learn(again)
    assert kept.digest() == again.digest()


def test_parameters_may_wait_in_host_memory(tmp_path: Path) -> None:
    save_library_model(tmp_path, "opt")
    waits, stays = (foreign_engine(tmp_path, optimizer=OPTIMIZER) for _ in range(2))
    waits.release({"parameters": "host", "gradients": "drop", "optimizer": "host"})
    assert not any(waits.held().values())
    assert np.array_equal(waits.forward(ROWS), stays.forward(ROWS))
    waits.release({"parameters": "host", "gradients": "drop", "optimizer": "host"})
    assert learn(waits) == learn(stays)
    assert waits.digest() == stays.digest()


def test_a_folder_without_a_head_is_read_by_its_full_names(tmp_path: Path) -> None:
    library = save_library_model(tmp_path / "whole", "bloom")
    library.transformer.save_pretrained(tmp_path / "trunk")
    values = json.loads((tmp_path / "whole" / "config.json").read_text())
    (tmp_path / "trunk" / "config.json").write_text(json.dumps(values))
    one, other = (read_config(tmp_path / name, kind="transformers") for name in ("trunk", "whole"))
    assert parameters_of(one) == parameters_of(other)
    trunk, whole = (foreign_engine(tmp_path / name) for name in ("trunk", "whole"))
    assert np.array_equal(trunk.forward(ROWS), whole.forward(ROWS))


def test_a_head_that_does_more_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import OPTForCausalLM

    save_library_model(tmp_path, "opt")
    theirs = OPTForCausalLM.forward

    def more(self: Any, *args: Any, **options: Any) -> Any:
        found = theirs(self, *args, **options)
        found.logits = found.logits.square()
        return found

    monkeypatch.setattr(OPTForCausalLM, "forward", more)
    with pytest.raises(DataError, match="OPTForCausalLM does more to its logits"):
        foreign_engine(tmp_path)


def test_tensors_that_the_class_does_not_have_are_refused(tmp_path: Path) -> None:
    save_library_model(tmp_path, "opt")
    config = read_config(tmp_path, kind="transformers")
    assert isinstance(config, ForeignConfig)
    strange = replace(config, tensors=(*config.tensors, ("model.decoder.layers.0.more", (3,))))
    with pytest.raises(DataError, match=r"OPTForCausalLM has no tensor model.decoder.layers.0.more of shape \[3\]"):
        FlatForeign(strange)
    with pytest.raises(DataError, match="No weights were given for model"):
        FlatForeign(replace(config, tensors=config.tensors[:-1]))


def test_blocks_that_are_not_those_of_the_tensors_are_refused(tmp_path: Path) -> None:
    library = save_library_model(tmp_path, "opt")
    with pytest.raises(DataError, match="OPTForCausalLM has no list of 3 blocks"):
        blocks_of(library, 3)
    assert blocks_of(library, 2) == list(library.model.decoder.layers)


def test_experts_whose_numbers_do_not_lie_side_by_side_are_refused(tmp_path: Path) -> None:
    save_library_model(tmp_path, "mixtral", hidden_size=20, intermediate_size=13)
    with pytest.raises(DataError, match="an expert's matrix has 260 numbers; a multiple of 64 is needed"):
        foreign_engine(tmp_path)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", [pytest.param("gpt_neox", marks=pytest.mark.slow), "mixtral"])
def test_what_is_held_is_what_the_plan_says(kind: str, dtype: str, tmp_path: Path) -> None:
    save_library_model(tmp_path, kind)
    engine = foreign_engine(tmp_path, dtype=DTYPES[dtype], optimizer=OPTIMIZER)
    config = TrainedModelConfig(path=str(tmp_path), dtype=dtype, optimizer=OPTIMIZER, model="transformers")
    model = engine._model.transformer.config
    planned = role_memory(model, buffer_length(model, WHOLE), config, Layout(1, 1, 1))
    held = engine.held()
    for part in ("parameters", "gradients", "optimizer"):
        assert getattr(planned, part) == pytest.approx(held[part], rel=0.02), part


@pytest.fixture(scope="module")
def pool() -> Any:
    with gloo_pool(2) as ranks:
        yield ranks


@pytest.mark.parametrize("kind", [pytest.param("gpt_neox", marks=pytest.mark.slow), "bloom"])
def test_two_workers_learn_as_one_does(pool: Any, kind: str, tmp_path: Path) -> None:
    save_library_model(tmp_path, kind)
    alone = foreign_engine(tmp_path, optimizer=OPTIMIZER, dtype=torch.float64)
    losses = learn(alone)
    for found in pool.run(learnt_on_rank, tmp_path, OPTIMIZER):
        assert found["losses"] == pytest.approx(losses, rel=1e-6)
        assert found["padded"] == [kind in PADDED] * 2
        np.testing.assert_allclose(found["says"], alone.forward(ROWS), atol=1e-6)


def test_what_one_worker_cannot_pack_none_does(pool: Any, tmp_path: Path) -> None:
    save_library_model(tmp_path, "gpt_neox")
    found = pool.run(learnt_on_rank, tmp_path, OPTIMIZER, True)
    assert [one["padded"] for one in found] == [[False, True]] * 2
    assert found[0]["why"] == "another worker cannot pack them"
    assert found[1]["why"] == "packed texts are not what they are alone"


@pytest.mark.parametrize("kind", kinds(("mamba",)))
def test_a_model_in_half_precision_says_about_the_same(kind: str, tmp_path: Path) -> None:
    save_library_model(tmp_path, kind)
    half, full = (foreign_engine(tmp_path, dtype=DTYPES[name], optimizer=OPTIMIZER) for name in ("bf16", "fp32"))
    error = half.forward(ROWS) - full.forward(ROWS)
    assert np.square(error).mean() ** 0.5 < 0.5 * full.forward(ROWS).std()
    learn(half)
    half.generate(PROMPTS, SEEDS, GenerationConfig(max_new_tokens=3))


def test_where_padding_changes_a_text_batches_are_of_one_length(tmp_path: Path) -> None:
    save_library_model(tmp_path, "gemma2")
    engine = foreign_engine(tmp_path, dtype=torch.float64)
    model = engine._model.transformer
    assert isinstance(model, FlatForeign) and model.model.most_padding == 0.0
    packed = engine.forward(ROWS)
    model.model.packs = model.shares_prefixes = False
    np.testing.assert_allclose(engine.forward(ROWS), packed, atol=1e-5)


def test_a_reward_model_that_was_trained_is_held_by_an_engine_afterwards(tmp_path: Path) -> None:
    save_library_model(tmp_path, "gpt_neox")
    engine = foreign_engine(tmp_path, "reward", optimizer=OPTIMIZER)
    learn(engine)
    export(engine, tmp_path / "judge")
    read = read_config(tmp_path / "judge", kind="auto")
    assert (read.head, whole_because(ClassifierConfig(path=str(tmp_path / "judge")))) == ("reward", "")
    again = foreign_engine(tmp_path / "judge", "reward")
    assert np.array_equal(again.forward(ROWS), engine.forward(ROWS))
    assert "gpt_neox" in whole_because(ClassifierConfig(path=str(tmp_path)))
