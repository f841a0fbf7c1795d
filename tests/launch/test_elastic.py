"""What is said of a run that goes on elsewhere."""

from dataclasses import replace

import msgspec
import pytest
from support.events import NUMERICS, opened, trained
from support.experiments import load_config, ppo_values, write_config, write_inputs
from support.serving import stand_in_python

from hpcrl.config.cluster import ClusterConfig
from hpcrl.config.control import ControlConfig
from hpcrl.config.load import change_settings
from hpcrl.config.model import PlacementConfig
from hpcrl.durable.recovery import RecoveryPlan
from hpcrl.durable.step_lines import StepLines
from hpcrl.launch.elastic import PROMISE, describe_elastic
from hpcrl.placement.check import ALL_CHECKS
from hpcrl.recipes.toy import ToyExperiment

FOUR = ToyExperiment(control=ControlConfig(steps=9), cluster=ClusterConfig(nodes=4, workers_per_node=1))
PARTS = {"actor_gen": 4, "rew_inf": 4, "actor_train": 1}


def step(number: int, calls: dict[str, int] = PARTS):
    return StepLines(msgspec.structs.replace(opened(number), calls=calls))


def replay(number: int, call: str, workers: int = 4, layout: str = ""):
    numerics = msgspec.structs.replace(NUMERICS, workers=workers, layout=layout or f"d{workers}t1p1")
    return msgspec.structs.replace(trained(number, call), numerics=numerics)


def test_cpu_workers_that_are_added_are_told_and_promise_the_same_bits(tmp_path, monkeypatch) -> None:
    write_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    path = write_config(tmp_path / "ppo.yaml", ppo_values())
    none, one = (load_config(path, ["cluster.nodes=2", f"reward.workers={workers}"], ALL_CHECKS) for workers in (0, 1))
    recovery = RecoveryPlan(opened=(step(5, {"actor_gen": 4, "rew_inf": 4, "actor_train": 1}),))
    assert list(describe_elastic(none, one, recovery)) == [
        "2 nodes of 2 workers → 2 nodes of 2 workers and 1 CPU worker",
        "step 5, open, keeps the 4 parts of rew_inf",
        "rew_inf: d4t1p1 → d2t1p1, equal to the bit",
    ]


@pytest.fixture
def four(tmp_path, monkeypatch):
    """PPO on four workers, whose actor is trained on the first, with some settings."""
    write_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    config = write_config(tmp_path / "ppo.yaml", ppo_values())
    return lambda *settings: load_config(config, ["cluster.workers_per_node=4", "actor.mesh=0", *settings], ALL_CHECKS)


@pytest.fixture
def said(four):
    """What is said of it where settings change."""
    return lambda before, after: list(describe_elastic(four(*before), four(*after), RecoveryPlan()))


def generation(layout: str, mesh: str) -> str:
    return f"calls={{actor_gen: {{layout: {layout}, mesh: {mesh}}}}}"


def test_a_copy_whose_rows_are_split_otherwise_is_told_and_gives_other_roundings(said) -> None:
    wider = said([generation("d2", "0-1")], [generation("d4", "0-3")])
    assert wider == ["actor_gen: d2t1p1 → d4t1p1, equal up to rounding", PROMISE]


def test_a_call_that_gets_a_copy_or_loses_it_is_told(said) -> None:
    assert said([], [generation("d4", "0-3")]) == ["actor_gen: d1t1p1 → d4t1p1, equal up to rounding", PROMISE]
    assert said([generation("d4", "0-3")], []) == ["actor_gen: d4t1p1 → d1t1p1, equal up to rounding", PROMISE]


def test_a_copy_that_another_backend_holds_is_told(said) -> None:
    copy = "calls={{actor_gen: {{mesh: 0-1, backend: {}}}}}"
    told = "actor_gen: d2t1p1 of native → d2t1p1 of fsdp, equal up to rounding"
    assert said([copy.format("native")], [copy.format("fsdp")]) == [told, PROMISE]


def test_a_call_whose_responses_a_server_makes_draws_others_and_that_is_told(said, tmp_path) -> None:
    copy = f"calls={{actor_gen: {{backend: vllm, python: {stand_in_python(tmp_path)}}}}}"
    told = "from here on actor_gen will draw other responses than in an undisturbed run"
    assert said([], [copy])[-2:] == ["actor_gen: d1t1p1 of native → d1t1p1 of vllm, other draws", told]


