"""Where `allocation` places models and calls: ReaL's table, and for any cluster something that passes every check."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.experiments import KNOWN, QWEN2_TINY, load_config, ppo_values, values_of, write_config, write_inputs

from hpcrl.cli.main import main
from hpcrl.config.load import change_settings
from hpcrl.errors import ConfigurationError, ExitCode
from hpcrl.families.reader import config_from_json
from hpcrl.placement.allocate import afresh, allocate, settle
from hpcrl.placement.candidate import settings_with
from hpcrl.placement.check import ALL_CHECKS, placement_problems
from hpcrl.placement.meshes import Grid
from hpcrl.placement.plan import make_plan, plan_for

WHOLE = """
from hpcrl.backends.backend import Backend

WHOLE = Backend(train=True, generate=True, axes=("dp", "tp", "pp"), dtypes=("fp32",), engine="nowhere:Engine")
ROWS = Backend(train=True, generate=True, axes=("dp",), dtypes=("fp32",), engine="nowhere:Engine")
"""
LLAMA = {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32}
SEVEN = config_from_json(QWEN2_TINY | LLAMA | {"num_key_value_heads": 8, "vocab_size": 32000}, "config.json")
SEVENTY = replace(SEVEN, hidden_size=8192, heads=64, blocks=80, intermediate_size=28672)
ROLES = ("actor", "critic", "reference")


@pytest.fixture
def load(tmp_path, monkeypatch):
    write_inputs(tmp_path)
    (tmp_path / "whole.py").write_text(WHOLE)
    monkeypatch.chdir(tmp_path)
    path = write_config(tmp_path / "ppo.yaml", ppo_values() | {"data": ppo_values()["data"] | {"batch_size": 64}})
    backend = [f"{role}.backend=whole.py:WHOLE" for role in ROLES]
    return lambda nodes, slots, *overrides: load_config(
        path, [*backend, f"cluster.nodes={nodes}", f"cluster.workers_per_node={slots}", *overrides], ALL_CHECKS
    )


def placed(experiment, models):
    """Model → layout and workers, of homes and of calls that are made elsewhere."""
    plan = make_plan(experiment, allocate(experiment, models), experiment.cluster.nodes)
    places = {str(it.model): (it.layout, (it.ranks[0], it.ranks[-1])) for it in plan.replicas if it.role in ROLES}
    return places, {call: str(plan.at[call]) for call in ("actor_gen", "critic_inf")}


@pytest.mark.parametrize(
    ("nodes", "model", "actor", "critic", "generation", "reference"),
    [
        (1, SEVEN, ("d2t2p1", (0, 3)), ("d2t2p1", (4, 7)), "d4t1p2", "d2t4p1"),
        (1, SEVENTY, ("d1t4p1", (0, 3)), ("d1t4p1", (4, 7)), "d4t1p2", "d2t4p1"),
        (2, SEVEN, ("d2t4p1", (0, 7)), ("d2t4p1", (8, 15)), "d8t1p2", "d2t4p2"),
        (4, SEVENTY, ("d2t4p2", (0, 15)), ("d2t4p2", (16, 31)), "d8t1p4", "d2t4p4"),
    ],
)
def test_the_heuristic_is_reals_where_nodes_have_eight(load, nodes, model, actor, critic, generation, reference):
    everybody = (0, 8 * nodes - 1)
    places, at = placed(load(nodes, 8, "allocation=heuristic"), dict.fromkeys(ROLES, model))
    assert places == {
        "actor": actor,
        "actor@1": (generation, everybody),
        "critic": critic,
        "critic@1": (reference, everybody),
        "reference": (reference, everybody),
    }
    assert at == {"actor_gen": "actor@1", "critic_inf": "critic@1"}


def test_nodes_go_to_the_roles_that_are_trained_by_their_parameters(load):
    places, _ = placed(load(4, 8, "allocation=heuristic"), {"actor": SEVENTY, "critic": SEVEN, "reference": SEVENTY})
    assert places["actor"] == ("d2t4p3", (0, 23))
    assert places["critic"] == ("d2t4p1", (24, 31))


@pytest.mark.parametrize(
    ("grid", "weights", "sizes"),
    [
        (Grid(0, 4, 8), [1, 1], [16, 16]),
        (Grid(0, 2, 8), [9, 1], [8, 8]),
        (Grid(0, 5, 4), [1, 1, 1], [8, 8, 4]),
        (Grid(0, 1, 8), [9, 1], [4, 4]),
        (Grid(0, 1, 3), [1, 1], [2, 1]),
        (Grid(0, 1, 1), [1, 1], [1, 1]),
        (Grid(0, 4, 8), [7.62, 7.07], [16, 16]),
        (Grid(0, 3, 8), [7.62, 7.07], [16, 8]),
        (Grid(0, 3, 8), [1, 99], [8, 16]),
        (Grid(0, 3, 8), [0.1, 0.1, 9], [8, 8, 8]),
        (Grid(8, 2, 4), [1, 1, 1], [8, 8, 8]),
    ],
)
def test_a_cluster_is_divided_into_neighbours(grid, weights, sizes):
    parts = grid.divided(weights)
    assert [part.size for part in parts] == sizes
    if sum(sizes) == grid.size:
        assert tuple(rank for part in parts for rank in part.ranks) == grid.ranks


@pytest.mark.parametrize(
    ("allocation", "layout"),
    [("pipe_data", "d8t1p2"), ("pipe_model", "d1t8p2"), ("d4t2p2", "d4t2p2"), ("t2p1d8", "d8t2p1")],
)
def test_one_layout_for_all(load, allocation, layout):
    places, at = placed(load(2, 8, f"allocation={allocation}"), dict.fromkeys(ROLES, SEVEN))
    assert places == dict.fromkeys(ROLES, (layout, (0, 15)))
    assert at == {"actor_gen": "actor", "critic_inf": "critic"}


def test_what_a_model_or_a_backend_cannot_be_cut_into_is_taken_as_near_as_it_can_be_had(load):
    models = dict.fromkeys(ROLES, replace(SEVEN, kv_heads=2, blocks=2))
    assert placed(load(1, 6, "allocation=pipe_model"), models)[0]["actor"] == ("d3t2p1", (0, 5))
    rows = load(2, 8, "allocation=pipe_model", *(f"{role}.backend=whole.py:ROWS" for role in ROLES))
    assert placed(rows, models)[0]["actor"] == ("d16t1p1", (0, 15))


def test_no_part_is_without_a_sample(load):
    few = load(1, 8, "allocation=heuristic", "data.batch_size=2", "ppo.minibatches=1", "reward.mesh=0")
    places, _ = placed(few, dict.fromkeys(ROLES, SEVEN))
    assert places["actor@1"] == ("d2t1p4", (0, 7))


def test_own_entries_win(load):
    own = ("actor.layout=d2t4", "calls={critic_inf: {mesh: 0}, actor_gen: {mesh: node1}}", "reference.mesh=node1")
    experiment = load(2, 4, "allocation=heuristic", *own)
    settled = settings_with(experiment, allocate(experiment, dict.fromkeys(ROLES, SEVEN)))
    assert (settled.actor.layout, settled.actor.mesh, settled.reference.layout) == ("d2t4", None, None)
    assert settled.calls == {"critic_inf": {"mesh": 0}, "actor_gen": {"mesh": "node1"}}
    assert (settled.critic.layout, settled.critic.mesh) == ("d2t2p1", "4-7")


def test_the_settings_keep_the_result(load):
    settled = settle(load(1, 4, "allocation=pipe_data"))
    assert (settled.allocation, settled.actor.layout) == ("manual", "d4t1p1")
    assert settle(settled) is settled


def test_a_run_that_is_resumed_elsewhere_is_placed_anew_if_it_is_told_to(load):
    before = settle(load(1, 4, "allocation=d4", "calls={actor_gen: {layout: d4}}"))
    words = ["cluster.nodes=2", "allocation=pipe_data"]
    after = settle(change_settings(before, afresh(before, words), ALL_CHECKS))
    assert (after.actor.layout, after.calls) == ("d4t1p2", {})
    with pytest.raises(ConfigurationError, match="needs dp·tp·pp = 4·1·1 = 4 workers"):
        change_settings(before, afresh(before, ["cluster.nodes=2"]), ALL_CHECKS)


@pytest.mark.parametrize("algorithm", [name for name in KNOWN if "data" in values_of(name)])
def test_every_algorithms_models_are_placed(folder, monkeypatch, algorithm):
    """Whatever it trains: nothing, one role, several, and a role that another is blended into."""
    monkeypatch.chdir(folder)
    values = values_of(algorithm) | {"cluster": {"nodes": 2, "workers_per_node": 4}, "allocation": "heuristic"}
    values["data"] = values["data"] | {"batch_size": 64}
    models = [name for name in values if isinstance(values[name], dict) and "path" in values[name]]
    for role in models:
        values[role] |= {"backend": "whole.py:WHOLE"}
    if algorithm == "dpo":
        values["dpo"] = {"reference_ema": {"decay": 0.9}}
    if algorithm in ("ppo", "grpo"):
        values[algorithm] = {"kl": {"mode": "reward", "reference_ema": {"decay": 0.9}}}
    settled = settle(load_config(write_config(folder / "a.yaml", values), (), ALL_CHECKS))
    plan = plan_for(settled, 2)
    assert {rank for replica in plan.replicas if replica.role in models for rank in replica.ranks} == set(range(8))
    assert all(getattr(settled, replica.role).layout for replica in plan.replicas if replica.role in models)
    if algorithm == "dpo":
        assert plan.home("reference").ranks == plan.home("actor").ranks


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("any")
    write_inputs(folder)
    (folder / "whole.py").write_text(WHOLE)
    return folder


@given(
    nodes=st.integers(1, 5),
    slots=st.integers(1, 9),
    heads=st.sampled_from(((4, 2), (12, 3), (7, 7), (8, 1))),
    blocks=st.integers(1, 7),
    mode=st.sampled_from(("pipe_data", "pipe_model", "heuristic")),
    cut=st.booleans(),
    batch=st.sampled_from((64, 45, 9)),
)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_allocation_passes_the_checks_and_uses_all_workers(
    folder: Path,
    nodes: int,
    slots: int,
    heads: tuple[int, int],
    blocks: int,
    mode: str,
    cut: bool,
    batch: int,
) -> None:
    shape = {
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "head_dim": 4,
        "num_hidden_layers": blocks,
    }
    (folder / "model" / "config.json").write_text(json.dumps(QWEN2_TINY | shape))
    values = ppo_values() | {"cluster": {"nodes": nodes, "workers_per_node": slots}, "allocation": mode}
    values["data"] = {"train": str(folder / "rows.jsonl"), "batch_size": batch, "max_prompt_tokens": 16}
    values["ppo"] = {"kl": {"mode": "reward"}, "minibatches": 1}
    for role in ROLES:
        values[role] = {"path": str(folder / "model"), "backend": f"{folder / 'whole.py'}:{'WHOLE' if cut else 'ROWS'}"}
    experiment = load_config(write_config(folder / "c.yaml", values))
    models = dict.fromkeys(ROLES, config_from_json(QWEN2_TINY | shape, "config.json"))
    candidate = allocate(experiment, models)
    settled = settings_with(experiment, candidate)
    plan = make_plan(experiment, candidate, nodes)
    assert plan_for(settled, nodes).replicas == plan.replicas
    assert {rank for replica in plan.replicas if replica.role in ROLES for rank in replica.ranks} == set(
        range(nodes * slots)
    )
    if cut or batch >= nodes * slots:
        assert [str(problem) for problem in placement_problems(settled) if problem.keys[0] != "data.batch_size"] == []
    if batch >= nodes * slots:
        assert list(placement_problems(settled)) == []


def test_a_command_plans_the_result_and_says_what_it_is(load, capsys):
    load(1, 4)
    words = ["ppo.yaml", "--cluster.workers_per_node", "4", "--allocation", "d4", "--actor.mesh", "node0"]
    assert main(["plan", *words, "--json"]) == ExitCode.DONE
    out, told = capsys.readouterr()
    planned = json.loads(out)["plan"]["experiment"]
    assert (planned["allocation"], planned["critic"]["layout"], planned["actor"]["layout"]) == (
        "manual",
        "d4t1p1",
        None,
    )
    assert "note: allocation = d4 gives critic.layout = d4t1p1 (was null)" in told
    assert "actor" not in told
