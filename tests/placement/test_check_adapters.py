"""Adapters that a role's model cannot have are refused before submission, with those that it can have."""

from pathlib import Path
from typing import Any

from support.experiments import QWEN2_TINY
from support.foreign_folders import OPT, problems, write

from hpcrl.families.adapters import targets_of
from hpcrl.families.foreign import ForeignConfig
from hpcrl.families.reader import family_of, read_config

BLOCK = {"model.embed_tokens.weight": (64, 32), "model.layers.0.mlp.up_proj.weight": (48, 32)}
ROUTED = {
    "model.layers.0.self_attn.q_proj.weight": (32, 32),
    "model.layers.0.block_sparse_moe.gate.weight": (4, 32),
    "model.layers.0.block_sparse_moe.experts.0.w1.weight": (48, 32),
}


def test_what_cannot_have_adapters_is_refused_and_another_model_serves(load: Any, tmp_path: Path) -> None:
    """A model of transformers without linear modules."""
    write(tmp_path / "model", QWEN2_TINY | {"rope_wobble": 3}, {**BLOCK, "model.layers.0.mlp.up_proj.weight": (48,)})
    (none,) = problems(load, "actor.lora.rank=4")
    assert none == (
        "actor.lora.rank = 4 is of adapters, which actor.path cannot have: transformers computes no linear layers in "
        "it. Leave out actor.lora, or set actor.path to another model."
    )
    write(tmp_path / "model", QWEN2_TINY | {"rope_wobble": 3}, BLOCK)
    load("actor.lora.rank=4")


def test_layers_that_are_not_there_are_refused_with_the_names_of_those_that_are(load: Any, tmp_path: Path) -> None:
    write(tmp_path / "model", QWEN2_TINY | {"rope_wobble": 3}, BLOCK)
    load("actor.lora.rank=4", "actor.lora.targets=[up_proj]")
    assert problems(load, "actor.lora.rank=4", "actor.lora.targets=[up_proj,fc1]") == [
        "actor.lora.targets has fc1, but the linear layers in the blocks of actor.path are up_proj. Set "
        "actor.lora.targets."
    ]


def test_linear_modules_are_known_by_the_text_of_transformers_classes(tmp_path: Path) -> None:
    """Routers and experts are none; a Conv1D has its tensor the other way round."""

    def targets(fields: dict[str, Any], tensors: dict[str, tuple[int, ...]]) -> dict[str, Any]:
        write(tmp_path, fields, tensors)
        config = read_config(tmp_path, kind="transformers")
        assert isinstance(config, ForeignConfig)
        return {it.name: it for it in targets_of(config, family_of(config))}

    mixtral = OPT | {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"]}
    assert list(targets(mixtral, ROUTED)) == ["q_proj"]
    gpt2 = OPT | {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}
    (fused,) = targets(gpt2, {"transformer.h.0.attn.c_attn.weight": (32, 96)}).values()
    assert (fused.inputs, fused.outputs, fused.turned) == (32, 96, False)
    (fc1,) = targets(OPT, {"model.decoder.layers.0.fc1.weight": (48, 32)}).values()
    assert (fc1.inputs, fc1.outputs, fc1.turned) == (32, 48, True)


def test_a_reference_that_is_blended_is_told_the_setting_that_blends(load: Any) -> None:
    blended = ("ppo.kl.mode=reward", "ppo.kl.reference_ema.decay=0.9")
    (refused,) = problems(load, *blended, "actor.lora.rank=4", "reference.of=actor")
    assert refused.endswith("Leave out reference.of, or set ppo.kl.reference_ema.decay to null.")
