"""An experiment as JSON."""

import json

from support.experiments import ppo_values, write_config, write_inputs

from hpcrl.config.experiment import ToyExperiment, from_dict, to_dict
from hpcrl.config.load import load_config


def test_an_experiment_survives_json(tmp_path, monkeypatch):
    write_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    values = ppo_values() | {"reward": {"function": "judge:score", "kwargs": {"a": [1, 2.5], "b": {"c": None}}}}
    for experiment in (load_config(write_config(tmp_path / "ppo.yaml", values)), ToyExperiment()):
        assert from_dict(json.loads(json.dumps(to_dict(experiment)))) == experiment
