"""A family in a file of the user's: its folder is read, trained on, exported, and read again."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from hpcrl.engines.flat import new_model
from hpcrl.errors import ConfigurationError, DataError
from hpcrl.families.config import DecoderConfig
from hpcrl.families.reader import parameters_of, read_config
from hpcrl.models.packing import Packing
from hpcrl.models.pretrained import save_pretrained, write_random_pretrained

TOY = f"{Path(__file__).parent.parent / 'support' / 'toy_family.py'}:FAMILY"
CONFIG = DecoderConfig(TOY, 40, 24, 36, 2, 4, 2, 6, 64, norm_eps=1e-5, initializer_range=0.2)


@pytest.fixture
def folder(tmp_path):
    write_random_pretrained(tmp_path / "toy", CONFIG, seed=3)
    return tmp_path / "toy"


def test_its_files_have_its_own_names_and_fields(folder):
    tensors = load_file(folder / "model.safetensors")
    assert tensors["0.attention.in.weight"].shape == (4 * 6 + 2 * 2 * 6, 24)
    assert {"tokens.weight", "1.mlp.out.weight", "norm.gain", "to_tokens.weight"} <= tensors.keys()
    fields = json.loads((folder / "config.json").read_text())
    assert (fields["model_type"], fields["architectures"], fields["width"]) == ("toy", ["ToyForCausalLM"], 24)


def test_an_export_of_its_model_loads_again_bit_for_bit(folder, tmp_path):
    model = new_model(folder, family=TOY)
    assert model.config == CONFIG
    save_pretrained(tmp_path / "again", model.config, model.views)
    again = new_model(tmp_path / "again", family=TOY)
    assert torch.equal(again.memory.data, model.memory.data)
    tokens = torch.arange(9)
    assert torch.equal(again.hidden(tokens, Packing.of([9])), model.hidden(tokens, Packing.of([9])))


def test_it_cuts_its_parameters_as_it_says():
    qkv = next(parameter for parameter in parameters_of(CONFIG) if parameter.name == "layers.1.qkv")
    assert qkv.cut(2).shape == (24, 24)


def test_what_its_config_json_lacks_is_named(folder):
    fields = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(fields | {"width": 0, "hidden_size": 24}))
    with pytest.raises(ConfigurationError) as refused:
        read_config(folder, TOY, "actor.family")
    assert [text.partition(": ")[2][:11] for text in refused.value.problems] == ["width = 0; ", "hidden_size"]


def test_a_folder_of_another_family_is_refused(folder):
    with pytest.raises(DataError, match="model_type 'toy' is not supported"):
        new_model(folder)
