"""The calls that a generation becomes which draws a segment at a time."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import ppo_script
from support.experiments import load_config, values_of, write_config, write_inputs

from hpcrl.config.control import Frequency
from hpcrl.config.filter_groups import FilterGroupsConfig
from hpcrl.dataflow.graph import producers
from hpcrl.dataflow.segment import Segment
from hpcrl.placement.plan import Plan, plan_for
from hpcrl.recipes.algorithm import algorithm_of
from hpcrl.recipes.check import algorithm_problems


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def cut(algorithm: str, segment: int | None, most: int = 10) -> Any:
    values = values_of(algorithm)
    values["data"] |= {"evaluate": "rows.jsonl"}
    made: Any = load_config(write_config(Path("config.yaml"), values))
    generation = replace(made.generation, max_new_tokens=most, segment=segment)
    return replace(made, generation=generation, control=replace(made.control, evaluate=Frequency(steps=2)))


def segments(plan: Plan, of: str) -> list[Any]:
    return [call for call in plan.calls if call.segment is not None and call.segment.of == of]


def test_each_segment_reads_what_all_before_it_have_drawn_and_the_last_alone_is_read(folder: Path) -> None:
    experiment = cut("ppo", 4)
    plan, recipe = plan_for(experiment), algorithm_of("ppo").graph(experiment)
    first, second, last = segments(plan, "actor_gen")
    assert [call.name for call in (first, second, last)] == ["actor_gen_s01", "actor_gen_s02", "actor_gen"]
    assert (first.inputs, second.inputs) == (
        ("prompts",),
        ("prompts", "responses_s01", "logprobs_s01", "finished_s01"),
    )
    later = ("responses_s01", "logprobs_s01", "responses_s02", "logprobs_s02", "finished_s02")
    assert last.inputs == ("prompts", *later) and last.outputs == recipe.calls["actor_gen"].outputs
    graph = plan.graph()
    for call in recipe:
        expected = producers(recipe, call)
        found = {
            maker: keys for maker, keys in producers(graph, call).items() if maker not in (first.name, second.name)
        }
        assert call in ("actor_gen", "eval_gen") or producers(graph, call) == expected == found
    assert {plan.at[call.name] for call in (first, second, last)} == {plan.at["actor_gen"]}


def test_a_role_sees_keys_as_in_training_wherever_it_draws(folder: Path) -> None:
    remax = plan_for(cut("remax", 5))
    first, last = segments(remax, "base_gen")
    assert first.greedy and first.outputs == ("base_responses_s01", "base_finished_s01")
    assert first.output_remap == {"responses": "base_responses_s01", "finished": "base_finished_s01"}
    assert last.input_remap == {"base_responses_s01": "responses_s01", "base_finished_s01": "finished_s01"}
    held_out = segments(remax, "eval_gen")
    assert held_out[0].outputs == ("eval_responses_s01", "eval_logprobs_s01", "eval_finished_s01")
    assert held_out[1].input_remap["eval_logprobs_s01"] == "logprobs_s01"
    forms = algorithm_of("remax").forms(cut("remax", 5))
    assert all(forms[key] == forms[key.removesuffix("_s01")] for key in (*first.outputs, *held_out[0].outputs))


def test_what_fits_into_one_segment_is_drawn_at_once(folder: Path) -> None:
    whole = plan_for(cut("grpo", None))
    assert plan_for(cut("grpo", 10)).calls == plan_for(cut("grpo", 11)).calls == whole.calls
    assert len(segments(plan_for(cut("grpo", 9)), "actor_gen")) == 2


def test_a_scripts_second_call_has_segments_of_its_own_name() -> None:
    first, last = Segment("actor_gen", 1, False), Segment("actor_gen", 2, True)
    assert [first.whole(name) for name in ("actor_gen_s01", "actor_gen_s01_2")] == ["actor_gen", "actor_gen_2"]
    assert [last.whole(name) for name in ("actor_gen", "actor_gen_2")] == ["actor_gen", "actor_gen_2"]


def test_after_so_many_segments_the_actor_is_a_step_newer_up_to_the_newest(folder: Path) -> None:
    lags = {}
    for refresh in (None, 1, 2):
        made = replace(cut("ppo", 2, 12), lag=2)
        plan = plan_for(replace(made, generation=replace(made.generation, refresh=refresh)))
        lags[refresh] = [call.lag for call in segments(plan, "actor_gen")]
        assert {call.lag for call in segments(plan, "eval_gen")} == {0} and plan.graph()
    assert lags == {None: [2] * 6, 1: [2, 1, 0, 0, 0, 0], 2: [2, 2, 1, 1, 0, 0]}


def test_newer_actors_are_refused_where_there_is_none_or_who_reads_whole_responses_decides(folder: Path) -> None:
    def refreshed(algorithm: str = "ppo", segment: int | None = 5, lag: int = 1) -> Any:
        made = replace(cut(algorithm, segment), lag=lag)
        return replace(made, generation=replace(made.generation, refresh=2))

    def told(experiment: Any) -> str:
        (problem,) = algorithm_problems(experiment)
        return str(problem)

    asked = "generation.refresh = 2 has responses drawn on by newer actors, but "
    advice = "Set lag and generation.segment, or set generation.refresh to null."
    assert list(algorithm_problems(refreshed())) == []
    assert told(refreshed(lag=0)) == f"{asked}lag = 0 and generation.segment = 5: none is newer. {advice}"
    found = f"{asked}lag = 1 and generation.segment = null: each is drawn at once. {advice}"
    assert told(refreshed(segment=None)) == found
    chooses = refreshed("grpo")
    chooses = replace(chooses, grpo=replace(chooses.grpo, filter_groups=FilterGroupsConfig(metric="reward")))
    found = f"{asked}steps choose their rows by whole ones. Set generation.refresh to null."
    assert found in map(str, algorithm_problems(chooses))
    scripted = replace(refreshed(), algorithm=f"{Path(ppo_script.__file__)}:BEHIND")
    assert told(scripted) == f"{asked}a step that a script prepares reads one actor. Set generation.refresh to null."


def test_too_many_segments_are_refused_and_so_are_those_of_a_judge(folder: Path) -> None:
    assert list(algorithm_problems(cut("grpo", 4, 256))) == []
    (problem,) = algorithm_problems(cut("grpo", 4, 257))
    assert str(problem) == (
        "generation.segment = 4 cuts generation.max_new_tokens = 257 into 65 segments; 64 are the most. "
        "Set generation.segment to 5 or more, or to null."
    )
    assert list(algorithm_problems(cut("grpo", 0))) == []  # it is refused where it is read
    asked = cut("grpo", None)
    component = replace(asked.reward, function=None, components={"judged": {"role": "judge"}})
    judge = replace(asked.judge, path="model", generation=replace(asked.judge.generation, segment=8))
    judged = replace(asked, reward=component, judge=judge)
    assert not segments(plan_for(judged), "judge_gen")
    (problem,) = algorithm_problems(judged)
    assert str(problem) == (
        "judge.generation.segment = 8, but a judge's answers are drawn at once. Set judge.generation.segment to null."
    )
