"""A judge is asked about responses; its mark is a component of the reward, and what it said is kept."""

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.chaos import remains, whole_run
from support.hosts import LETTERS, run_of, write_model, write_task
from support.struck_layouts import Blow, check_struck
from support.tiny_ppo import tiny_ppo

from hpcrl.algos.judge import mark_in
from hpcrl.config.generation import GenerationConfig
from hpcrl.config.judge import JudgeConfig, drawing_of
from hpcrl.config.reward import RewardConfig
from hpcrl.config.validate import collect
from hpcrl.data.tokens import load_tokens
from hpcrl.errors import DataError
from hpcrl.inspect.archives import Archives
from hpcrl.placement.check import ALL_CHECKS
from hpcrl.recipes.algorithm import algorithm_of

COMPONENTS = {"judged": {"role": "judge", "weight": 0.5}, "right": {"function": "exact"}}
QUESTION, ITS_LETTERS = "{prompt}{response} {row[answer]}=", "9876543210=+# "


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A judge whose tokens are others than the run's."""
    folder = tmp_path_factory.mktemp("task")
    write_task(folder)
    assert sorted(ITS_LETTERS) != list(ITS_LETTERS) and ITS_LETTERS != LETTERS
    write_model(folder / "judge", ITS_LETTERS, max_positions=64)
    return folder


def judged(folder: Path, workers: int = 1, **settings: Any) -> Any:
    own = {"path": str(folder / "judge"), "question": QUESTION, "mark": r"(\d)", "most": 8.0, **settings}
    drawn = GenerationConfig(max_new_tokens=3, temperature=1.0, slots=8)
    return replace(
        tiny_ppo(folder, nodes=1, workers=workers),
        reward=RewardConfig(components=COMPONENTS),
        judge=JudgeConfig(**{"generation": drawn, **own}),
    )


def test_the_last_mark_of_its_answer_is_weighted_into_the_reward(task: Path) -> None:
    with run_of(judged(task)) as conductor:
        rows = conductor.step(1).rows
    keys = ("judge_texts", "judge_scores", "reward_components", "rewards")
    marks = []
    for text, score, components, reward in zip(*map(rows.rows, keys), strict=True):
        said = re.findall(r"\d", bytes(text).decode())
        mark = float(said[-1]) if said and said[-1] != "9" else math.nan
        marks.append(mark)
        assert np.array_equal(score, np.array([mark], np.float32), equal_nan=True)
        assert np.array_equal(components[:1], score, equal_nan=True)
        assert reward[0] == np.float32((0.0 if math.isnan(mark) else 0.5 * mark) + float(components[1]))
    assert len(set(map(str, marks))) > 2


@pytest.mark.parametrize("before", ["", 40 * "12"])
def test_it_is_asked_with_the_texts_and_the_row_in_tokens_of_its_own(task: Path, before: str) -> None:
    """The same question in the very tokens, to the same model, gives the same answer; of a longer one the beginning is
    left out."""
    greedy = GenerationConfig(max_new_tokens=3, greedy=True, slots=8)
    experiment = judged(task, generation=greedy, question=before + QUESTION)
    with run_of(experiment) as conductor:
        rows = conductor.step(1).rows
    ours, its = load_tokens(task / "model"), load_tokens(task / "judge")
    records = {str(i): f"# {i % 10 + i * 7 % 10}" for i in range(12)}
    asked = []
    for name, prompt, response in zip(rows.ids, rows.rows("prompts"), rows.rows("responses"), strict=True):
        answer = records[name.partition("@")[0]]
        asked.append(f"{before}{ours.decode(prompt)}{ours.decode(response)} {answer}=")
    said = [bytes(text).decode() for text in rows.rows("judge_texts")]
    assert said == [greedy_answer(task / "judge", its.encode_prompts([text])[0][-61:], its) for text in asked]


def test_a_field_that_a_row_lacks_is_named_with_those_that_it_has(task: Path) -> None:
    lacking = judged(task, question="{response} {row[solution]}")
    said = r"cannot be filled in from the row '\d+': KeyError: 'solution'.(?s:.)*The row has prompt, answer, id."
    with run_of(lacking) as conductor, pytest.raises(DataError, match=said):
        conductor.step(1)
    with run_of(replace(lacking, judge=replace(lacking.judge, question="{response} {row[answer]}"))) as conductor:
        conductor.step(1)


def greedy_answer(folder: Path, tokens: np.ndarray, its: Any) -> str:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    with torch.inference_mode():
        made = model.generate(torch.tensor(tokens[None]), max_new_tokens=3, do_sample=False)[0, len(tokens) :]
    return str(its.decode(made.tolist()))


def test_two_workers_hear_what_one_hears_and_a_killed_run_ends_with_the_same_marks(task: Path, tmp_path: Path) -> None:
    experiment = judged(task, workers=2)
    (tmp_path / "whole").mkdir()
    whole = whole_run(tmp_path / "whole", experiment)
    rows = {row["step"]: row for row in remains(whole).metrics}
    assert 0 < rows[3]["judge_gen/marked"] <= 1 and 0 <= rows[3]["eval_judge/marked"] <= 1
    assert 0 <= rows[3]["rew_inf/judged"] <= 8
    kept = list(Archives(whole).samples(3))
    assert {it.data_set for it in kept} == {"train", "eval"}
    for it in kept:
        mark = mark_in(it.texts["judge"], experiment.judge)
        assert it.figures.get("judge_score", math.nan) == pytest.approx(mark, nan_ok=True)
    (tmp_path / "struck").mkdir()
    check_struck(tmp_path / "struck", experiment, Blow("worker-1", "worker.call", 9), whole)


@pytest.mark.parametrize(
    ("text", "mark"),
    [("Mark: 7", 7), ("Mark: 3. No: Mark: 4.5!", 4.5), ("7", math.nan), ("Mark: 11", math.nan), ("Mark: -1", math.nan)],
)
def test_a_mark_is_the_last_that_is_within_bounds(text: str, mark: float) -> None:
    assert mark_in(text, JudgeConfig()) == pytest.approx(mark, nan_ok=True)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"path": ""}, "judge.path is not set, but reward.components.judged asks its model."),
        ({"question": "{prompt}"}, "judge.question must have {response} in it"),
        ({"question": "{response} {answer}"}, "judge.question has {answer}; there are {prompt}, {response} and {row"),
        ({"question": "{response.__class__}"}, "judge.question has {response.__class__}"),
        ({"question": "{response"}, "judge.question cannot be filled in"),
        ({"mark": "("}, "judge.mark = ( is no regular expression"),
        ({"mark": "a"}, "judge.mark = a must have one group, the mark; it has 0."),
        ({"least": 3.0, "most": 3.0}, "judge.least = 3 must be below judge.most = 3."),
    ],
)
def test_what_cannot_be_asked_is_said_before_the_start(task: Path, settings: dict[str, Any], said: str) -> None:
    (problem,) = collect(judged(task, **settings), ALL_CHECKS, [])
    assert problem.text.startswith(said) or said in problem.text


def test_a_judge_that_nobody_asks_is_no_model_of_the_run(task: Path) -> None:
    unasked = replace(judged(task), reward=RewardConfig(function="exact"), judge=JudgeConfig())
    assert "judge" not in algorithm_of(unasked).called(unasked)
    assert collect(unasked, ALL_CHECKS, []) == []
    asked = judged(task)
    drawing = drawing_of(asked, "judge")
    assert drawing is not None and drawing.generation.max_new_tokens == 3
    assert drawing_of(asked, "actor") == (asked.generation, asked.data.max_prompt_tokens)
