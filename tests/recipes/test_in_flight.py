"""The graph of steps whose responses are in flight, and what cannot be."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import ppo_script
from support.experiments import load_config, values_of, write_config, write_inputs

from hpcrl.config.environment import EnvironmentConfig
from hpcrl.config.filter_groups import FilterGroupsConfig
from hpcrl.data.choice import FirstToEnd
from hpcrl.placement.disk import estimate_disk
from hpcrl.placement.plan import plan_for
from hpcrl.recipes.algorithm import algorithm_of
from hpcrl.recipes.check import algorithm_problems
from hpcrl.recipes.policy import old_logprobs

POLICIES = ("ppo", "grpo", "rloo", "reinforce_plus_plus", "remax")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)


def flying(algorithm: str, **generation: Any) -> Any:
    made: Any = load_config(write_config(Path("config.yaml"), values_of(algorithm)))
    options = {"max_new_tokens": 10, "segment": 4, "in_flight": 10} | generation
    return replace(made, generation=replace(made.generation, **options))


def told(experiment: Any) -> list[str]:
    return [str(problem) for problem in algorithm_problems(experiment)]


@pytest.mark.parametrize("name", POLICIES)
def test_only_the_actors_responses_are_made_before_the_choice(name: str) -> None:
    experiment = flying(name)
    assert told(experiment) == []
    plan = plan_for(experiment)
    assert plan.in_rounds == "actor_gen"
    assert [call.name for call in plan.calls if call.precedes_choice] == ["actor_gen"]
    assert set(plan.call("actor_gen_3").outputs) == {"responses", "logprobs", "finished", "versions", "whole"}
    assert algorithm_of(experiment).choice(experiment) == FirstToEnd(
        key="whole", in_flight=10, max_age=None, setting="generation.in_flight"
    )
    assert old_logprobs(experiment) != "sampled", "a response may be by several actors"
    assert {"open", "staleness"} <= set(algorithm_of(experiment).reported(experiment)["actor_gen"])


@pytest.mark.parametrize("name", POLICIES)
def test_without_it_the_graph_is_as_it_was(name: str) -> None:
    experiment = flying(name, in_flight=None, segment=None)
    plan = plan_for(experiment)
    assert plan.in_rounds == "" and all(call.rows == "drawn" or call.name.endswith("_inf") for call in plan.calls)
    assert algorithm_of(experiment).choice(experiment) is None
    assert not any({"versions", "whole"} & set(call.outputs) for call in plan.calls)


def test_a_greedy_baseline_is_drawn_of_what_was_chosen() -> None:
    plan = plan_for(flying("remax"))
    segments = [call for call in plan.calls if call.name.startswith("base_gen")]
    assert len(segments) == 3 and all(call.rows == "chosen" for call in segments)


WRONG = {
    "generation.in_flight = 3 must be at least data.batch_size = 8, the prompts that a step trains on. Raise "
    "generation.in_flight, to a quarter more than that, say.": {"in_flight": 3},
    "generation.in_flight = 10 draws responses a segment at a time, but generation.segment is null. Set "
    "generation.segment to a few hundred tokens.": {"segment": None},
    "generation.max_age = 2 has an effect only where generation.in_flight is set, but it is null. Set "
    "generation.in_flight or leave generation.max_age out.": {"in_flight": None, "max_age": 2},
}


@pytest.mark.parametrize("message", WRONG)
def test_what_cannot_be_is_refused_with_the_knob(message: str) -> None:
    assert told(flying("grpo", **WRONG[message])) == [message]


def test_newer_actors_within_a_step_are_refused() -> None:
    experiment = replace(flying("grpo", refresh=1), lag=1)
    assert [text for text in told(experiment) if "steps choose their rows by whole ones" in text]


def test_there_is_one_rule_by_which_steps_choose() -> None:
    experiment = flying("grpo")
    section = replace(experiment.grpo, filter_groups=FilterGroupsConfig(metric="accuracy"))
    assert told(replace(experiment, grpo=section)) == [
        "generation.in_flight = 10 has steps train on the prompts that end first, and grpo.filter_groups.metric on "
        "those that differ. Set one of them to null."
    ]


def test_turns_of_an_environment_are_drawn_whole() -> None:
    Path("tool.py").write_text("def answer(messages, row):\n    return '', True, 0.0\n")
    experiment = replace(flying("ppo"), environment=EnvironmentConfig(function="tool.py:answer"))
    assert (
        "generation.in_flight = 10 draws responses a segment at a time, but with an environment a turn is drawn whole. "
        "Set generation.in_flight to null."
    ) in told(experiment)
    at_once = replace(experiment.generation, in_flight=None, segment=None)
    assert told(replace(experiment, generation=at_once)) == []


def test_a_script_chooses_itself() -> None:
    experiment = replace(flying("ppo"), algorithm=f"{ppo_script.__file__}:ALGORITHM")
    [text] = told(experiment)
    assert text.startswith("generation.in_flight is set, but ") and "it chooses its samples itself." in text


def test_epochs_are_not_counted() -> None:
    experiment = flying("ppo")
    experiment = replace(experiment, control=replace(experiment.control, epochs=2, steps=None))
    [text] = told(experiment)
    assert text.startswith("control.epochs = 2 must be null where generation.in_flight is set: ")


def test_the_disk_that_rounds_take_is_counted() -> None:
    assert estimate_disk(flying("ppo")).most > estimate_disk(flying("ppo", in_flight=None, segment=None)).most
