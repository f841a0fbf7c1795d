"""What a plan says of each worker: what it holds, receives, sends and releases, in words and bytes."""

from dataclasses import replace
from pathlib import Path

import pytest
from support.chaos import toy_experiment
from support.experiments import load_config, ppo_values, write_config, write_inputs

from hpcrl.config.model import TrainedBetweenConfig
from hpcrl.families.reader import read_config
from hpcrl.placement.memory import buffer_length, estimate_models, parameters_held
from hpcrl.placement.movements import Movements, part_of
from hpcrl.placement.plan import plan_for
from hpcrl.placement.shards import Cut
from hpcrl.placement.sizes import size_in_words


@pytest.fixture
def experiment(tmp_path, monkeypatch):
    write_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    values = ppo_values() | {"cluster": {"nodes": 2, "workers_per_node": 2}}
    return load_config(write_config(tmp_path / "ppo.yaml", values))


def movements(experiment, actor, **calls):
    placed = replace(experiment, actor=replace(experiment.actor, **actor), calls=calls)
    plan = plan_for(placed, 2)
    return Movements(plan, placed, estimate_models(plan, placed))


def size(experiment, cut, count=parameters_held):
    return size_in_words(4 * count(read_config(Path(experiment.actor.path)), cut))


@pytest.mark.parametrize(
    ("cut", "words"),
    [
        (Cut(), "actor"),
        (Cut(stage=1, pp=2), "second half of actor"),
        (Cut(stage=1, pp=3), "stage 2 of 3 of actor"),
        (Cut(tensor=1, tp=2), "tensor part 2 of 2 of actor"),
        (Cut(tensor=1, tp=2, pp=2), "tensor part 2 of 2 of the first half of actor"),
        (Cut(tensor=0, tp=2, stage=2, pp=4), "tensor part 1 of 2 of stage 3 of 4 of actor"),
    ],
)
def test_a_cut_in_words(cut, words):
    assert part_of("actor", cut) == words


def test_a_stage_receives_the_other_half(experiment):
    told = movements(experiment, {"layout": "p2d2"}, actor_gen={"layout": "d4"})
    whole = size(experiment, Cut(), buffer_length)
    assert next(told.holds(2)).startswith("second half of actor (")
    (after,) = told.around(2)
    assert after.startswith("receives its first half (")
    assert after.endswith(f" for actor_gen, then releases {whole}")
    assert next(told.around(0)).startswith("receives its second half (")


def test_what_is_always_in_the_hosts_memory_is_told_apart_from_what_waits_there(experiment):
    always = next(movements(experiment, {"offload": "optimizer"}).holds(0))
    waits = next(movements(experiment, {"between": TrainedBetweenConfig(optimizer="host")}).holds(0))
    assert always.endswith(" always in the memory of its host)") and " of it " not in always
    assert waits.endswith(" of it in the memory of its host between calls)")


def test_who_has_nothing_of_a_model_receives_its_part_and_who_is_not_asked_sends(experiment):
    told = movements(experiment, {"mesh": "0", "layout": "d1"}, actor_gen={"layout": "t2", "mesh": "node1"})
    half, room = size(experiment, Cut(tp=2)), size(experiment, Cut(tp=2), buffer_length)
    (receiver,) = told.around(2)
    assert receiver.startswith(f"receives tensor part 1 of 2 of actor ({half})")
    assert receiver.endswith(f" for actor_gen, then releases {room}")
    assert list(told.around(1)) == []
    (sender,) = told.around(0)
    assert sender.startswith("sends ") and sender.endswith(" of actor for actor_gen")
    assert not any("actor" in held for held in told.holds(2))


def test_a_tensor_rank_receives_the_rest(experiment):
    told = movements(experiment, {"layout": "d2t2"}, actor_gen={"layout": "d4"})
    assert [next(told.around(rank)).partition(" (")[0] for rank in range(4)] == ["receives the rest of actor"] * 4


def test_what_a_worker_has_it_copies(experiment):
    told = movements(experiment, {}, actor_gen={"layout": "d2", "mesh": "0-1", "between": "keep"})
    whole = size(experiment, Cut())
    assert list(told.around(0)) == [f"copies actor ({whole}) for actor_gen"]
    assert "actor@1 (" in " ".join(told.holds(0))
    assert list(told.around(3)) == []


def test_a_role_without_a_model_is_named_alone(experiment):
    assert list(movements(experiment, {}).holds(0))[-1] == "reward" or "reward" in list(
        movements(experiment, {}).holds(0)
    )


def test_what_has_no_shapes_is_told_without_sizes():
    placed = replace(toy_experiment(), calls={"actor_gen": {"layout": "t2"}, "critic_inf": {"mesh": 0}})
    told = Movements(plan_for(placed, 1), placed, {})
    assert list(told.holds(1)) == ["actor", "reference", "critic"]
    assert list(told.around(0)) == [
        "receives tensor part 1 of 2 of actor for actor_gen, eval_gen, then releases it",
        "receives critic for critic_inf, then releases it",
    ]
