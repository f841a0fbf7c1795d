"""Models that transformers computes: what a plan says of them, and what is refused before anything is submitted."""

from pathlib import Path
from typing import Any

import pytest
from support.experiments import QWEN2_TINY
from support.foreign_folders import OPT, TENSORS, problems, write

from hpcrl.errors import ConfigurationError
from hpcrl.families.foreign import UNBOUNDED, ForeignConfig
from hpcrl.families.library import library_model
from hpcrl.families.reader import parameter_count, parameters_of, read_config
from hpcrl.families.words import in_words


def test_sizes_and_layers_are_those_of_the_tensors(tmp_path: Path) -> None:
    write(tmp_path, OPT)
    config = read_config(tmp_path, kind="auto")
    assert isinstance(config, ForeignConfig)
    assert parameter_count(config) == 64 * 32 + 130 * 32 + 2 * 48 * 33 + 32
    layers = {parameter.name: parameter.layer for parameter in parameters_of(config)}
    assert [layers[name] for name in TENSORS] == [0, 0, 1, 2, 1, 2, 3]
    assert [it.name for it in parameters_of(config) if not it.decays] == [
        "model.decoder.layers.0.fc1.bias",
        "model.decoder.layers.1.fc1.bias",
        "model.decoder.final_layer_norm.weight",
    ]
    assert (config.blocks, config.max_positions, config.tied) == (2, 128, True)
    assert "opt, " in in_words(config) and "transformers runs it: model_type 'opt' is not supported" in in_words(config)


def test_a_model_without_a_table_of_positions_has_a_bound_all_the_same(tmp_path: Path) -> None:
    fields = {"model_type": "bloom", "vocab_size": 64, "hidden_size": 32, "n_layer": 1, "n_head": 4}
    write(tmp_path, fields, {"word_embeddings.weight": (64, 32), "h.0.mlp.dense.weight": (32, 32), "ln_f.bias": (32,)})
    config = read_config(tmp_path, kind="auto")
    assert config.max_positions == UNBOUNDED
    assert [it.name for it in parameters_of(config)] == [
        "transformer.word_embeddings.weight",
        "transformer.h.0.mlp.dense.weight",
        "transformer.ln_f.bias",
    ]


def test_masks_and_frequencies_of_old_folders_are_no_parameters(tmp_path: Path) -> None:
    old = {"gpt_neox.layers.0.attention.bias": (1, 1, 4, 4), "gpt_neox.layers.0.attention.masked_bias": ()}
    new = {"gpt_neox.embed_in.weight": (64, 32), "gpt_neox.layers.0.attention.dense.bias": (32,)}
    write(tmp_path, OPT | {"model_type": "gpt_neox", "architectures": ["GPTNeoXForCausalLM"]}, old | new)
    assert [it.name for it in parameters_of(read_config(tmp_path, kind="transformers"))] == [*new]


def test_auto_takes_our_own_code_where_it_knows_every_field(tmp_path: Path) -> None:
    tensors = {"model.embed_tokens.weight": (64, 32), "model.layers.0.mlp.up_proj.weight": (48, 32)}
    write(tmp_path, QWEN2_TINY, tensors)
    assert not isinstance(read_config(tmp_path, kind="auto"), ForeignConfig)
    assert isinstance(read_config(tmp_path, kind="transformers"), ForeignConfig)
    write(tmp_path, QWEN2_TINY | {"rope_wobble": 3}, tensors)
    found = read_config(tmp_path, kind="auto")
    assert isinstance(found, ForeignConfig)
    assert found.because == "rope_wobble = 3 is not known here and may change the mathematics"
    with pytest.raises(ConfigurationError, match="rope_wobble"):
        read_config(tmp_path, kind="own")


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"auto_map": {"AutoModelForCausalLM": "mine.Mine"}}, "auto_map names code of the folder's own"),
        ({"quantization_config": {"bits": 4}}, "quantised weights are not supported"),
        ({"is_encoder_decoder": True}, "only decoders are supported"),
        ({"vocab_size": None}, "vocab_size is needed, as a positive integer"),
        ({"rope_scaling": {"type": "longrope"}}, "rope type 'longrope'"),
        ({"architectures": ["OPTForQuestionAnswering"]}, "not OPTForCausalLM"),
        ({"model_type": "unheard_of"}, "transformers has no decoder of model_type 'unheard_of'"),
    ],
)
def test_what_neither_can_run_is_refused(tmp_path: Path, fields: dict[str, Any], problem: str) -> None:
    write(tmp_path, OPT | fields)
    with pytest.raises(ConfigurationError) as raised:
        read_config(tmp_path, kind="auto")
    assert problem in str(raised.value) and "own code does not run it either" in str(raised.value)
    with pytest.raises(ConfigurationError, match=r"hpcrl|config.json"):
        read_config(tmp_path, kind="transformers")


