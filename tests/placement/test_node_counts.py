"""A range of nodes: every number of it is placed, checked, and told of."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from support.experiments import load_config, ppo_values, write_config, write_inputs, write_model

from hpcrl.cli.main import main
from hpcrl.config.changes import RunSettings, with_nodes
from hpcrl.config.validate import unused_notices
from hpcrl.errors import ConfigurationError, ExitCode
from hpcrl.launch import preflight
from hpcrl.launch.settled import settled
from hpcrl.placement.capacity import Capacity
from hpcrl.placement.check import ALL_CHECKS
from hpcrl.placement.plan import plan_for, plan_under
from hpcrl.placement.step_times import expected_ratio, expected_step_s


@pytest.fixture
def load(tmp_path, monkeypatch):
    write_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    path = write_config(tmp_path / "ppo.yaml", ppo_values() | {"data": ppo_values()["data"] | {"batch_size": 64}})
    return lambda *overrides: load_config(
        path, ["cluster.device=cpu", "cluster.workers_per_node=1", *overrides], ALL_CHECKS
    )


def refusal(load, *overrides):
    with pytest.raises(ConfigurationError) as raised:
        load(*overrides)
    return raised.value.problems[0]


@pytest.mark.parametrize("nodes", ["8-2", "0-3", "2-", "-2", "two", "1-2-3", "2 - 8", 0])
def test_what_is_no_range_is_refused(load, nodes):
    said = refusal(load, f"cluster.nodes={nodes}")
    assert said == (
        f"cluster.nodes = {nodes} must be a whole number from 1, or a range such as 2-8, the least first. "
        "Set cluster.nodes."
    )


@pytest.mark.parametrize(
    "override", ["cluster.nodes=1-99999999", f"cluster.nodes={10**30}", "cluster.workers_per_node=9999"]
)
def test_more_workers_than_anybody_has_are_refused_before_they_are_counted(load, override):
    key, _, value = override.partition("=")
    assert refusal(load, override).startswith(f"{key} = {value} must be ")


def test_a_range_of_one_number_is_that_number(load):
    experiment = load("cluster.nodes=2-2")
    assert not experiment.cluster.is_elastic and plan_for(experiment).nodes == 2


def test_a_batch_that_does_not_fill_some_number_is_refused_with_these_numbers(load):
    said = refusal(load, "cluster.nodes=2-16", "data.batch_size=4", "actor.layout=null")
    assert said.startswith(
        "on 5 nodes (as on 6-16): data.batch_size gives 4 samples per step, but actor.layout has dp = 5"
    )


def test_a_range_that_a_layout_or_a_mesh_contradicts_is_refused(load):
    said = refusal(load, "cluster.nodes=2-4", "actor.layout=d2")
    assert said == (
        "on 3 nodes (as on 4): actor.layout = d2 needs dp·tp·pp = 2·1·1 = 2 workers, but cluster.nodes · "
        "cluster.workers_per_node = 3 · 1 = 3. Change actor.layout, actor.mesh or cluster.nodes."
    )
    said = refusal(load, "cluster.nodes=1-4", "critic.mesh=1-2", "critic.layout=d2")
    assert said.startswith('on 1 node (as on 2): critic.mesh = "1-2" names worker 2, but the cluster has workers 0 to')


def test_layouts_are_given_for_each_number(load):
    other = json.dumps({"2": {"actor.layout": "d1t2"}, "3": {"actor.layout": "d3", "actor.micro_batch_tokens": 512}})
    experiment = load("cluster.nodes=1-3", f"on_nodes={other}")
    assert [plan_for(experiment, nodes).home("actor").layout for nodes in (1, 2, 3)] == ["d1t1p1", "d1t2p1", "d3t1p1"]
    assert with_nodes(experiment, 3).actor.micro_batch_tokens == 512
    assert plan_for(experiment) == plan_for(with_nodes(experiment, 3))


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"two": {}}, 'on_nodes."two" must be a number of nodes'),
        ({"2": {"actor.layuot": "d2"}}, 'on_nodes."2" has actor.layuot, but it can only have settings of class'),
        ({"2": {"seed": 2}}, 'on_nodes."2" has seed, but it can only have settings of class placement, and not '),
        ({"2": {"cluster.nodes": 2}}, 'on_nodes."2" has cluster.nodes'),
        ({"2": {"actor.layout": 2}}, 'on_nodes."2": actor.layout = 2 must be `str | null`, got `int`'),
        ({"2": 3}, 'on_nodes."2" must be a number of nodes and a mapping'),
        ({"2": {"actor.layout": "d3"}}, "on 2 nodes: actor.layout = d3 needs"),
    ],
)
def test_what_cannot_be_given_for_a_number_is_refused(load, other, words):
    assert words in refusal(load, "cluster.nodes=1-2", f"on_nodes={json.dumps(other)}")


def test_numbers_that_the_run_never_has_are_said_to_have_no_effect(load):
    other = 'on_nodes={"2": {actor.layout: d2}, "5": {actor.layout: d5}}'
    assert not list(unused_notices(load("cluster.nodes=1-5", other)))
    assert list(unused_notices(load("cluster.nodes=1-4", other))) == [
        'on_nodes."5" has no effect: cluster.nodes = 1-4.'
    ]


def test_what_is_wrong_beside_a_range_is_told_with_it(load):
    with pytest.raises(ConfigurationError) as raised:
        load("cluster.nodes=1-2", 'on_nodes={"2": {"actor.layout": d2}}', "generation.top_p=0", "cluster.heartbeat_s=0")
    assert {key for it in raised.value.found for key in it.keys} >= {"generation.top_p", "cluster.heartbeat_s"}


@pytest.mark.parametrize("mode", ["heuristic", "pipe_data", "search"])
def test_an_allocation_is_settled_for_each_number_and_no_attempt_searches(load, mode):
    asked = load("cluster.nodes=1-3", f"allocation={mode}", "search.proposals=200")
    experiment = settled(asked)
    assert experiment.allocation == "manual" and set(experiment.on_nodes) == {"1", "2", "3"}
    for nodes in (1, 2, 3):
        alone = settled(replace(asked, cluster=replace(asked.cluster, nodes=nodes)))
        assert plan_for(experiment, nodes).replicas == plan_for(alone).replicas, nodes


def test_a_plan_names_the_nodes_that_it_has(load):
    experiment = load("cluster.nodes=2-4")
    plan = plan_under(RunSettings(experiment), (1, 3), {})
    assert [worker.node for worker in plan.workers] == [1, 3] and plan.ranks_on(3) == (1,)
    assert plan.replicas == plan_for(experiment, 2).replicas
    assert plan.experiment["cluster"]["nodes"] == 2


def test_memory_is_checked_on_each_number_and_the_refusal_names_it(load, monkeypatch):
    def capacity(experiment, launcher):
        few = experiment.cluster.most_nodes < 3
        return Capacity(1.0 if few else 1e12, "worker", "a GPU here has")

    monkeypatch.setattr(preflight, "capacity_of", capacity)
    with pytest.raises(ConfigurationError) as raised:
        preflight._check_memory(load("cluster.nodes=1-4"), None)
    (problem,) = raised.value.problems
    assert problem.startswith("on 1 node: the parameters, gradients and optimizers of a worker need ")
    assert problem.endswith("Or set cluster.nodes (now 1-4) so that the run never has 1 node.")
    preflight._check_memory(load("cluster.nodes=3-4"), None)


def test_a_step_is_expected_to_be_shorter_on_more_nodes_and_even_shares_stand_in_where_nothing_is_known(load):
    write_model(Path("model"), hidden_size=512, intermediate_size=4096, num_hidden_layers=8)
    experiment = load("cluster.nodes=1-4")
    times = [expected_step_s(experiment, nodes) for nodes in (1, 2, 4)]
    assert None not in times and times[0] > times[1] > times[2]
    assert expected_ratio(experiment, 1, 2) == times[1] / times[0]
    unknown = replace(experiment, cluster=replace(experiment.cluster, device="cuda"))
    assert expected_step_s(unknown, 2) is None and expected_ratio(unknown, 2, 3) == 2 / 3


def test_plan_has_a_line_for_each_number(load, capsys):
    load("cluster.nodes=1-3")
    words = ["ppo.yaml", "--cluster", "local", "--cluster.device", "cpu", "--cluster.workers_per_node", "1"]
    assert main(["plan", *words, "--nodes", "1-3", "--json"]) == ExitCode.DONE
    found = json.loads(capsys.readouterr().out)
    assert [it["nodes"] for it in found["node_counts"]] == [1, 2, 3]
    assert found["node_counts"][1]["layouts"]["actor"] == "d2t1p1"
    assert main(["plan", *words, "--nodes", "1-3"]) == ExitCode.DONE
    said = capsys.readouterr().out
    assert "On each number of nodes that the run may have:" in said and "actor d3t1p1" in said
