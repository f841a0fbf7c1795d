"""What of a run may change when it is resumed, and how what changed is written down and read."""

import dataclasses
from typing import Annotated

import pytest
from support.experiments import KNOWN, load_config, ppo_values, write_config, write_inputs

from hpcrl.config.changes import Change, changes, under
from hpcrl.config.control import ControlConfig
from hpcrl.config.experiment import to_dict
from hpcrl.config.fields import ChangeClass, settings
from hpcrl.config.load import change_settings
from hpcrl.errors import ConfigurationError, ExitCode
from hpcrl.placement.check import ALL_CHECKS
from hpcrl.recipes.algorithm import algorithm_of, experiment_from
from hpcrl.recipes.ppo import PPOExperiment
from hpcrl.recipes.toy import ToyExperiment

TOY = ToyExperiment(run_root="/runs", control=ControlConfig(steps=3))


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnExperiment(ToyExperiment):
    """With a setting of a type that no setting of hpcrl's own has."""

    weights: Annotated[list[float], ChangeClass.NUMBERS] = dataclasses.field(default_factory=list)
    """Numbers."""


@pytest.fixture
def ppo(tmp_path, monkeypatch) -> PPOExperiment:
    write_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    experiment = load_config(write_config(tmp_path / "ppo.yaml", ppo_values()))
    assert isinstance(experiment, PPOExperiment)
    return experiment


def problems_of(experiment, *overrides) -> list[str]:
    with pytest.raises(ConfigurationError) as raised:
        change_settings(experiment, overrides, ALL_CHECKS)
    assert raised.value.exit_code == ExitCode.CONFIGURATION
    return list(raised.value.problems)


def test_a_wrong_value_of_an_own_type_is_told_the_type_in_words():
    own = OwnExperiment(run_root="/runs", control=ControlConfig(steps=3))
    assert change_settings(own, ["weights=[1, 2.5]"], ()).weights == [1.0, 2.5]
    assert problems_of(own, "weights=[x]") == ["weights = [x] (command line) must be a list of numbers. Set weights."]


@pytest.mark.parametrize("algorithm", KNOWN)
def test_every_field_says_what_changing_it_means(algorithm):
    assert [setting.key for setting in settings(algorithm_of(algorithm).experiment) if setting.change is None] == []


@pytest.mark.parametrize(
    ("change", "keys"),
    [
        (ChangeClass.PLACEMENT, "cluster.nodes cluster.type cluster.slurm.time cluster.grace_s actor.layout "
            "critic.mesh reward.mesh actor.micro_batch_tokens generation.slots reward.timeout_s "
            "control.checkpoint.steps control.evaluate.epochs control.export.seconds control.keep_checkpoints "
            "control.compact deterministic"),
        (ChangeClass.NUMBERS, "control.steps control.epochs control.stop_when actor.optimizer.lr data.evaluate_rows "
            "actor.optimizer.grad_clip critic.optimizer.schedule ppo.clip_low ppo.kl.coef ppo.minibatches "
            "reward.kwargs"),
        (ChangeClass.FORK, "name run_root data.evaluate generation.temperature reward.function ppo.kl.adaptive "
            "ppo.kl.target ppo.kl.mode"),
        (ChangeClass.IDENTITY, "algorithm seed data.train data.tokenizer data.batch_size actor.path actor.dtype "
            "data.samples_per_prompt ppo.value_norm"),
    ],
)  # fmt: skip
def test_placement_numbers_and_what_a_run_is_are_told_apart(change, keys):
    classes = {setting.key: setting.change for setting in settings(PPOExperiment)}
    assert {classes[key] for key in keys.split()} == {change}


def test_all_of_the_cluster_is_placement():
    classes = {setting.key: setting.change for setting in settings(PPOExperiment)}
    assert {change for key, change in classes.items() if key.startswith("cluster.")} == {ChangeClass.PLACEMENT}


