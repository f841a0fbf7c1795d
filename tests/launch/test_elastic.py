"""What is said of a run that goes on elsewhere."""

import msgspec
from support.events import NUMERICS, opened, trained
from support.experiments import load_config, ppo_values, write_config, write_inputs

from hpcrl.config.cluster import ClusterConfig
from hpcrl.config.control import ControlConfig
from hpcrl.config.load import change_settings
from hpcrl.durable.recovery import RecoveryPlan
from hpcrl.durable.step_lines import StepLines
from hpcrl.launch.elastic import PROMISE, describe_elastic
from hpcrl.placement.check import ALL_CHECKS
from hpcrl.recipes.toy import ToyExperiment

FOUR = ToyExperiment(control=ControlConfig(steps=9), cluster=ClusterConfig(nodes=4, workers_per_node=1))
PARTS = {"actor_gen": 4, "rew_inf": 4, "actor_train": 1}


def step(number: int, calls: dict[str, int] = PARTS):
    return StepLines(msgspec.structs.replace(opened(number), calls=calls))


def replay(number: int, call: str, workers: int = 4):
    return msgspec.structs.replace(trained(number, call), numerics=msgspec.structs.replace(NUMERICS, workers=workers))


def test_cpu_workers_that_are_added_are_told_and_promise_the_same_bits(tmp_path, monkeypatch) -> None:
    write_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    path = write_config(tmp_path / "ppo.yaml", ppo_values())
    none, one = (load_config(path, ["cluster.nodes=2", f"reward.workers={workers}"], ALL_CHECKS) for workers in (0, 1))
    recovery = RecoveryPlan(opened=(step(5, {"actor_gen": 4, "rew_inf": 4, "actor_train": 1}),))
    assert list(describe_elastic(none, one, recovery)) == [
        "2 nodes of 2 workers → 2 nodes of 2 workers and 1 CPU worker",
        "step 5, open, keeps the 4 parts of rew_inf",
    ]


def test_steps_under_way_and_replays_on_other_workers_are_told() -> None:
    recovery = RecoveryPlan(
        opened=(step(5), step(6), step(7), step(8), step(9, {"actor_gen": 2, "rew_inf": 2})),
        closed=frozenset({5, 6}),
        replay=(replay(5, "actor_train"), replay(5, "critic_train", 2), replay(6, "actor_train")),
    )
    two = change_settings(FOUR, ["cluster.nodes=2"], ALL_CHECKS)
    assert list(describe_elastic(FOUR, two, recovery)) == [
        "4 nodes of 1 worker → 2 nodes of 1 worker",
        "steps 7..8, open, keep the 4 parts of actor_gen, rew_inf",
        "replays actor_train of steps 5..6 over 2 workers, recorded over 4: equal up to rounding",
        PROMISE,
    ]


def test_of_the_same_workers_nothing_is_said() -> None:
    recovery = RecoveryPlan(opened=(step(7),), replay=(replay(7, "actor_train"),))
    elsewhere = change_settings(FOUR, ["cluster.slurm.partition=low", "cluster.grace_s=3"], ALL_CHECKS)
    assert list(describe_elastic(FOUR, elsewhere, recovery)) == []


def test_as_many_workers_in_another_number_of_nodes_are_no_other_workers() -> None:
    recovery = RecoveryPlan(opened=(step(7),))
    packed = change_settings(FOUR, ["cluster.nodes=1", "cluster.workers_per_node=4"], ALL_CHECKS)
    assert list(describe_elastic(FOUR, packed, recovery)) == []
