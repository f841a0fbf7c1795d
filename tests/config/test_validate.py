"""Values that make no sense are named, with what is expected and the knob."""

import dataclasses
import importlib
import inspect
from dataclasses import replace

import pytest
from support.experiments import KNOWN, VALUES, load_config, ppo_values, write_config, write_inputs

from hpcrl.config.built_in_rewards import BUILT_IN
from hpcrl.config.control import Frequency
from hpcrl.config.fields import settings
from hpcrl.config.validate import collect
from hpcrl.errors import ConfigurationError
from hpcrl.recipes.algorithm import algorithm_of
from hpcrl.recipes.toy import ToyExperiment


@pytest.fixture
def load(tmp_path, monkeypatch):
    write_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    path = write_config(tmp_path / "ppo.yaml", ppo_values())
    return lambda *overrides: load_config(path, overrides)


def problems_of(experiment):
    return [str(problem) for problem in collect(experiment, VALUES, [])]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            ["cluster.nodes=0"],
            "cluster.nodes = 0 must be a whole number from 1, or a range such as 2-8, the least first",
        ),
        (["cluster.start_timeout_s=0"], "cluster.start_timeout_s = 0.0 must be a finite number above 0"),
        (["cluster.lost_after_s=2"], "at least three heartbeats, 3 · 1 s"),
        (["cluster.orphan_timeout_s=2"], "cluster.orphan_timeout_s = 2"),
        (
            ["cluster.interface=10.10.0.0/40"],
            "10.10.0.0/40 must be an interface like ib0 or an IPv4 network",
        ),
        (["cluster.ports=many"], "cluster.ports = many must be a range like 20000-20100"),
        (["cluster.ports=20100-20000"], "the lower port first"),
        (["cluster.ports=80-90"], "from 1024 to 65535"),
        (["cluster.ports=20000-20002", "cluster.workers_per_node=2"], "has 3 ports, but a machine needs 4"),
        (["name=a/b"], "name = a/b must be letters"),
        (["seed=-1"], "seed = -1 must be between 0"),
        (["control.steps=null"], "Exactly one of control.steps and control.epochs must be set, but both are null"),
        (["control.epochs=2"], "they are 3 and 2"),
        (["control.checkpoint.steps=0"], "control.checkpoint.steps = 0 must be at least 1"),
        (["control.keep_checkpoints=1"], "control.keep_checkpoints = 1 must be at least 2"),
        (["control.stop_when=soon"], "control.stop_when = 'soon' is no condition"),
        (["control.stop_when=eval_rew/accuracy > 1"], "waits for evaluations, but none is made"),
        (["control.evaluate.steps=5"], "data.evaluate is null"),
        (
            ["data.train=none.jsonl"],
            "none.jsonl must be a file of JSON lines or parquet, or a folder of them",
        ),
        (["data.train=null"], "Exactly one of data.train and data.sources must be set, but neither is"),
        (
            ["data.sources={a: {path: rows.jsonl}}"],
            "one of data.train and data.sources must be set, but both are",
        ),
        (["data.sources={a: {weight: 2}}", "data.train=null"], "Object missing required field `path`"),
        (["data.sources={a: {path: rows.jsonl, weight: 0}}", "data.train=null"], "Expected `float` > 0.0"),
        (["data.sources={a: {path: none.jsonl}}", "data.train=null"], "data.sources.a = "),
        (["data.sources={a/b: {path: rows.jsonl}}", "data.train=null"], "data.sources names 'a/b', but a name is made"),
        (
            ["control.epochs=1", "data.train=null", "data.sources={a: {path: rows.jsonl}}", "control.steps=null"],
            "control.epochs = 1 is set, but each of data.sources has epochs of its own",
        ),
        (
            ["data.batch_size=null"],
            "Exactly one of data.batch_size and data.batch_tokens must be set, but both",
        ),
        (["data.batch_tokens=9", "data.batch_size=null"], "data.batch_tokens = 9 must be null for ppo"),
        (["data.balance=true"], "data.balance must be false for ppo"),
        (["data.prompt_template=Q"], "a text with {prompt} in it"),
        (["data.fields={prmpt: question}"], "data.fields names prmpt, but what it can name is prompt, answer"),
        (["data.fields={prompt: 3}"], "data.fields = {'prompt': 3} must be `str`"),
        (["data.chat_template=none.jinja"], "none.jinja must be a file with a chat template, but there is none"),
        (["data.tokenizer=none"], "must be a folder with tokenizer.json, but there is none"),
        (["data.batch_size=0", "ppo.minibatches=1"], "data.batch_size = 0 must be at least 1"),
        (["actor.path=none"], "none must be a folder with config.json and *.safetensors, but there is none"),
        (["actor.optimizer.lr=0"], "actor.optimizer.lr = 0.0 must be a finite number above 0"),
        (["critic.optimizer.lr=.inf"], "critic.optimizer.lr = inf must be a finite number above 0"),
        (["actor.optimizer.betas=[0.9, 1]"], "two numbers from 0 to below 1"),
        (["actor.optimizer.min_lr_ratio=2"], "between 0 and 1"),
        (["reference.micro_batch_tokens=0"], "reference.micro_batch_tokens = 0 must be at least 1"),
        (["reward.function=gsm8q"], "reward.function = gsm8q must be one of gsm8k, exact"),
        (["reward.function=none.py:score"], "names a file that is not there"),
        (["generation.min_new_tokens=6"], "generation.min_new_tokens = 6 must be 0 for ppo"),
        (["generation.top_k=3"], "generation.top_k = 3 must be 0 for ppo"),
        (["generation.top_p=0.9"], "generation.top_p = 0.9 must be 1 for ppo"),
        (["generation.greedy=true"], "generation.greedy = true must be false for ppo"),
        (["generation.temperature=0"], "set generation.greedy"),
        (["generation.temperature=1e-4"], "generation.temperature = 0.0001 must be"),
        (["generation.top_p=1.5"], "above 0 and at most 1"),
        (["generation.stop=['']"], "generation.stop has an empty text"),
        (["ppo.minibatches=9"], "must be at most data.batch_size · data.samples_per_prompt = 8"),
        (["ppo.dual_clip=1"], "ppo.dual_clip = 1.0 must be a finite number above 1"),
        (["ppo.gae_lambda=1.1"], "between 0 and 1"),
        (["ppo.reward_scale=.nan"], "ppo.reward_scale = nan must be a finite number"),
        (["ppo.kl.horizon=1.6", "ppo.kl.adaptive=true"], "above 0.2 · data.batch_size · data.samples_per_prompt = 1.6"),
        (["ppo.kl.coef=0", "ppo.kl.adaptive=true"], "ppo.kl.coef = 0 must be above 0"),
        (["reward.kwargs={methd: strict}"], "reward.kwargs.methd = strict of gsm8k is not known"),
        (["reward.kwargs={method: x}"], "reward.kwargs.method = x of gsm8k must be one of strict, flexible"),
        (["reward.kwargs={format_score: [1]}"], "reward.kwargs.format_score = [1] of gsm8k must be a number"),
        (["ppo.kl.coef=-1"], "ppo.kl.coef = -1.0 must be at least 0"),
    ],
)
def test_a_value_out_of_place_is_the_only_problem_and_names_its_knob(load, overrides, words):
    with pytest.raises(ConfigurationError) as raised:
        load(*overrides)
    (problem,) = raised.value.problems
    assert words in problem
    assert overrides[0].partition("=")[0].removesuffix(".steps") in problem


