"""The plan: calls, roles, workers, and who takes part in what."""

from dataclasses import replace

from hpcrl.config.cluster import ClusterConfig
from hpcrl.config.control import Frequency
from hpcrl.config.model import PlacementConfig
from hpcrl.placement.plan import ModelName, Part, ReplicaPlan, plan_for, plan_from_json
from hpcrl.placement.shards import Cut
from hpcrl.recipes.algorithm import algorithm_of, experiment_from
from hpcrl.recipes.toy import ToyExperiment

EXPERIMENT = ToyExperiment(
    cluster=ClusterConfig(nodes=2, workers_per_node=2),
    actor=PlacementConfig(layout="d2t2"),
    reference=PlacementConfig(mesh="1,3"),
)


def test_a_plan_survives_json():
    plan = plan_for(EXPERIMENT, 2)
    assert plan_from_json(plan.to_json()) == plan
    assert experiment_from(plan_from_json(plan.to_json()).experiment) == EXPERIMENT


def test_workers_are_numbered_node_by_node():
    plan = plan_for(EXPERIMENT, 2)
    assert [(worker.rank, worker.node, worker.slot) for worker in plan.workers] == [
        (0, 0, 0), (1, 0, 1), (2, 1, 0), (3, 1, 1),
    ]  # fmt: skip
    assert {worker.host for worker in plan.workers} == {"hpcrl.workers.toy:ToyHost"}
    assert plan.host == "hpcrl.workers.toy:ToyHost"
    assert plan.peers(2) == (0, 1, 2, 3)


def test_a_role_without_a_layout_is_data_parallel_over_its_mesh():
    plan = plan_for(EXPERIMENT, 2)
    critic, reference = plan.home("critic"), plan.home("reference")
    assert (critic.layout, critic.ranks) == ("d4t1p1", (0, 1, 2, 3))
    assert (reference.layout, reference.ranks) == ("d2t1p1", (1, 3))


def test_roles_that_some_call_trains_are_trainable():
    plan = plan_for(EXPERIMENT, 2)
    assert [replica.model for replica in plan.trained] == [ModelName("actor"), ModelName("critic")]
    assert plan.changes == {"actor_train": "actor", "critic_train": "critic"}


def test_every_call_is_made_at_the_home_of_its_role():
    plan = plan_for(EXPERIMENT, 2)
    assert {call: str(model) for call, model in plan.at.items()} == {call.name: call.role for call in plan.calls}
    assert plan.replica("critic_inf") is plan.home("critic")
    assert str(ModelName("actor", 1)) == "actor@1"


ELSEWHERE = replace(
    EXPERIMENT,
    control=replace(EXPERIMENT.control, evaluate=Frequency(steps=1)),
    calls={
        "actor_gen": {"layout": "d2", "mesh": "0-1"},
        "critic_inf": {"layout": "p2d2"},
        "eval_rew": {"mesh": "3", "between": "keep"},
        "ref_inf": {"mesh": "1,3"},
    },
)


def test_a_call_is_made_where_calls_places_it():
    plan = plan_for(ELSEWHERE, 2)
    assert {call: str(model) for call, model in plan.at.items()} == {
        "actor_gen": "actor@1",
        "rew_inf": "reward",
        "ref_inf": "reference",
        "critic_inf": "critic@1",
        "actor_train": "actor",
        "critic_train": "critic",
        "eval_gen": "actor@1",
        "eval_rew": "reward@1",
    }
    actor, reward = plan.replica("actor_gen"), plan.replica("eval_rew")
    assert (actor.layout, actor.ranks, actor.trainable, actor.between) == ("d2t1p1", (0, 1), False, "drop")
    assert (reward.layout, reward.ranks, reward.between) == ("d1t1p1", (3,), "keep")
    assert plan.replica("critic_inf").layout == "d2t1p2"
    actors = [replica for replica in plan.replicas if replica.role == "actor"]
    assert [replica.model for replica in actors] == [ModelName("actor"), ModelName("actor", 1)]
    assert [replica.is_home for replica in actors] == [True, False]
    assert plan.trained == tuple(plan.home(role) for role in ("actor", "critic"))
    assert [plan.parts(call)[0].ranks for call in ("actor_gen", "actor_train", "critic_inf")] == [(0,), (0, 1), (0, 2)]
    assert plan_from_json(plan.to_json()) == plan


