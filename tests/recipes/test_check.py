"""What is wrong with a declaration, and with a condition on a statistic, before anything is made."""

from functools import partial
from pathlib import Path

import pytest
from support.experiments import load_config, ppo_values, write_config, write_inputs

from hpcrl.config.validate import unused_notices
from hpcrl.errors import ConfigurationError, ExitCode
from hpcrl.placement.check import ALL_CHECKS

DECLARATION = """
from dataclasses import replace
from hpcrl.dataflow.graph import MFC
from hpcrl.recipes.algorithm import RoleKind
from hpcrl.recipes.toy import ALGORITHM, CALLS
"""


@pytest.fixture
def load(tmp_path, monkeypatch):
    write_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    values = ppo_values()
    values["data"]["evaluate"] = "rows.jsonl"
    values["control"]["evaluate"] = {"steps": 1}
    path = write_config(tmp_path / "ppo.yaml", values)
    return lambda *overrides: load_config(path, overrides, ALL_CHECKS)


def refusal(load, *overrides) -> str:
    with pytest.raises(ConfigurationError) as raised:
        load(*overrides)
    assert raised.value.exit_code == ExitCode.CONFIGURATION
    (problem,) = raised.value.problems
    return problem


def test_a_condition_on_a_statistic_that_its_call_does_not_report_gets_the_nearest_and_the_list(load):
    said = refusal(load, "control.stop_when=actor_train/aprox_kl > 1")
    assert said == (
        "control.stop_when = 'actor_train/aprox_kl' is no statistic of actor_train, which reports loss, lr, grad_norm, "
        "skipped, approx_kl, ratio, clip_fraction, logprob_gap, kl, kl_coef, counted. Set control.stop_when, "
        "probably to actor_train/approx_kl."
    )
    assert "which reports none. Set control.stop_when." in refusal(load, "control.stop_when=ref_inf/loss < 1")


def test_a_condition_on_a_number_that_a_reward_function_returns_beside_its_score_is_refused(load):
    """A reward's call reports its mean and the share of full marks, whatever else the function returns."""
    for call in ("rew_inf", "eval_rew"):
        said = refusal(load, f"control.stop_when={call}/format > 0.5")
        assert (
            f"is no statistic of {call}, which reports reward, accuracy, dropped, not_scorable. Set control.stop_when"
            in said
        )
    components = "reward.components={style: {function: length, kwargs: {most: 9}}}"
    assert load("reward.function=null", "reward.kwargs={}", components, "control.stop_when=rew_inf/style > -1")
    assert load("control.stop_when=critic_train/router_max_share > 0.9")
    assert "is no statistic of ref_inf" in refusal(load, "control.stop_when=ref_inf/router_max_share > 0.9")
    assert load("control.stop_when=eval_rew/accuracy > 0.5") and load("control.stop_when=actor_train/kl_coef > 0.5")


def test_a_condition_may_name_the_chances_that_an_evaluation_reports_and_no_others(load):
    drawn = [f"generation.evaluation.{it}" for it in ("temperature=1", "samples_per_prompt=4", "pass_at=[1,4]")]
    assert load(*drawn, "control.stop_when=eval_rew/pass_at_4 > 0.5")
    said = refusal(load, *drawn, "control.stop_when=eval_rew/pass_at_2 > 0.5")
    assert "reward, accuracy, dropped, not_scorable, pass_at_1, pass_at_4" in said
    assert "is no statistic of rew_inf" in refusal(load, *drawn, "control.stop_when=rew_inf/pass_at_4 > 0.5")


def test_a_condition_on_a_call_that_is_not_made_gets_the_calls_and_the_nearest(load):
    said = refusal(load, "control.stop_when=eval_reward/accuracy > 0.5")
    assert "a metric of a call 'eval_reward', but the calls are actor_gen" in said
    assert said.endswith("Set control.stop_when, probably to eval_rew/accuracy.")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ("recipe=lambda e: (*CALLS, MFC('nap', 'actor', 'inference', ('q',), ('w',)))", "nap needs key 'q'"),
        ("recipe=lambda e: (*CALLS, MFC('nap', 'bed', 'inference', ('x',), ('w',)))", "calls role 'bed', but"),
        ("roles=dict(ALGORITHM.roles, actor=RoleKind('m:A', 'vocabulary'))", "section actor that is a ModelConfig"),
        ("roles=dict(ALGORITHM.roles, actor=RoleKind('m:A', host='m:H'))", "actor that is a CPUPlacementConfig"),
        (
            "recipe=lambda e: (*CALLS, MFC('follow', 'reward', 'blend', (), blends='actor'))",
            "its call follow blends actor into reward, but role 'reward' is declared without `decay`, which says how",
        ),
        ("made={}", "its call actor_gen makes key 'y', but `made` does not say of which form its rows are"),
        ("metrics={'nap': ('loss',)}", "it has metrics of a call 'nap', but the calls are actor_gen"),
    ],
)  # fmt: skip
def test_a_declaration_that_does_not_fit_itself_is_refused_by_name(tmp_path, monkeypatch, changes, words):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(f"{DECLARATION}\nMINE = replace(ALGORITHM, {changes})\n")
    path = write_config(Path("toy.yaml"), {"algorithm": "mine.py:MINE", "control": {"steps": 3}})
    with pytest.raises(ConfigurationError) as raised:
        load_config(path, (), ALL_CHECKS)
    problems = raised.value.problems
    assert any(words in problem for problem in problems), problems
    assert all(problem.startswith(f"algorithm = {tmp_path / 'mine.py'}:MINE: ") for problem in problems)
    assert all(problem.endswith("Fix the file or set algorithm.") for problem in problems)