def test_a_valid_experiment_has_no_problem(load):
    assert problems_of(load()) == []


def test_the_tokenizer_of_a_model_without_one_must_be_named(load, tmp_path):
    (tmp_path / "model" / "tokenizer.json").unlink()
    with pytest.raises(ConfigurationError, match=r"must hold tokenizer\.json"):
        load()
    (tmp_path / "model" / "tokenizer.model").touch()
    with pytest.raises(
        ConfigurationError, match=r"but does not\. transformers makes it of tokenizer\.model: `pip install "
    ):
        load()


def test_a_model_without_weights_is_refused(load, tmp_path):
    (tmp_path / "model" / "model.safetensors").unlink()
    with pytest.raises(ConfigurationError, match=r"it has no model\.safetensors or its index\. Set actor\.path"):
        load()
    (tmp_path / "model" / "model.safetensors.index.json").touch()
    assert load()


@pytest.fixture
def load_sft(tmp_path, load):
    values = ppo_values() | {"algorithm": "sft"}
    del values["critic"], values["reference"], values["ppo"]
    path = write_config(tmp_path / "sft.yaml", values)
    return lambda *overrides: load_config(path, overrides)


def test_a_toy_that_waits_for_evaluations_makes_some():
    control = replace(ToyExperiment().control, steps=1, stop_when="eval_rew/r > 1")
    (problem,) = problems_of(ToyExperiment(control=control))
    assert problem.endswith("waits for evaluations, but none is made. Set control.evaluate.")
    assert problems_of(ToyExperiment(control=replace(control, evaluate=Frequency(steps=1)))) == []


def test_what_hpcrls_rewards_take_is_what_is_checked():
    for name, known in BUILT_IN.items():
        function = importlib.import_module(f"hpcrl.rewards.{name}").score
        keywords = [it for it in inspect.signature(function).parameters.values() if it.kind is it.KEYWORD_ONLY]
        fields = {setting.key: setting.default for setting in settings(known.options)}
        assert {it.name: it.default for it in keywords if it.default is not it.empty} == {
            key: default for key, default in fields.items() if default is not dataclasses.MISSING
        }
        assert {it.name for it in keywords} == fields.keys()


def test_sft_may_evaluate_with_a_least_length_that_is_no_longer_than_the_longest(load_sft):
    assert load_sft("generation.min_new_tokens=16").generation.min_new_tokens == 16
    with pytest.raises(ConfigurationError, match=r"must be at most generation\.max_new_tokens = 16"):
        load_sft("generation.min_new_tokens=17")


@pytest.mark.parametrize("algorithm", KNOWN)
def test_every_default_keeps_its_bound(algorithm):
    given = [
        setting for setting in settings(algorithm_of(algorithm).experiment) if not (setting.required or setting.like)
    ]
    assert [setting.key for setting in given if setting.broken_bound(setting.default)] == []