def test_equal_places_of_a_role_are_one_replica():
    same = {"mesh": "1", "layout": "d1"}
    plan = plan_for(replace(ELSEWHERE, calls={"actor_gen": same, "eval_gen": {"mesh": "1"}, "critic_inf": same}), 2)
    assert [str(replica.model) for replica in plan.replicas] == [
        "actor", "actor@1", "reward", "reference", "critic", "critic@1",
    ]  # fmt: skip
    apart = plan_for(replace(ELSEWHERE, calls={"actor_gen": same, "eval_gen": {"mesh": "0"}}), 2)
    assert (str(apart.at["actor_gen"]), str(apart.at["eval_gen"])) == ("actor@1", "actor@2")


def test_a_replica_of_parameters_that_stay_waits_in_the_hosts_memory_where_somebody_needs_the_room():
    crowded = replace(ELSEWHERE, calls={"eval_rew": {"mesh": "0"}})
    assert plan_for(crowded, 2).replica("eval_rew").between == "host"
    few = {role: PlacementConfig(mesh="0", layout="d1") for role in ("actor", "critic", "reference", "reward")}
    alone = replace(ELSEWHERE, calls={"eval_rew": {"mesh": "3"}}, **few)
    assert plan_for(alone, 2).replica("eval_rew").between == "keep"


def test_a_worker_of_a_replica_knows_its_cut():
    of = ReplicaPlan(ModelName("actor"), "d2t2p2", tuple(range(10, 18)), True)
    assert [of.cut(rank) for rank in (10, 12, 17)] == [Cut(0, 2, 0, 2), Cut(0, 2, 0, 2), Cut(1, 2, 1, 2)]
    for part in of.parts:
        assert (of.cut(part.head).tensor, of.cut(part.head).is_last) == (0, True)


def test_nodes_are_those_that_the_attempt_has_whatever_was_asked_for():
    plan = plan_for(EXPERIMENT, nodes=3)
    assert len(plan.workers) == 6
    assert plan.home("critic").layout == "d6t1p1"


def test_the_head_of_a_part_is_the_first_worker_of_its_last_stage():
    of = ReplicaPlan(ModelName("actor"), "d2t2p2", tuple(range(8)), True)
    assert of.parts == (Part(0, (0, 1, 4, 5), 4), Part(1, (2, 3, 6, 7), 6))
    assert ReplicaPlan(ModelName("actor"), "d2t1p1", (3, 5), True).parts == (Part(0, (3,), 3), Part(1, (5,), 5))


def test_a_part_of_a_call_runs_on_its_data_parallel_ranks():
    plan = plan_for(EXPERIMENT, 2)
    assert plan.units("actor_gen") == 2
    assert [plan.ranks("actor_gen", part) for part in range(2)] == [(0, 1), (2, 3)]
    assert [plan.ranks("ref_inf", part) for part in range(2)] == [(1,), (3,)]


def test_parts_of_a_step_that_was_opened_for_more_workers_go_round_those_that_there_are():
    plan = plan_for(EXPERIMENT, 2)
    assert [plan.ranks("actor_gen", part) for part in range(5)] == [(0, 1), (2, 3), (0, 1), (2, 3), (0, 1)]


def test_a_train_step_is_one_part_on_all_ranks_of_its_role():
    plan = plan_for(EXPERIMENT, 2)
    assert plan.units("actor_train") == 1
    assert plan.ranks("actor_train", 0) == (0, 1, 2, 3)
    assert [part.head for part in plan.working("actor_train", 0)] == [0, 2]
    assert [part.head for part in plan.working("actor_gen", 1)] == [2]


def test_the_graph_of_a_plan_is_the_recipes():
    evaluated = replace(EXPERIMENT, control=replace(EXPERIMENT.control, evaluate=Frequency(steps=1)))
    for experiment in (EXPERIMENT, evaluated):
        made, expected = plan_for(experiment, 2).graph(), algorithm_of(experiment).graph(experiment)
        assert made == expected
