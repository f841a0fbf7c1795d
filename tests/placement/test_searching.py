"""The search over places: what it may choose, that its answer is the best there is, and that it is what is run."""

import json
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from support.experiments import QWEN2_TINY, load_config, ppo_values, write_config, write_inputs

from hpcrl.ops.search import is_compiled
from hpcrl.ops.search_chain import Scorer
from hpcrl.ops.search_problem import Found, Stage
from hpcrl.placement import searching
from hpcrl.placement.allocate import placed_models
from hpcrl.placement.candidate import candidate_of, settings_with
from hpcrl.placement.check import placement_problems
from hpcrl.placement.meshes import Grid, grids_of, near
from hpcrl.placement.options import choices_of
from hpcrl.placement.plan import make_plan, plan_for
from hpcrl.placement.search_told import plan_told, told
from hpcrl.placement.searching import OWN, search

WORK_S = {"generate": 40, "inference": 10, "train_step": 60}
SHAPE = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4, "num_hidden_layers": 4}
GIB = 2**30


class Simple:
    """Costs that one can reckon by hand: work that layouts share with losses, and models of 16 GiB."""

    def call_nanoseconds(self, call, place, tokens=0):
        dp, tp, pp = place.layout.dp, place.layout.tp, place.layout.pp
        shared = dp * tp**0.8 * pp ** (0.3 if call.kind == "generate" else 0.6)
        return int(WORK_S.get(call.kind, 0) / shared * (1 + 2000 / max(tokens, 2000)) * 1e9)

    def stages(self, call, place, tokens=0):
        if call.role == "reward":
            return (Stage(0, 0),)
        lasting = 16 * GIB * (7 if call.changes else 1) // (place.layout.tp * place.layout.pp)
        taken = 20 * GIB if call.kind == "generate" else tokens * 2**18 // place.layout.tp
        return (Stage(lasting, taken),) * place.layout.pp

    def moves(self, role, homes, places):
        return np.array([[0 if home == place else 10**8 for place in places] for home in homes], np.int64)

    def release_nanoseconds(self, role, place):
        return 5 * 10**8

    def waiting_nanoseconds(self, role, work, place):
        return 0


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    folder = tmp_path_factory.mktemp("search")
    write_inputs(folder)
    (folder / "model" / "config.json").write_text(json.dumps(QWEN2_TINY | SHAPE))

    def loaded(nodes, slots, *overrides):
        values = ppo_values() | {"cluster": {"nodes": nodes, "workers_per_node": slots}}
        values["data"] = {"train": str(folder / "rows.jsonl"), "batch_size": 64, "max_prompt_tokens": 16}
        values |= {role: {"path": str(folder / "model")} for role in ("actor", "critic", "reference")}
        return load_config(write_config(folder / "ppo.yaml", values), overrides)

    return loaded


def searched(experiment, gib=80, **options):
    return search(experiment, placed_models(experiment), Simple(), gib * GIB, **options)


def test_grids_are_runs_of_nodes_and_aligned_parts_of_them():
    assert {(grid.first, grid.last) for grid in grids_of(2, 4)} == {
        *((first, first + size) for size in (1, 2) for first in range(0, 8, size)),
        *((0, 4), (4, 8), (0, 8)),
    }
    assert len(grids_of(1, 6)) == 6 + 3 + 1 + 1
    assert len(grids_of(16, 8)) == 16 * 17 // 2 + 16 * (8 + 4 + 2)
    assert len({(grid.first, grid.last) for grid in grids_of(64, 8) if grid.slots == 8}) == 16 * 17 // 2


def test_neighbours_are_mutual_reachable_and_no_grid_is_its_own():
    grids = grids_of(4, 8)
    next_to = near(grids)
    assert all(grids[i] != grid for grid in grids for i in next_to[grid])
    reached, left = {grids[0]}, [grids[0]]
    while left:
        found = [grids[i] for i in next_to[left.pop()] if grids[i] not in reached]
        reached |= set(found)
        left += found
    assert reached == set(grids)
    assert Grid(0, 2, 8) in [grids[i] for i in next_to[Grid(0, 1, 8)]]


def test_of_few_plans_the_answer_is_the_best_that_there_is(load):
    experiment = load(1, 2, "reference.layout=d2", "calls={critic_inf: {layout: d2}}")
    found = searched(experiment, gib=140)
    assert found.is_optimal
    score = Scorer(found.choices.problem)
    every = min(score(plan) for plan in product(*(range(len(ways)) for ways in found.choices.ways)))
    assert found.best[0].score == every
    assert [it.score for it in found.best] == sorted({it.score for it in found.best})


def test_the_best_plan_is_at_least_as_good_as_what_chains_began_with_and_can_be_run(load):
    experiment = load(2, 4)
    found = searched(experiment, proposals=4_000)
    assert set(found.starts) >= {OWN, "heuristic", "pipe_model", "d8"}
    assert found.best[0].score <= min(it.score for it in found.starts.values())
    assert found.best[0].score.excess == 0
    assert len({it.score for it in found.best}) == len(found.best) == 5, "plans that only name other workers are one"
    for it in found.best:
        candidate = found.candidate(it)
        settled = replace(settings_with(experiment, candidate), allocation="manual")
        assert list(placement_problems(settled)) == []
        assert plan_for(settled).replicas == make_plan(settled, candidate, 2).replicas
        assert found.choices.plan_of(candidate_of(settled, 2)) == it.plan


