"""An experiment as JSON."""

import json

from support.experiments import load_config, ppo_values, write_config, write_inputs

from hpcrl.config.experiment import to_dict
from hpcrl.recipes.algorithm import experiment_from
from hpcrl.recipes.toy import ToyExperiment


def test_an_experiment_survives_json(tmp_path, monkeypatch):
    write_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    values = ppo_values() | {"reward": {"function": "judge:score", "kwargs": {"a": [1, 2.5], "b": {"c": None}}}}
    for experiment in (load_config(write_config(tmp_path / "ppo.yaml", values)), ToyExperiment()):
        assert experiment_from(json.loads(json.dumps(to_dict(experiment)))) == experiment
