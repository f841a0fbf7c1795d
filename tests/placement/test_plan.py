"""The plan: calls, roles, workers, and who takes part in what."""

from dataclasses import replace

import networkx as nx

from hpcrl.config.cluster import ClusterConfig
from hpcrl.config.control import Frequency
from hpcrl.config.experiment import ToyExperiment, from_dict
from hpcrl.config.model import PlacementConfig
from hpcrl.dataflow.recipes import recipe
from hpcrl.placement.plan import WorkerPlan, make_plan, plan_from_json

EXPERIMENT = ToyExperiment(
    cluster=ClusterConfig(nodes=2, workers_per_node=2),
    actor=PlacementConfig(layout="d2t2"),
    reference=PlacementConfig(mesh="1,3"),
)


def test_a_plan_survives_json():
    plan = make_plan(EXPERIMENT)
    assert plan_from_json(plan.to_json()) == plan
    assert from_dict(plan_from_json(plan.to_json()).experiment) == EXPERIMENT


def test_workers_are_numbered_node_by_node():
    plan = make_plan(EXPERIMENT)
    assert plan.workers == (WorkerPlan(0, 0, 0), WorkerPlan(1, 0, 1), WorkerPlan(2, 1, 0), WorkerPlan(3, 1, 1))
    assert plan.world == 4


def test_a_role_without_a_layout_is_data_parallel_over_its_mesh():
    roles = make_plan(EXPERIMENT).roles
    assert (roles["critic"].layout, roles["critic"].ranks) == ("d4t1p1", (0, 1, 2, 3))
    assert (roles["reference"].layout, roles["reference"].ranks) == ("d2t1p1", (1, 3))


def test_roles_that_some_call_trains_are_trainable():
    roles = make_plan(EXPERIMENT).roles
    assert {name: role.trainable for name, role in roles.items()} == {
        "actor": True,
        "critic": True,
        "reference": False,
        "reward": False,
    }


def test_a_part_of_a_call_runs_on_its_data_parallel_ranks():
    plan = make_plan(EXPERIMENT)
    assert plan.dp("actor_gen") == 2
    assert [plan.ranks("actor_gen", part) for part in range(2)] == [(0, 1), (2, 3)]
    assert [plan.ranks("ref_inf", part) for part in range(2)] == [(1,), (3,)]


def test_parts_of_a_step_that_was_opened_for_more_workers_go_round_those_that_there_are():
    plan = make_plan(EXPERIMENT)
    assert [plan.ranks("actor_gen", part) for part in range(5)] == [(0, 1), (2, 3), (0, 1), (2, 3), (0, 1)]


def test_a_train_step_is_one_part_on_all_ranks_of_its_role():
    plan = make_plan(EXPERIMENT)
    assert plan.dp("actor_train") == 1
    assert plan.ranks("actor_train", 0) == (0, 1, 2, 3)


def test_the_graph_of_a_plan_is_the_recipes():
    evaluated = replace(EXPERIMENT, control=replace(EXPERIMENT.control, evaluate=Frequency(steps=1)))
    for experiment in (EXPERIMENT, evaluated):
        made, expected = make_plan(experiment).graph(), recipe(experiment).graph()
        assert nx.utils.graphs_equal(made, expected)
