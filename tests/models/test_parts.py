"""What a rank reads of a model's folder, against parts of all parameters."""

import pytest
import torch
from support.tiny_models import gpt2_config, mixtral_config, odd_config, parts_of, tiny_config

from hpcrl.engines.flat import new_model
from hpcrl.families.config import Experts
from hpcrl.models.init import random_init
from hpcrl.models.pretrained import load_pretrained, write_random_pretrained
from hpcrl.parallel.replica import reads_alone
from hpcrl.placement.shards import Cut

CONFIGS = {
    "tied": tiny_config(blocks=4, tied=True),
    "untied": odd_config(vocabulary_size=29, heads=4, kv_heads=2, intermediate_size=24, blocks=4),
    "critic": tiny_config(blocks=4, head="value"),
    "gpt2": gpt2_config(blocks=4),
    "mixtral": mixtral_config(blocks=4),
    "mixtral, whole experts": mixtral_config(blocks=4, experts=Experts(4, 2, 48, cut="whole")),
}
EXPERTS = {"mixtral, whole experts": "whole"}
CUTS = [Cut(), Cut(0, 1, 0, 2), Cut(0, 1, 1, 2), Cut(1, 2), Cut(1, 2, 2, 4), Cut(3, 4, 3, 4)]


@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize("name", CONFIGS)
def test_a_rank_is_given_its_part_of_each_parameter_that_it_holds(tmp_path, name, cut):
    config = CONFIGS[name]
    write_random_pretrained(tmp_path, config, seed=7)
    expected = dict(parts_of(dict(random_init(config, 7)), config, cut))
    found = dict(load_pretrained(tmp_path, experts=EXPERTS.get(name, "inner"), readers=reads_alone(cut))[1])
    assert found.keys() == expected.keys()
    for key, part in found.items():
        torch.testing.assert_close(part, expected[key], rtol=0, atol=0)


@pytest.mark.parametrize("stage", [0, 1])
def test_a_head_that_the_folder_does_not_have_is_the_last_stages(tmp_path, stage):
    write_random_pretrained(tmp_path, CONFIGS["tied"], seed=7)
    whole = new_model(tmp_path, head="value", seed=5)
    model = new_model(tmp_path, head="value", seed=5, cut=Cut(stage=stage, pp=2))
    for key, view in model.views.items():
        assert torch.equal(view, whole.views[key])
    assert any(key.endswith(".head_bias") for key in model.views) == (stage == 1)
