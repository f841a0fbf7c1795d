"""What hpcrl's own algorithms declare: graphs, evaluation, batches, roles and statistics."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.experiments import KNOWN, load_config, values_of, write_config, write_inputs

from hpcrl.config.control import Frequency
from hpcrl.config.environment import ENVIRONMENT
from hpcrl.config.experiment import ExperimentConfig
from hpcrl.config.kl import KLConfig
from hpcrl.data.batch import Batch
from hpcrl.dataflow.graph import changed_by, producers, topological_order
from hpcrl.errors import ConfigurationError
from hpcrl.placement.memory import estimate_models
from hpcrl.placement.plan import plan_for
from hpcrl.plugins import names
from hpcrl.recipes.algorithm import ALGORITHMS, algorithm_of, experiment_from
from hpcrl.recipes.policy import PolicyExperiment, old_logprobs, section_of
from hpcrl.recipes.texts import SCORERS

POLICIES = tuple(name for name in names(ALGORITHMS) if issubclass(algorithm_of(name).experiment, PolicyExperiment))


@pytest.fixture
def make(tmp_path, monkeypatch):
    """An experiment of an algorithm, with evaluation now and then if asked for."""
    write_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)

    def made(algorithm: str, every: int | None = None, **data: Any) -> Any:
        values = values_of(algorithm)
        if algorithm in POLICIES:
            values[algorithm] = {"kl": {"mode": "reward"}}
        if "data" in values:
            values["data"] |= {"evaluate": "rows.jsonl"} | data
        experiment = load_config(write_config(Path("config.yaml"), values))
        return replace(experiment, control=replace(experiment.control, evaluate=Frequency(steps=every)))

    return made


def test_ppo_is_the_graph_of_its_paper(make) -> None:
    graph = algorithm_of("ppo").graph(make("ppo"))
    inference = {"rew_inf": ("rewards", "token_rewards"), "ref_inf": ("ref_logprobs",), "critic_inf": ("values",)}
    of_rollout = {"actor_gen": ("responses", "finished", "logprobs"), **inference}
    assert producers(graph, "actor_gen") == {}
    assert all(producers(graph, call) == {"actor_gen": ("responses",)} for call in ("ref_inf", "critic_inf"))
    assert producers(graph, "rew_inf") == {"actor_gen": ("responses", "finished")}
    assert producers(graph, "actor_train") == producers(graph, "critic_train") == of_rollout
    assert changed_by(graph) == {"actor": "actor_train", "critic": "critic_train"}
    assert graph.dataset_keys == {"prompts"}


def settings(experiment: Any, **changes: Any) -> Any:
    """An experiment whose own section has other settings."""
    name, own = section_of(experiment)
    return replace(experiment, **{name: replace(own, **changes)})


@pytest.mark.parametrize("kl", [KLConfig(), KLConfig(mode="reward", coef=0.0), KLConfig(mode="loss", coef=0.0)])
@pytest.mark.parametrize("name", POLICIES)
def test_without_a_penalty_there_is_no_reference_and_nothing_reads_it(make, name: str, kl: KLConfig) -> None:
    free = settings(make(name), kl=kl)
    plan = plan_for(free, nodes=1)
    assert {replica.role for replica in plan.replicas} == {"actor", "reward"} | ({"critic"} if name == "ppo" else set())
    assert "reference" not in {model.role for model in estimate_models(plan, free)}
    assert not any("ref_logprobs" in call.inputs for call in plan.calls)


@pytest.mark.parametrize("mode", ["reward", "loss"])
@pytest.mark.parametrize("name", POLICIES)
def test_a_penalty_wherever_it_is_needs_the_reference(make, name: str, mode: Any) -> None:
    calls = {call.name: call for call in algorithm_of(name).recipe(settings(make(name), kl=KLConfig(mode=mode)))}
    assert calls["ref_inf"].outputs == ("ref_logprobs",) and "ref_logprobs" in calls["actor_train"].inputs


@pytest.mark.parametrize(
    ("dtype", "source", "minibatches", "epochs", "found"),
    [
        ("fp32", "auto", 4, 1, "sampled"),
        ("bf16", "auto", 4, 1, "recomputed"),
        ("bf16", "auto", 1, 2, "recomputed"),
        ("bf16", "auto", 1, 1, "own"),
        ("bf16", "sampled", 4, 1, "sampled"),
        ("fp32", "recomputed", 4, 1, "recomputed"),
        ("fp32", "recomputed", 1, 1, "own"),
        ("fp32", "auto", 1, 1, "sampled"),
    ],
)
def test_log_probabilities_are_computed_again_where_that_tells_something_new(
    make, dtype: Any, source: Any, minibatches: int, epochs: int, found: str
) -> None:
    experiment = settings(make("grpo"), old_logprobs=source, minibatches=minibatches, epochs=epochs)
    experiment = replace(experiment, actor=replace(experiment.actor, dtype=dtype))
    assert old_logprobs(experiment) == found
    calls = {call.name: call for call in algorithm_of("grpo").recipe(experiment)}
    assert ("actor_inf" in calls) == (found == "recomputed") == ("old_logprobs" in calls["actor_train"].inputs)


def test_values_after_a_response_are_made_only_where_cut_ones_have_them(make) -> None:
    for cut, made in (("score", ("values",)), ("bootstrap", ("values", "values_after"))):
        calls = {call.name: call for call in algorithm_of("ppo").recipe(settings(make("ppo"), cut=cut))}
        assert calls["critic_inf"].outputs == made
        assert all(set(made) <= set(calls[call].inputs) for call in ("actor_train", "critic_train"))


def test_a_greedy_response_and_its_reward_are_the_baseline_of_remax(make) -> None:
    calls = {call.name: call for call in algorithm_of("remax").recipe(make("remax"))}
    assert calls["base_gen"].greedy and calls["base_gen"].outputs == ("base_responses", "base_finished")
    assert calls["base_rew"].input_remap == {"base_responses": "responses", "base_finished": "finished"}
    assert not calls["actor_gen"].greedy


def test_the_toy_has_the_shape_of_ppo(make) -> None:
    toy, ppo = (algorithm_of(algorithm).graph(make(algorithm, every=1)) for algorithm in ("toy", "ppo"))
    of_toy, of_ppo = ({edge[:3] for edge in graph.edges} for graph in (toy, ppo))
    assert of_toy == of_ppo


@pytest.mark.parametrize("name", KNOWN)
def test_evaluation_is_seen_by_the_roles_under_plain_names(make, name: str) -> None:
    algorithm, experiment = algorithm_of(name), make(name, every=5)
    evaluating = [mfc for mfc in algorithm.calls(experiment) if mfc.dataset == "eval"]
    graph = algorithm.graph(experiment)
    order, trained = topological_order(graph), changed_by(graph)
    of_trained = [mfc for mfc in evaluating if mfc.role in trained]
    assert all(order.index(mfc.name) > order.index(trained[mfc.role]) for mfc in of_trained)
    for mfc in evaluating:
        assert all(mfc.input_remap[key] == key.removeprefix("eval_") for key in mfc.inputs)
        assert all(f"eval_{plain}" == key for plain, key in mfc.output_remap.items())
        assert set(mfc.output_remap.values()) == set(mfc.outputs)


@pytest.mark.parametrize("name", KNOWN)
def test_calls_of_evaluation_exist_only_where_an_evaluation_is_asked_for(make, name: str) -> None:
    algorithm = algorithm_of(name)
    without = make(name)
    assert not algorithm.evaluates(without)
    assert all(call.dataset == "train" for call in algorithm.calls(without))
    assert algorithm.eval_keys(without) == ()
    assert algorithm.evaluates(make(name, every=3))
    assert algorithm.eval_keys(make(name, every=3)) == tuple(f"eval_{key}" for key in algorithm.rows.keys)
    if name not in ("toy", "profile"):
        asked = make(name, every=3)
        assert not algorithm.evaluates(replace(asked, data=replace(asked.data, evaluate=None)))


def test_the_batch_says_how_steps_are_cut_and_how_many_updates_they_have(make) -> None:
    experiment = make("ppo", samples_per_prompt=2)
    experiment = replace(experiment, ppo=replace(experiment.ppo, minibatches=3, epochs=2))
    made = algorithm_of("ppo").batch(experiment)
    assert made == Batch(rows=8, per_row=2, minibatches=3, passes=2)
    assert (made.samples, made.pieces, made.updates) == (16, 16, 6)
    assert replace(made, kept_whole="row").pieces == 8
    assert algorithm_of("sft").batch(make("sft", shuffle=False)) == Batch(rows=8, shuffled=False)
    assert algorithm_of("toy").batch(make("toy")) == Batch(rows=8)


@pytest.mark.parametrize("name", KNOWN)
def test_every_role_of_the_graph_is_declared_with_its_section(make, name: str) -> None:
    algorithm, experiment = algorithm_of(name), make(name, every=1)
    optional = SCORERS["reward_model"], SCORERS["judge"]
    needed = (
        algorithm.roles.keys() - {role for role, kind in algorithm.roles.items() if kind in optional} - {ENVIRONMENT}
    )
    assert {call.role for call in algorithm.calls(experiment)} == needed
    assert all(hasattr(experiment, role) for role in algorithm.roles)
    assert experiment_from({"algorithm": name} | _as_json(experiment)) == experiment


def _as_json(experiment: ExperimentConfig) -> dict[str, Any]:
    from hpcrl.config.experiment import to_dict

    return to_dict(experiment)


def test_a_name_that_is_none_gets_the_list_and_the_nearest() -> None:
    listed = ", ".join(names(ALGORITHMS))
    with pytest.raises(ConfigurationError, match=f"algorithm = pppo must be one of {listed}, or file.py:NAME"):
        algorithm_of("pppo")
