"""What of a run may change when it is resumed, and how what changed is written down and read."""

import dataclasses
import json

import pytest
from support.experiments import KNOWN, load_config, ppo_values, write_config, write_inputs

from hpcrl.config.control import ControlConfig
from hpcrl.config.experiment import to_dict
from hpcrl.config.fields import ChangeClass, settings
from hpcrl.config.load import change_placement
from hpcrl.config.placement import Change, placement_changes
from hpcrl.durable.records import with_settings
from hpcrl.errors import ConfigurationError, ExitCode
from hpcrl.placement.check import ALL_CHECKS
from hpcrl.recipes.algorithm import algorithm_of, experiment_from
from hpcrl.recipes.ppo import PPOExperiment
from hpcrl.recipes.toy import ToyExperiment

TOY = ToyExperiment(run_root="/runs", control=ControlConfig(steps=3))


@pytest.fixture
def ppo(tmp_path, monkeypatch) -> PPOExperiment:
    write_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    experiment = load_config(write_config(tmp_path / "ppo.yaml", ppo_values()))
    assert isinstance(experiment, PPOExperiment)
    return experiment


def problems_of(experiment, *overrides) -> list[str]:
    with pytest.raises(ConfigurationError) as raised:
        change_placement(experiment, overrides, ALL_CHECKS)
    assert raised.value.exit_code == ExitCode.CONFIGURATION
    return list(raised.value.problems)


@pytest.mark.parametrize("algorithm", KNOWN)
def test_placement_is_the_cluster_where_roles_are_and_what_is_tried_before_the_start(algorithm):
    classes = {setting.key: setting.change for setting in settings(algorithm_of(algorithm).experiment)}
    keys = classes.keys()
    placement = {key for key, change in classes.items() if change is ChangeClass.PLACEMENT}
    assert {key for key in keys if key.startswith("cluster.")} <= placement
    assert {key for key in placement if not key.startswith("cluster.")} == {
        key for key in keys if key.endswith((".mesh", ".layout", ".trial_rows"))
    }
    assert {"cluster.nodes", "cluster.type", "cluster.slurm.time", "cluster.grace_s"} <= placement


@pytest.mark.parametrize("algorithm", KNOWN)
def test_every_field_says_what_changing_it_means(algorithm):
    assert [setting.key for setting in settings(algorithm_of(algorithm).experiment) if setting.change is None] == []


@pytest.mark.parametrize(
    ("change", "keys"),
    [
        (ChangeClass.NUMBERS, "control.steps control.checkpoint.seconds data.batch_size actor.optimizer.lr "
            "actor.micro_batch_tokens generation.slots ppo.clip ppo.kl.coef reward.timeout_s"),
        (ChangeClass.IDENTITY, "algorithm seed run_root data.train data.tokenizer actor.path actor.dtype "
            "reward.function ppo.value_norm"),
    ],
)  # fmt: skip
def test_a_number_is_told_from_what_a_run_is(change, keys):
    classes = {setting.key: setting.change for setting in settings(PPOExperiment)}
    assert {classes[key] for key in keys.split()} == {change}


def test_other_placement_leaves_all_else_as_it_was(ppo):
    words = ["cluster.nodes=2", "cluster.slurm.partition=low", "actor.layout=d4", "critic.mesh=0-1"]
    changed = change_placement(ppo, words, ALL_CHECKS)
    assert changed == dataclasses.replace(
        ppo,
        cluster=dataclasses.replace(
            ppo.cluster, nodes=2, slurm=dataclasses.replace(ppo.cluster.slurm, partition="low")
        ),
        actor=dataclasses.replace(ppo.actor, layout="d4"),
        critic=dataclasses.replace(ppo.critic, mesh="0-1"),
    )


def test_all_that_is_wrong_is_said_at_once(ppo):
    wrong = problems_of(
        ppo, "actor.optimizer.lr=1e-3", "control.steps=9", "algorithm=sft", "cluster.nods=2",
        "cluster.heartbeat_s=many", "cluster.workers_per_node=0", "data.batch_size=4", "actor", "lr=1",
    )  # fmt: skip
    said = "\n".join(wrong)
    for key in ("actor.optimizer.lr = 1e-3", "control.steps = 9", "data.batch_size = 4", "algorithm = sft"):
        assert f"{key} (command line) cannot change in a run: resume takes placement only" in said
    assert "Submit a new run with control.steps." in said
    assert "cluster.nods = 2 (command line) is not a setting of algorithm ppo. The nearest is cluster.nodes." in said
    assert "cluster.heartbeat_s = many (command line) must be a number" in said
    assert "cluster.workers_per_node = 0 must be at least 1" in said
    assert "actor (command line) has no value" in said
    assert "lr = 1 (command line) is not a setting" in said
    assert len(wrong) == 9


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["cluster.nodes=8"], "data.batch_size gives 8 samples per step, but actor.layout has dp = 16"),
        (["cluster.nodes=2", "actor.layout=d2"], "actor.layout = d2 needs dp·tp·pp = 2·1·1 = 2 workers"),
        (["critic.mesh=2"], '"2" names worker 2, but the cluster has workers 0 to 1'),
    ],
)
def test_workers_that_the_run_does_not_fit_are_refused(ppo, words, expected):
    assert any(expected in problem for problem in problems_of(ppo, *words))


def test_a_layout_of_the_file_has_to_change_with_the_number_of_workers(ppo):
    four = change_placement(ppo, ["cluster.nodes=2", "actor.layout=d4"], ALL_CHECKS)
    assert any("actor.layout = d4 needs" in problem for problem in problems_of(four, "cluster.nodes=1"))
    assert change_placement(four, ["cluster.nodes=1", "actor.layout=null"], ALL_CHECKS) == ppo


def test_changes_name_new_and_old_value_as_a_user_writes_them():
    after = change_placement(TOY, ["cluster.nodes=2", "actor.mesh=0-1", "cluster.snapshot=true"], ALL_CHECKS)
    assert placement_changes(TOY, after) == [
        Change("cluster.snapshot", True, False), Change("cluster.nodes", 2, 1), Change("actor.mesh", "0-1", None)
    ]  # fmt: skip
    said = list(map(str, placement_changes(TOY, after)))
    assert said == ["cluster.snapshot = true (was false)", "cluster.nodes = 2 (was 1)", "actor.mesh = 0-1 (was null)"]
    assert placement_changes(after, after) == []


def test_what_changed_is_all_that_has_to_be_written_down():
    words = ["cluster.nodes=3", 'cluster.slurm.flags=["--switches=1"]', "critic.layout=d6", "cluster.slurm.time=30"]
    after = change_placement(TOY, words, ALL_CHECKS)
    written = json.loads(json.dumps({change.key: change.value for change in placement_changes(TOY, after)}))
    values = to_dict(TOY)
    assert experiment_from(with_settings(values, written)) == after
    assert values == to_dict(TOY), "the frozen values are not written into"
