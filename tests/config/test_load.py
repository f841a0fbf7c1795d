"""A file and a command line become an experiment, or the list of all that is wrong."""

from pathlib import Path

import pytest
from support.experiments import KNOWN, load_config, ppo_values, write_config, write_inputs

from hpcrl.config.fields import settings
from hpcrl.errors import ConfigurationError, ExitCode
from hpcrl.recipes.algorithm import algorithm_of
from hpcrl.recipes.ppo import PPOExperiment
from hpcrl.recipes.sft import SFTExperiment


@pytest.fixture
def folder(tmp_path, monkeypatch):
    write_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def load(values, *overrides) -> PPOExperiment:
    experiment = load_config(write_config(Path("ppo.yaml"), values), overrides)
    assert isinstance(experiment, PPOExperiment)
    return experiment


def problems_of(values, *overrides) -> list[str]:
    with pytest.raises(ConfigurationError) as raised:
        load(values, *overrides)
    assert raised.value.exit_code == ExitCode.CONFIGURATION
    return list(raised.value.problems)


def test_what_is_not_set_has_its_default(folder):
    experiment = load(ppo_values())
    assert experiment.actor.optimizer.lr == 1e-6
    assert experiment.critic.optimizer.lr == 1e-5
    assert experiment.ppo.dual_clip == 3.0
    assert experiment.cluster.workers_per_node == 2


def test_a_reference_that_is_not_given_is_what_the_actor_begins_from(folder):
    values = ppo_values()
    del values["reference"]
    assert load(values).reference.path == load(values).actor.path
    assert load(values, "reference.dtype=bf16").reference.path == load(values).actor.path
    assert load(values | {"reference": {"path": "x"}}, "reference.path=model").reference.path == load(values).actor.path


def test_the_command_line_wins_over_the_file(folder):
    values = ppo_values() | {"seed": 7, "name": "file"}
    experiment = load(
        values, "seed=8", "actor.optimizer.lr=1e-3", "ppo.dual_clip=null", "ppo.value_clip=null", "data.shuffle=false"
    )
    assert (experiment.seed, experiment.name) == (8, "file")
    assert experiment.actor.optimizer.lr == 1e-3
    assert experiment.ppo.dual_clip is None
    assert experiment.ppo.value_clip is None
    assert experiment.data.shuffle is False


def test_the_last_of_two_equal_options_wins(folder):
    assert load(ppo_values(), "seed=8", "seed=9").seed == 9


def test_the_command_line_heals_the_file(folder):
    assert load(ppo_values() | {"seed": "many"}, "seed=3").seed == 3


def test_numbers_in_scientific_notation_are_numbers(folder):
    path = Path("sft.yaml")
    path.write_text(
        "algorithm: sft\ncontrol: {epochs: 1}\ndata: {train: rows.jsonl, batch_size: 4}\n"
        "actor: {path: model, optimizer: {lr: 1e-4, eps: 1E-9, betas: [0.8, 9e-1]}}\n"
        "reward: {function: gsm8k, kwargs: {format_score: 1e-2}}\n"
    )
    experiment = load_config(path)
    assert isinstance(experiment, SFTExperiment)
    optimizer = experiment.actor.optimizer
    assert (optimizer.lr, optimizer.eps, optimizer.betas) == (1e-4, 1e-9, (0.8, 0.9))
    assert experiment.reward.kwargs == {"format_score": 1e-2}


def test_paths_are_stored_absolute(folder):
    values = ppo_values()
    values["reward"]["function"] = "judge.py:score"
    Path("judge.py").write_text("def score(*_): return 0\n")
    experiment = load(values)
    assert experiment.actor.path == str(folder / "model")
    assert experiment.data.train == str(folder / "rows.jsonl")
    assert experiment.run_root == str(folder / "runs")
    assert experiment.reward.function == f"{folder / 'judge.py'}:score"


def test_an_empty_section_has_its_defaults(folder):
    assert load(ppo_values() | {"cluster": None}).cluster.nodes == 1


def test_all_problems_are_reported_together(folder):
    values = ppo_values() | {"nmae": "x", "seed": -1}
    values["actor"]["optimizer"] = {"lr": "fast"}
    values["control"] = {"steps": 3, "epochs": 4}
    del values["actor"]["path"]
    found = problems_of(values, "cluster.nods=2", "generation.top_p=0", "actor.dtype")
    starts = [
        "actor.dtype (command line) has no value",
        "actor.optimizer.lr = fast (ppo.yaml) must be a number",
        "nmae",
    ]
    starts += ["cluster.nods = 2 (command line)", "actor.path is not set", "seed = -1", "generation.top_p = 0.0"]
    starts += ["Exactly one of control.steps and control.epochs"]
    assert len(found) == len(starts)
    for text, start in zip(found, starts, strict=True):
        assert text.startswith(start)


@pytest.mark.parametrize("value", ["{actor_gen: {mesh: node[0]}}", "{actor_gen: {mesh: 0}"])
def test_a_mapping_that_is_no_yaml_is_told_apart_from_another_type(folder, value):
    (problem,) = problems_of(ppo_values(), f"calls={value}")
    assert problem.startswith(f"calls = {value} (command line) is not valid YAML. ")


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("cluster.nods", "cluster.nodes"),
        ("actor.optimizer.learning_rate", "actor.optimizer.lr"),
        ("lr", "actor.optimizer.lr"),
        ("critic.optimiser.lr", "critic.optimizer.lr"),
        ("data.promt_template", "data.prompt_template"),
        ("batch_size", "data.batch_size"),
    ],
)
def test_an_unknown_key_is_told_the_nearest_known_one(folder, key, nearest):
    assert problems_of(ppo_values(), f"{key}=1") == [
        f"{key} = 1 (command line) is not a setting of algorithm ppo. The nearest is {nearest}."
    ]


