"""The best plans of a search come in the order of their simulated steps; those that do not fit stay behind."""

from dataclasses import replace

import pytest
from support.experiments import load_config, ppo_values, write_config, write_inputs

from hpcrl.placement.settling import Found, search_for
from hpcrl.simulation.ordering import in_simulated_order, simulated_step_s, simulated_steps
from hpcrl.simulation.told import step_seconds


def found_with(tmp_path, *overrides: str) -> Found:
    write_inputs(tmp_path)
    values = ppo_values() | {"cluster": {"nodes": 1, "workers_per_node": 4, "device": "cpu"}}
    values["data"] = {"train": str(tmp_path / "rows.jsonl"), "batch_size": 16, "max_prompt_tokens": 16}
    values |= {role: {"path": str(tmp_path / "model")} for role in ("actor", "critic", "reference")}
    values["search"] = {"proposals": 3000}
    return search_for(load_config(write_config(tmp_path / "ppo.yaml", values), overrides), None)


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> Found:
    return found_with(tmp_path_factory.mktemp("found"))


@pytest.mark.parametrize("lag", [1, 2, 3, 5])
def test_where_all_workers_make_all_calls_a_step_lasts_as_long_as_these_however_far_they_are_behind(tmp_path, lag):
    behind = found_with(tmp_path, f"lag={lag}", "search.proposals=1")
    choices, own = behind.searched.choices, behind.searched.own
    work_s = sum(ways[i].nanoseconds for ways, i in zip(choices.ways, own.plan, strict=True)) / 1e9
    assert simulated_step_s(behind, own) == pytest.approx(work_s, rel=0.02)
    assert own.score.nanoseconds / choices.problem.measured / 1e9 == pytest.approx(work_s)


def test_plans_that_fit_come_by_their_simulated_steps(found):
    turned = replace(found, searched=replace(found.searched, best=found.searched.best[::-1]))
    ordered = in_simulated_order(turned).searched
    assert sorted(ordered.best) == sorted(found.searched.best) and len(ordered.best) > 1
    assert ordered.simulated_s[ordered.own.plan] >= max(ordered.simulated_s[it.plan] for it in ordered.best)
    lasting = [ordered.simulated_s[it.plan] for it in ordered.best]
    assert lasting == sorted(lasting)
    settled = in_simulated_order(turned).settled()
    own = simulated_steps(settled, replace(found.costs, experiment=settled, _made={}), found.lengths, 6)
    assert step_seconds(own) == lasting[0]


def test_plans_that_do_not_fit_are_not_simulated_and_stay_behind(found):
    first, *others = found.searched.best
    over = first._replace(score=first.score._replace(excess=1))
    ordered = in_simulated_order(replace(found, searched=replace(found.searched, best=(over, *others)))).searched
    assert ordered.best[-1] == over and over.plan not in ordered.simulated_s