@pytest.mark.skipif(not is_compiled(), reason="this installation has no compiled search")
def test_a_seed_has_one_answer_with_any_number_of_threads(load):
    one, other = (searched(load(2, 4), proposals=4_000, threads=threads) for threads in (1, 3))
    assert one.best == other.best


def test_what_the_settings_place_stays_there(load):
    words = ("actor.layout=d2t2", "actor.mesh=0-3", "calls={actor_gen: {layout: d4, mesh: 4-7}}", "reference.mesh=0")
    experiment = load(2, 4, *words)
    found = searched(experiment, proposals=5_000)
    for it in found.best:
        settled = settings_with(experiment, found.candidate(it))
        assert (settled.actor.layout, settled.actor.mesh, settled.reference.mesh) == ("d2t2", "0-3", "0")
        assert settled.calls["actor_gen"] == {"layout": "d4", "mesh": "4-7"}
        assert settled.actor.micro_batch_tokens == experiment.actor.micro_batch_tokens


def test_a_frozen_model_waits_on_its_host_where_another_call_needs_the_room(load):
    """Trained roles have 28 GiB of each worker, the reference 16, a generation 20."""
    words = ("actor.layout=t4", "critic.layout=t4", "reference.layout=d4")
    experiment = load(1, 4, *words, "calls={actor_gen: {layout: t4}, critic_inf: {layout: t4}}")
    roomy, tight = (searched(experiment, gib=gib) for gib in (400, 80))
    assert roomy.candidate(roomy.best[0]).homes["reference"].between is None
    best = tight.best[0]
    assert best.score.excess == 0 and tight.candidate(best).homes["reference"].between == "host"
    assert settings_with(experiment, tight.candidate(best)).reference.between.parameters == "host"


def test_where_nothing_fits_the_answer_lacks_least(load):
    found = searched(load(1, 2), gib=20)
    assert found.best[0].score.excess == min(it.score.excess for it in (*found.best, *found.starts.values())) > 0


def test_without_a_compiler_a_tenth_of_the_proposals_is_made(load, monkeypatch):
    made = []
    monkeypatch.setattr(searching, "is_compiled", lambda: False)
    monkeypatch.setattr(searching, "search_chain", lambda problem, chain, keep: made.append(chain.proposals) or [])
    searched(load(2, 4))
    assert sum(made) == searching.PROPOSALS // 10


def test_it_is_told_what_a_plan_costs_why_it_is_faster_and_what_other_lengths_change(load):
    experiment = load(2, 4)
    found = searched(experiment, gib=1000, proposals=4_000)
    answer = told(found, experiment, "by hand", ("a note",), lambda factor: Simple())
    assert [it.name for it in answer.plans] == [str(number) for number in range(1, len(found.best) + 1)]
    assert answer.against == OWN and answer.notices == ("a note",)
    best = answer.plans[0]
    assert best.step_s == pytest.approx(found.best[0].score.nanoseconds / 4 / 1e9)
    assert 0 <= best.idle < 1 and {it.call for it in best.calls} >= {"actor_gen", "actor_train", "critic_inf"}
    assert sum(reason.share for reason in answer.reasons) <= 1 + 1e-9
    for it in answer.sensitivities:
        assert it.best_s == pytest.approx(best.step_s) and it.fastest == "1"


@pytest.mark.parametrize(("lag", "measured"), [(0, (2, 0, 4, 5)), (3, (5, 5, 17, 21))])
def test_steps_are_open_as_the_master_opens_them(load, lag, measured):
    problem = choices_of(load(1, 2, f"lag={lag}"), {}, Simple(), 80 * GIB).problem
    assert (problem.ahead, problem.first, problem.last, problem.steps) == measured


@pytest.mark.parametrize("lag", [1, 3])
def test_a_step_of_a_run_that_lags_lasts_as_long_as_its_workers_work(load, lag):
    """Both workers make every call, so nothing can be hidden behind anything."""
    experiment = load(1, 2, f"lag={lag}")
    given = candidate_of(experiment, 1)
    choices = choices_of(experiment, {}, Simple(), 80 * GIB, [given])
    plan = choices.plan_of(given)
    work_s = sum(ways[i].nanoseconds for ways, i in zip(choices.ways, plan, strict=True)) / 1e9
    answer = plan_told(choices, Found(Scorer(choices.problem)(plan), plan), "the settings")
    assert answer.step_s == pytest.approx(work_s) and answer.idle == pytest.approx(0)


def test_workers_that_no_call_uses_are_idle(load):
    experiment = load(1, 4, *(f"{role}.mesh=0-1" for role in ("actor", "critic", "reference", "reward")))
    given = candidate_of(experiment, 1)
    choices = choices_of(experiment, {}, Simple(), 80 * GIB, [given])
    plan = choices.plan_of(given)
    assert plan_told(choices, Found(Scorer(choices.problem)(plan), plan), "1").idle >= 0.5


def test_choices_of_given_candidates_alone_are_what_these_say(load):
    experiment = load(1, 2)
    given = candidate_of(replace(experiment, calls={"actor_gen": {"layout": "d1", "mesh": "1"}}), 1)
    choices = choices_of(experiment, {}, Simple(), 80 * GIB, [given])
    assert max(len(ways) for call, ways in zip(choices.calls, choices.ways, strict=True) if call.changes) == 1
    assert choices.candidate(choices.plan_of(given)).at("actor_gen", "actor") == given.at("actor_gen", "actor")
