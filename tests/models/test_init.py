import pytest
import torch
from support.tiny_models import gpt2_config

from hpcrl.families.config import DecoderConfig
from hpcrl.families.reader import parameters_of
from hpcrl.models.init import random_init

CONFIG = DecoderConfig("qwen2", 512, 64, 96, 2, 4, 2, 16, 64, qkv_bias=True, head="value", initializer_range=0.05)


def test_a_seed_gives_the_same_numbers_and_another_seed_others():
    first, again, other = (dict(random_init(CONFIG, seed)) for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["layers.1.qkv"], other["layers.1.qkv"])
    assert not torch.equal(first["layers.1.qkv"], first["layers.2.qkv"])


def test_norms_are_one_biases_zero_and_matrices_have_the_configured_deviation():
    parameters = dict(random_init(CONFIG, 0))
    assert set(parameters) == {parameter.name for parameter in parameters_of(CONFIG)}
    assert parameters["layers.1.mlp_norm"].eq(1).all()
    assert parameters["layers.1.qkv_bias"].eq(0).all()
    assert parameters["layers.3.head_bias"].eq(0).all()
    assert abs(parameters["layers.0.embedding"].std() - 0.05) < 0.001


def test_a_parameter_does_not_depend_on_the_head():
    value, vocabulary = dict(random_init(CONFIG, 0)), dict(random_init(CONFIG.with_head("vocabulary"), 0))
    assert torch.equal(value["layers.2.down"], vocabulary["layers.2.down"])


def test_a_new_gpt2_adds_to_its_residual_stream_as_little_as_its_depth_asks():
    parameters = dict(random_init(gpt2_config(hidden_size=64, intermediate_size=512, blocks=8), 0))
    assert parameters["layers.1.down"].std() == pytest.approx(0.2 / 4, rel=0.02)
    assert parameters["layers.1.output"].std() == pytest.approx(0.2 / 4, rel=0.05)
    assert parameters["layers.1.up"].std() == pytest.approx(0.2, rel=0.02)
    assert parameters["layers.0.positions"].std() == pytest.approx(0.2, rel=0.02)
    assert parameters["layers.1.mlp_norm"].eq(1).all()
    assert parameters["layers.1.mlp_norm_bias"].eq(0).all()