def test_a_key_that_is_like_no_other_of_its_section_is_told_none(folder):
    (problem,) = problems_of(ppo_values(), "ppo.filter_groups=x")
    assert "is not a setting of algorithm ppo. Leave it out" in problem


def test_an_unknown_section_is_one_problem(folder):
    values = ppo_values() | {"critc": {"path": "model", "dtype": "bf16"}}
    (problem,) = problems_of(values)
    assert problem.endswith("The nearest is critic.")


@pytest.mark.parametrize(
    ("key", "value", "expectation"),
    [
        ("seed", "1.5", "a whole number"),
        ("seed", "true", "a whole number"),
        ("deterministic", "maybe", "true or false"),
        ("actor.dtype", "fp8", "one of fp32, bf16"),
        ("actor.optimizer.betas", "[0.9]", "a list of 2 numbers"),
        ("control.steps", "many", "a whole number or null"),
        ("reward.kwargs", "3", "a mapping of names to values"),
        ("cluster.heartbeat_s", "null", "a number"),
        ("name", "null", "a text"),
        ("actor.path", "~", "a path"),
        ("reward.kwargs", "{1: 2}", "a mapping of names to values that JSON can hold"),
        ("reward.kwargs", "{a: [.nan]}", "a mapping of names to values that JSON can hold"),
    ],
)
def test_a_wrong_type_is_told_what_is_expected(folder, key, value, expectation):
    (problem,) = problems_of(ppo_values(), f"{key}={value}")
    assert problem.startswith(f"{key} = {value} (command line) must be {expectation}")
    assert problem.endswith(f"Set {key}.")


def test_a_value_for_a_section_is_refused(folder):
    (problem,) = problems_of(ppo_values(), "actor.optimizer=adam")
    assert "actor.optimizer = adam (command line) is a section" in problem


def test_what_follows_from_a_wrong_value_is_not_reported_again(folder):
    values = ppo_values()
    values["actor"]["path"] = 3
    assert len(problems_of(values)) == 1


def test_a_missing_algorithm_is_reported_with_the_known_ones(folder):
    values = ppo_values()
    del values["algorithm"]
    (problem,) = problems_of(values)
    assert f"{', '.join(KNOWN)}, or file.py:NAME" in problem


def test_a_misspelt_algorithm_does_not_hide_other_problems(folder):
    first, second = problems_of(ppo_values() | {"algorithm": "PPO", "sed": 1})
    assert first.endswith("Set algorithm, probably to ppo.")
    assert second.endswith("The nearest is seed.")


def test_a_file_that_is_not_there_is_named(folder):
    with pytest.raises(ConfigurationError, match=r"none\.yaml cannot be read: No such file"):
        load_config("none.yaml")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("seed: 1\nseed: 2\n", 'line 2: the key "seed" stands here twice'),
        ("seed: [1\n", "line 2"),
        ("- a\n", "a configuration is a mapping"),
        ("", "bad.yaml is empty"),
    ],
)
def test_a_file_that_is_no_mapping_is_refused_with_the_place(folder, text, words):
    Path("bad.yaml").write_text(text)
    with pytest.raises(ConfigurationError, match=words):
        load_config("bad.yaml")


@pytest.mark.parametrize("algorithm", KNOWN)
def test_every_setting_has_a_help_text(algorithm):
    assert [setting.key for setting in settings(algorithm_of(algorithm).experiment) if not setting.help] == []


def test_the_site_is_below_the_file_and_named_in_what_is_wrong(folder, monkeypatch):
    site = write_config(folder / "site.yaml", {"cluster": {"nodes": 3, "slurm": {"partition": "gpu", "account": "a"}}})
    monkeypatch.setenv("HPCRL_SITE", str(site))
    values = ppo_values() | {"cluster": {"slurm": {"account": "b", "flags": ["--nice=1", "--exclusive"]}}}
    cluster = load(values).cluster
    assert (cluster.nodes, cluster.slurm.partition, cluster.slurm.account) == (3, "gpu", "b")
    assert cluster.slurm.flags == ("--nice=1", "--exclusive")
    write_config(site, {"cluster": {"slurm": {"partitoin": "gpu"}}})
    (problem,) = problems_of(values)
    assert str(site) in problem and "cluster.slurm.partition" in problem


def test_the_usual_site_file_is_found(folder, monkeypatch):
    (folder / "hpcrl").mkdir()
    write_config(folder / "hpcrl" / "site.yaml", {"cluster": {"nodes": 3}})
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    monkeypatch.delenv("HPCRL_SITE", raising=False)
    assert load(ppo_values()).cluster.nodes == 3


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("time", "two days", "cluster.slurm.time = two days must be a time as Slurm writes it"),
        ("container", "pyxis", "Set cluster.slurm.container_image"),
        ("flags", ["--array=0-9"], "'--array=0-9': it must be an option of sbatch"),
        ("master_flags", ["nice"], "cluster.slurm.master_flags has 'nice'"),
        ("master_cpus", 0, "cluster.slurm.master_cpus = 0 must be at least 1"),
        ("gpus", "two", "one of gpus-per-node, gres, none"),
    ],
)
def test_what_slurm_would_say_too_late_is_said_at_once(folder, key, value, words):
    values = ppo_values() | {"cluster": {"slurm": {key: value}}}
    assert any(words in problem for problem in problems_of(values))


@pytest.mark.parametrize("time", ["90", "1:30:00", "2-0", "1-12:00:00", "UNLIMITED"])
def test_times_as_slurm_writes_them_are_taken(folder, time):
    assert load(ppo_values() | {"cluster": {"slurm": {"time": time}}}).cluster.slurm.time == time