def test_what_a_model_that_is_not_trained_computes_for_other_rows_is_told(said) -> None:
    fewer = said([], ["reference.mesh=0-1"])
    assert fewer == ["ref_inf: d4t1p1 → d2t1p1, equal up to rounding", PROMISE]


def whole(experiment, role):
    """Its experts whole on tensor-parallel workers; the model has none, which nobody looks at here."""
    return replace(experiment, **{role: replace(getattr(experiment, role), experts="whole")})


def test_experts_that_are_cut_otherwise_are_told(four) -> None:
    inner = four("reference.layout=d2t2")
    assert list(describe_elastic(inner, whole(inner, "reference"), RecoveryPlan())) == [
        "ref_inf: d2t2p1 → d2t2p1, experts whole, equal up to rounding",
        PROMISE,
    ]


def test_replays_whose_experts_are_cut_as_they_were_are_not_told(four) -> None:
    same, recorded = whole(four(), "critic"), replay(7, "critic_train", 4, "d4t1p1, experts whole")
    assert list(describe_elastic(same, same, RecoveryPlan(replay=(recorded,)))) == []


def test_a_function_gives_the_same_bits_wherever_it_is_asked(said) -> None:
    assert said([], ["reward.mesh=0-1"]) == ["rew_inf: d4t1p1 → d2t1p1, equal to the bit"]


def test_a_copy_of_the_same_layout_on_other_workers_gives_the_same_bits(said) -> None:
    assert said([generation("d2", "0-1")], [generation("d2", "2-3")]) == []


def test_a_copy_whose_workers_are_on_other_nodes_adds_up_in_another_order(said) -> None:
    two = ["cluster.nodes=2", "cluster.workers_per_node=2"]
    assert said([generation("t4", "0-3")], [generation("t4", "0-3"), *two]) == [PROMISE]


def test_where_a_role_is_updated_is_told_and_where_a_frozen_one_waits_is_not(said) -> None:
    before = [f"{role}.backend=fsdp" for role in ("critic", "reference")]
    assert said(before, [*before, "reference.offload=parameters"]) == []
    told = "critic.offload: what is computed with another value is equal up to rounding"
    assert said(before, [*before, "critic.offload=parameters"]) == [told, PROMISE]


@pytest.mark.parametrize(
    "setting",
    ["actor.micro_batch_tokens=64", "generation.slots=2", "cluster.threads_per_worker=2", "deterministic=false"],
)
def test_what_has_another_size_is_told_and_gives_other_roundings(said, setting: str) -> None:
    key = setting.partition("=")[0]
    assert said([], [setting]) == [f"{key}: what is computed with another value is equal up to rounding", PROMISE]


def test_steps_under_way_and_replays_on_other_workers_are_told() -> None:
    recovery = RecoveryPlan(
        opened=(step(5), step(6), step(7), step(8), step(9, {"actor_gen": 2, "rew_inf": 2})),
        closed=frozenset({5, 6}),
        replay=(
            replay(5, "actor_train"),
            replay(5, "critic_train", 2),
            replay(6, "actor_train"),
            replay(6, "critic_train", 2, "d1t2p1"),
        ),
    )
    two = change_settings(FOUR, ["cluster.nodes=2"], ALL_CHECKS)
    assert list(describe_elastic(FOUR, two, recovery)) == [
        "4 nodes of 1 worker → 2 nodes of 1 worker",
        "steps 7..8, open, keep the 4 parts of actor_gen, rew_inf",
        "replays actor_train of steps 5..6 over 2 workers, recorded over 4: equal up to rounding",
        "replays critic_train of step 6 as d2t1p1, recorded as d1t2p1: equal up to rounding",
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


def test_calls_that_are_cut_differently_are_told() -> None:
    recovery = RecoveryPlan(opened=(step(7),))
    actor, critic = PlacementConfig(layout="d2t2"), PlacementConfig(layout="d2p2")
    cut = replace(FOUR, actor=actor, critic=critic, calls={"critic_inf": {"layout": "d4"}, "ref_inf": {"layout": "d4"}})
    assert list(describe_elastic(FOUR, cut, recovery)) == [
        "step 7, open, keeps the 4 parts of actor_gen",
        "actor_gen, actor_train: d4t1p1 → d2t2p1, equal up to rounding",
        "critic_train: d4t1p1 → d2t1p2, equal up to rounding",
        PROMISE,
    ]
    assert list(describe_elastic(cut, cut, recovery)) == ["step 7, open, keeps the 4 parts of actor_gen"]
