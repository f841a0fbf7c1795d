"""An experiment of PPO from a file, with settings of a command line."""

import pytest
from support.experiments import load_config, ppo_values, write_config, write_inputs

from hpcrl.placement.check import ALL_CHECKS


@pytest.fixture
def load(tmp_path, monkeypatch):
    write_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    path = write_config(tmp_path / "ppo.yaml", ppo_values())
    return lambda *overrides: load_config(path, overrides, ALL_CHECKS)
