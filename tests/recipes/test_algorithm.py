from types import SimpleNamespace

import pytest

from hpcrl.dataflow.graph import producers, topological_order, trained_by
from hpcrl.recipes.algorithm import RECIPES, evaluates, recipe


def experiment(
    algorithm: str, *, every: int | None = None, stop_when: str | None = None, rows: str | None = "held-out"
):
    frequency = SimpleNamespace(steps=every, epochs=None, seconds=None)
    control = SimpleNamespace(evaluate=frequency, stop_when=stop_when)
    return SimpleNamespace(algorithm=algorithm, control=control, data=SimpleNamespace(evaluate=rows))


def test_ppo_is_the_graph_of_its_paper() -> None:
    graph = recipe(experiment("ppo")).graph()
    inference = {"rew_inf": ("rewards",), "ref_inf": ("ref_logprobs",), "critic_inf": ("values",)}
    of_rollout = {"actor_gen": ("responses", "finished", "logprobs"), **inference}
    assert producers(graph, "actor_gen") == {}
    assert all(producers(graph, call) == {"actor_gen": ("responses",)} for call in inference)
    assert producers(graph, "actor_train") == producers(graph, "critic_train") == of_rollout
    assert trained_by(graph) == {"actor": "actor_train", "critic": "critic_train"}
    assert graph.graph["dataset_keys"] == {"prompts"}


def test_the_toy_has_the_shape_of_ppo() -> None:
    toy, ppo = (recipe(experiment(algorithm, every=1)).graph() for algorithm in ("toy", "ppo"))
    assert {edge: toy.edges[edge]["kind"] for edge in toy.edges} == {
        edge: ppo.edges[edge]["kind"] for edge in ppo.edges
    }


@pytest.mark.parametrize("algorithm", sorted(RECIPES))
def test_evaluation_is_seen_by_the_roles_under_plain_names(algorithm: str) -> None:
    made = recipe(experiment(algorithm, every=5))
    graph = made.graph()
    expected = {"eval_gen", "eval_rew"} | ({"eval_loss"} if algorithm == "sft" else set())
    assert set(topological_order(graph)[-len(expected) :]) == expected
    for mfc in (mfc for mfc in made.calls if mfc.dataset == "eval"):
        assert all(mfc.input_remap[key] == key.removeprefix("eval_") for key in mfc.inputs)
        assert all(f"eval_{plain}" == key for plain, key in mfc.output_remap.items())
        assert set(mfc.output_remap.values()) == set(mfc.outputs)


@pytest.mark.parametrize("algorithm", sorted(RECIPES))
def test_calls_of_evaluation_exist_only_where_an_evaluation_is_asked_for(algorithm: str) -> None:
    assert not evaluates(experiment(algorithm))
    assert evaluates(experiment(algorithm, every=3))
    assert not evaluates(experiment(algorithm, stop_when="actor_train/loss < 0.5"))
    assert evaluates(experiment(algorithm, every=3, rows=None)) == (algorithm == "toy")
    assert all(mfc.dataset == "train" for mfc in recipe(experiment(algorithm)).calls)
    assert recipe(experiment(algorithm)).eval_keys == ()