def test_evaluations_that_nothing_can_make_are_refused(tmp_path):
    """Rows of the algorithm's own may have none to evaluate on, and its graph may have no such call."""
    text = (
        "TRAINING = tuple(call for call in CALLS if call.dataset == 'train')\n"
        "ALGORITHM_calls = replace(ALGORITHM, recipe=lambda e: TRAINING, metrics={})\n"
        "ALGORITHM_rows = replace(ALGORITHM, rows=replace(ALGORITHM.rows, evaluates=lambda e: False))\n"
    )
    (tmp_path / "mine.py").write_text(DECLARATION + text)
    for name, said in (("calls", "has no call that evaluates"), ("rows", "has no rows to evaluate on")):
        path = write_config(tmp_path / "mine.yaml", {"algorithm": f"{tmp_path}/mine.py:ALGORITHM_{name}"})
        load = partial(load_config, path, checks=ALL_CHECKS)
        assert load(["control.steps=1"])
        with pytest.raises(ConfigurationError, match=said):
            load(["control.steps=1", "control.evaluate.steps=1"])


def test_rows_that_are_never_evaluated_on_are_said(load):
    assert not list(unused_notices(load()))
    (said,) = unused_notices(load("control.evaluate.steps=null"))
    assert said == "data.evaluate is set, but control.evaluate is not, so nothing is evaluated."


def test_that_a_mixture_has_no_last_batch_to_leave_out_is_said(load):
    assert not list(unused_notices(load("data.drop_last=true")))
    (said,) = unused_notices(load("data.drop_last=true", "data.train=null", "data.sources={a: {path: rows.jsonl}}"))
    assert said.startswith("data.drop_last has no effect with data.sources")


def test_a_role_has_a_host_of_its_own_where_its_section_may_ask_for_workers(tmp_path, monkeypatch):
    write_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(
        "from dataclasses import replace\n"
        "from hpcrl.recipes.ppo import ALGORITHM\n"
        "from hpcrl.recipes.algorithm import RoleKind\n"
        "REWARD = RoleKind(ALGORITHM.roles['reward'].maker)\n"
        "WITHOUT = replace(ALGORITHM, roles={**ALGORITHM.roles, 'reward': REWARD})\n"
    )
    path = write_config(Path("ppo.yaml"), {**ppo_values(), "algorithm": "mine.py:WITHOUT"})
    assert load_config(path, (), ALL_CHECKS)
    with pytest.raises(ConfigurationError, match="= 1, but role 'reward' is declared without a host"):
        load_config(path, ["reward.workers=1"], ALL_CHECKS)


LOOP = """
from dataclasses import replace
from hpcrl.recipes import grpo

def loop(run, e):
    for step in run.steps():
        step.log(n=1)

GRPO = replace(grpo.ALGORITHM, script=loop)
"""


def test_what_a_graph_decides_is_refused_where_a_script_does(tmp_path, monkeypatch):
    """And taken where the setting is left out, as the advice says; what a script logs may end its run."""
    write_inputs(tmp_path)
    (tmp_path / "loop.py").write_text(LOOP)
    monkeypatch.chdir(tmp_path)
    values = ppo_values() | {"algorithm": "loop.py:GRPO", "grpo": {"minibatches": 1}}
    del values["critic"], values["ppo"]
    values["data"]["samples_per_prompt"] = 2
    path = write_config(tmp_path / "c.yaml", values)

    def load(*overrides):
        return load_config(path, overrides, ALL_CHECKS)

    said = refusal(load, "grpo.filter_groups.metric=reward")
    assert "loop.py:GRPO is a script: it chooses its samples itself. Leave grpo.filter_groups.metric out" in said
    assert load("lag=1", "grpo.old_logprobs=recomputed", "control.stop_when=script/n > 3")
