"""An experiment as JSON."""

import json
from dataclasses import replace

from support.experiments import ppo_values, write_config, write_inputs

from hpcrl.config.experiment import ToyExperiment, config_hash, from_dict, to_dict
from hpcrl.config.load import load_config


def test_an_experiment_survives_json(tmp_path, monkeypatch):
    write_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    values = ppo_values() | {"reward": {"function": "judge:score", "kwargs": {"a": [1, 2.5], "b": {"c": None}}}}
    for experiment in (load_config(write_config(tmp_path / "ppo.yaml", values)), ToyExperiment()):
        assert from_dict(json.loads(json.dumps(to_dict(experiment)))) == experiment


def test_the_hash_changes_with_any_setting():
    experiment = ToyExperiment()
    changed = replace(experiment, toy=replace(experiment.toy, width=17))
    assert config_hash(experiment) == config_hash(ToyExperiment())
    assert config_hash(experiment) != config_hash(changed)