def test_pickled_weights_are_refused(tmp_path: Path) -> None:
    write(tmp_path, OPT)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(ConfigurationError, match=r"only pickled weights \(pytorch_model.bin\)"):
        read_config(tmp_path, kind="auto")


def test_the_heads_of_transformers_classes_are_known_by_their_text() -> None:
    known = {kind: library_model(kind) for kind in ("llama", "gpt_neox", "bloom", "opt", "mamba")}
    found = {kind: (it.tokens, it.prefix, it.head) for kind, it in known.items() if it is not None}
    assert found == {
        "llama": ("LlamaForTokenClassification", "model", "score"),
        "gpt_neox": ("GPTNeoXForTokenClassification", "gpt_neox", "classifier"),
        "bloom": ("BloomForTokenClassification", "transformer", "classifier"),
        "opt": (None, "model", ""),
        "mamba": (None, "backbone", ""),
    }


def test_a_critic_of_a_model_without_such_a_class_is_refused(load: Any, tmp_path: Path) -> None:
    write(tmp_path / "model", OPT)
    assert problems(load) == [
        "critic.path: transformers has no class for opt that gives a number for each token (…ForTokenClassification, "
        "ending in one linear module), which a value head is. Set critic.path to another model."
    ]


def test_layouts_and_backends_that_cut_it_are_refused(load: Any, tmp_path: Path) -> None:
    tensors = {"model.embed_tokens.weight": (64, 32), "model.layers.0.mlp.up_proj.weight": (48, 32)}
    write(tmp_path / "model", QWEN2_TINY | {"rope_wobble": 3}, tensors)
    load()
    (cut,) = problems(load, "actor.layout=t2")
    assert cut == (
        "actor.layout = t2 splits a model over workers by tp, but transformers computes actor.path whole on each "
        "worker. Set actor.layout to d2."
    )
    load("actor.backend=fsdp", "critic.backend=native")
    held = problems(load, "actor.backend=megatron", "cluster.device=cuda")[0]
    assert held == (
        "actor.backend = megatron holds hpcrl's own models only, but transformers computes actor.path: rope_wobble = 3 "
        "is not known here and may change the mathematics. Set actor.backend to fsdp, native, zero1, zero2 or zero3."
    )
    chosen = problems(load, "actor.backend=megatron", "actor.model=transformers", "cluster.device=cuda")[0]
    assert chosen.endswith(
        "transformers computes actor.path: actor.model = transformers. Set actor.backend to fsdp, native, zero1, zero2 "
        "or zero3, or actor.model to auto."
    )
    assert len(problems(load, "actor.backend=fsdp", "critic.layout=p2")) == 1
    (none,) = problems(load, "actor.router_aux_coef=0.1")
    assert "has no experts" in none


def test_experts_whose_numbers_do_not_lie_side_by_side_are_refused(load: Any, tmp_path: Path) -> None:
    whole = {"model.embed_tokens.weight": (64, 32), "model.layers.0.mlp.up_proj.weight": (48, 32)}
    experts = {
        f"model.layers.0.mlp.experts.{number}.{name}.weight": (13, 20) for number in range(2) for name in ("w1", "w3")
    }
    write(tmp_path / "model", QWEN2_TINY | {"rope_wobble": 3}, whole | experts)
    of_actor = [problem for problem in problems(load) if problem.startswith("actor")]
    assert of_actor == [
        "actor.path: model.layers.0.mlp.experts.gate_up_proj: an expert's matrix has 260 numbers; a multiple of 64 is "
        "needed. Set actor.path to another model."
    ]


def test_code_that_was_chosen_and_does_not_have_the_model_is_refused_by_its_name(load: Any, tmp_path: Path) -> None:
    whole = {"model.embed_tokens.weight": (64, 32), "model.layers.0.mlp.up_proj.weight": (48, 32)}
    write(tmp_path / "model", QWEN2_TINY | {"rope_wobble": 3}, whole)
    (unread,) = problems(load, "actor.model=own")
    assert unread.startswith("actor.model = own, but actor.path: ") and "rope_wobble" in unread
    assert unread.endswith("Set actor.model to auto, or actor.path to another model.")
    load("actor.model=auto")
    write(tmp_path / "model", QWEN2_TINY | {"model_type": "gemma3_text"}, whole)
    (headless,) = problems(load, "critic.model=transformers", "critic.path=model")
    assert headless.startswith(
        "critic.model = transformers, but critic.path: transformers has no class for gemma3_text"
    )
    assert headless.endswith("Set critic.model to auto, or critic.path to another model.")
    load()
