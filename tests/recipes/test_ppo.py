"""What is odd of the settings of PPO; what is wrong with them is in tests/config/test_validate.py, with all others."""

from pathlib import Path

import pytest
from support.experiments import load_config, ppo_values, write_config, write_inputs

from hpcrl.errors import ConfigurationError
from hpcrl.recipes.ppo import ALGORITHM


@pytest.fixture
def load(tmp_path, monkeypatch):
    write_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    path = write_config(Path("ppo.yaml"), ppo_values())
    return lambda *overrides: load_config(path, overrides)


def test_a_warm_up_that_the_run_does_not_outlast_is_said(load):
    odd = load("actor.optimizer.warmup_steps=11", "critic.optimizer.warmup_steps=11")
    assert list(ALGORITHM.notices(odd)) == []
    (notice,) = ALGORITHM.notices(load("critic.optimizer.warmup_steps=12"))
    assert notice.startswith("critic.optimizer.warmup_steps = 12 is no less than control.steps · ppo.minibatches")


def test_a_lag_below_0_is_told_of_once(tmp_path):
    path = write_config(tmp_path / "ppo.yaml", ppo_values())
    with pytest.raises(ConfigurationError) as refused:
        load_config(path, ["lag=-1"])
    assert [it for it in refused.value.problems if "lag" in it] == ["lag = -1 must be at least 0. Set lag."]