def test_other_placement_leaves_all_else_as_it_was(ppo):
    words = ["cluster.nodes=2", "cluster.slurm.partition=low", "actor.layout=d4", "critic.mesh=0-1"]
    changed = change_settings(ppo, words, ALL_CHECKS)
    assert changed == dataclasses.replace(
        ppo,
        cluster=dataclasses.replace(
            ppo.cluster, nodes=2, slurm=dataclasses.replace(ppo.cluster.slurm, partition="low")
        ),
        actor=dataclasses.replace(ppo.actor, layout="d4"),
        critic=dataclasses.replace(ppo.critic, mesh="0-1"),
    )


def test_numbers_may_change(ppo):
    changed = change_settings(ppo, ["actor.optimizer.lr=1e-3", "control.steps=9", "ppo.clip_low=0.1"], ALL_CHECKS)
    assert (changed.actor.optimizer.lr, changed.control.steps, changed.ppo.clip_low) == (1e-3, 9, 0.1)
    assert changed.critic == ppo.critic


def test_all_that_is_wrong_is_said_at_once(ppo):
    wrong = problems_of(
        ppo, "seed=3", "actor.dtype=bf16", "algorithm=sft", "cluster.nods=2", "control.steps=0",
        "cluster.heartbeat_s=many", "cluster.workers_per_node=0", "data.batch_size=4", "actor", "lr=1",
    )  # fmt: skip
    said = "\n".join(wrong)
    for key in ("seed = 3", "actor.dtype = bf16", "data.batch_size = 4", "algorithm = sft"):
        assert (
            f"{key} (command line) cannot change in a run, nor in a fork of it: it is part of what the run is" in said
        )
    assert "what was recorded with another seed would not fit. Submit a new run with seed." in said
    assert "cluster.nods = 2 (command line) is not a setting of algorithm ppo. The nearest is cluster.nodes." in said
    assert "cluster.heartbeat_s = many (command line) must be a number" in said
    assert "cluster.workers_per_node = 0 must be between 1 and 1024" in said
    assert "control.steps = 0 must be at least 1" in said
    assert "actor (command line) has no value" in said
    assert "lr = 1 (command line) is not a setting" in said
    assert len(wrong) == 10


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
    four = change_settings(ppo, ["cluster.nodes=2", "actor.layout=d4"], ALL_CHECKS)
    assert any("actor.layout = d4 needs" in problem for problem in problems_of(four, "cluster.nodes=1"))
    assert change_settings(four, ["cluster.nodes=1", "actor.layout=null"], ALL_CHECKS) == ppo


def test_changes_name_new_and_old_value_as_a_user_writes_them():
    after = change_settings(TOY, ["cluster.nodes=2", "actor.mesh=0-1", "cluster.snapshot=true"], ALL_CHECKS)
    assert changes(TOY, after) == [
        Change("cluster.snapshot", True, False), Change("cluster.nodes", 2, 1), Change("actor.mesh", "0-1", None)
    ]  # fmt: skip
    said = list(map(str, changes(TOY, after)))
    assert said == ["cluster.snapshot = true (was false)", "cluster.nodes = 2 (was 1)", "actor.mesh = 0-1 (was null)"]
    assert changes(after, after) == []


def test_only_the_classes_that_are_asked_for_are_compared():
    after = change_settings(TOY, ["cluster.nodes=2", "toy.lr=0.1", "control.steps=5"], ALL_CHECKS)
    assert [change.key for change in changes(TOY, after, [ChangeClass.NUMBERS])] == ["control.steps", "toy.lr"]
    assert [change.key for change in changes(TOY, after, [ChangeClass.PLACEMENT])] == ["cluster.nodes"]
    assert changes(TOY, after, [ChangeClass.IDENTITY]) == []


def test_a_replay_has_its_own_numbers_and_the_newest_placement(ppo):
    words = ["cluster.nodes=2", "reward.timeout_s=9", "actor.optimizer.lr=1e-3", "ppo.clip_low=0.1", "actor.layout=d4"]
    newest = change_settings(ppo, words, ALL_CHECKS)
    placed = change_settings(ppo, [word for word in words if "lr" not in word and "clip" not in word], ALL_CHECKS)
    assert under(ppo, newest) == placed
    assert under(newest, newest) == newest and under(ppo, ppo) == ppo
    assert to_dict(ppo) == to_dict(experiment_from(to_dict(ppo)))
