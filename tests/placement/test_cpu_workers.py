"""CPU workers in the plan: behind all model workers, a host of their own, and what of them is refused."""

import dataclasses

import pytest

from hpcrl.cli.main import main
from hpcrl.errors import ConfigurationError
from hpcrl.placement.placing import cpu_roles
from hpcrl.placement.plan import plan_for

TORCH, REWARD = "hpcrl.algos.host:TorchHost", "hpcrl.workers.reward_host:RewardHost"


def test_cpu_workers_rank_behind_the_model_workers_of_all_nodes_and_have_the_slots_behind_theirs(load):
    plan = plan_for(load("cluster.nodes=2", "reward.workers=2"), 2)
    assert [(worker.node, worker.slot, worker.host) for worker in plan.workers] == [
        (0, 0, TORCH), (0, 1, TORCH), (1, 0, TORCH), (1, 1, TORCH),
        (0, 2, REWARD), (0, 3, REWARD), (1, 2, REWARD), (1, 3, REWARD),
    ]  # fmt: skip
    assert [worker.rank for worker in plan.workers] == list(range(8))
    assert plan.ranks_on(0) == (0, 1, 4, 5) and plan.ranks_on(1) == (2, 3, 6, 7)
    assert plan.peers(3) == (0, 1, 2, 3) and plan.peers(4) == (4, 5, 6, 7)


def test_a_role_with_cpu_workers_is_on_them_alone_and_all_others_are_where_they_were(load):
    without, with_ = (plan_for(load("cluster.nodes=2", f"reward.workers={number}"), 2) for number in (0, 1))
    assert with_.home("reward").ranks == (4, 5) and with_.home("reward").layout == "d2t1p1"
    assert without.home("reward").ranks == (0, 1, 2, 3) and with_.units("rew_inf") == 2
    for role in ("actor", "critic", "reference"):
        assert with_.home(role) == without.home(role)
    assert with_.workers[:4] == without.workers


def test_a_role_that_no_call_needs_has_no_workers(load):
    assert cpu_roles(load("reward.workers=2")) == ("reward", "reward")
    experiment = load("reward.workers=2")
    section = dataclasses.replace(experiment.reward, workers=0)
    assert cpu_roles(dataclasses.replace(experiment, reward=section)) == ()


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (
            ["reward.workers=1", "reward.mesh=0"],
            "reward.mesh = 0 places reward on model workers, but reward.workers = 1 gives it workers of its own. Leave "
            "out reward.mesh or reward.workers.",
        ),
        (
            ["reward.workers=5", "cluster.nodes=2"],
            "data.batch_size gives 8 samples per step, but cluster.nodes · reward.workers = 2 · 5 = 10 parts are to "
            "share them, and every part needs one. Raise data.batch_size, or lower reward.workers.",
        ),
        (["reward.workers=-1"], "reward.workers = -1 must be at least 0. Set reward.workers."),
        (
            ["reward.workers=3", "cluster.ports=20000-20005"],
            "cluster.ports = 20000-20005 has 6 ports, but a machine needs 7: one for each of its workers, for the "
            "master, and for the store where they meet. Widen cluster.ports.",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(load, overrides, problem):
    with pytest.raises(ConfigurationError) as raised:
        load(*overrides)
    assert problem in raised.value.problems


def test_a_plan_for_people_shows_them(load, tmp_path, capsys):
    load()
    words = [
        "plan",
        str(tmp_path / "ppo.yaml"),
        "--cluster",
        "local",
        "--cluster.device",
        "cpu",
        "--reward.workers",
        "1",
    ]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "ppo on 1 node of 2 workers and 1 CPU worker (local)" in said
    assert [line.split() for line in said.splitlines() if line.startswith("2 ")] == [
        ["2", "0", "2", "-", "rew_inf", "reward"]
    ]
