"""The one list of parameters: names, layers, cuts, decay."""

import pytest
from support.tiny_models import gpt2_config, odd_config

from hpcrl.families.reader import parameter_count, parameters_of


def test_names_are_unique_and_every_layer_has_its_own():
    parameters = parameters_of(odd_config())
    assert len({parameter.name for parameter in parameters}) == len(parameters)
    assert [parameter.layer for parameter in parameters] == sorted(parameter.layer for parameter in parameters)
    assert {parameter.layer for parameter in parameters} == set(range(5))
    assert all(parameter.name.startswith(f"layers.{parameter.layer}.") for parameter in parameters)
    assert {parameter.name: parameter.shape for parameter in parameters}["layers.2.down"] == (48, 20)


def test_the_number_of_parameters_equals_the_closed_one():
    hidden, inner, vocabulary, query, key = 20, 48, 64, 24, 12
    block = 2 * hidden + hidden * (query + 2 * key) + query + 2 * key + query * hidden + 3 * hidden * inner
    assert parameter_count(odd_config()) == 2 * vocabulary * hidden + 3 * block + hidden
    assert parameter_count(odd_config(tied=True)) == vocabulary * hidden + 3 * block + hidden
    assert parameter_count(odd_config(head="value")) == vocabulary * hidden + 3 * block + hidden + hidden + 1


def test_norms_and_biases_alone_do_not_decay():
    for parameter in (*parameters_of(odd_config(head="value")), *parameters_of(gpt2_config(head="value"))):
        assert parameter.decays == (not parameter.name.endswith(("norm", "bias"))), parameter.name


@pytest.mark.parametrize(
    "config", [odd_config(), gpt2_config(), odd_config(head_norms=True, output_bias=True, mlp_bias=True)]
)
def test_tensor_parallel_cuts_hold_every_element_once(config):
    for whole in parameters_of(config):
        cut = whole.cut(2)
        assert cut.numel * (1 if whole.tp_dim is None else 2) == whole.numel
        assert (cut.name, cut.layer, cut.decays) == (whole.name, whole.layer, whole.decays)
        if whole.tp_dim is not None:
            assert sum(block.numel for block in whole.tp_blocks) == whole.shape[whole.tp_dim]


def test_a_tp_that_does_not_divide_is_refused_by_name():
    fused = next(parameter for parameter in parameters_of(odd_config()) if parameter.name == "layers.1.qkv")
    with pytest.raises(ValueError, match=r"layers\.1\.qkv cannot be cut along dimension 1: tp = 8 does not divide 4"):
        fused.cut(8)
