"""What is wrong with, or odd of, the settings of supervised fine-tuning."""

from pathlib import Path

import pytest
from support.experiments import load_config, ppo_values, write_config, write_inputs

from hpcrl.errors import ConfigurationError
from hpcrl.recipes.sft import ALGORITHM


@pytest.fixture
def load(tmp_path, monkeypatch):
    write_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    values = ppo_values() | {"algorithm": "sft"}
    del values["critic"], values["reference"], values["ppo"]
    path = write_config(Path("sft.yaml"), values)
    return lambda *overrides: load_config(path, overrides)


def test_sft_learns_one_answer_a_row(load):
    with pytest.raises(ConfigurationError, match="sft learns each row's answer"):
        load("data.samples_per_prompt=2")


def test_a_warm_up_that_the_run_does_not_outlast_is_said(load):
    assert list(ALGORITHM.notices(load("actor.optimizer.warmup_steps=2"))) == []
    (notice,) = ALGORITHM.notices(load("actor.optimizer.warmup_steps=3"))
    assert "control.steps = 3, the updates of the run, so the rate never reaches actor.optimizer.lr" in notice
