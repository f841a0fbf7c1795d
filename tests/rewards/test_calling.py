"""A function gets what its parameters are named, for one response or for several, and may be asynchronous."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcrl.config.reward import RewardConfig
from hpcrl.errors import UserCodeError
from hpcrl.rewards.calling import call_of
from hpcrl.rewards.response import Response
from hpcrl.rewards.results import as_results
from hpcrl.rewards.run import RewardFunction, Scored

FILE = """
import asyncio, os, time

def by_name(response, finished, tokens, row):
    return {"score": len(tokens), "cut": not finished, "text": response, "nan": float("nan")}

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    assert data_source == "mine" and extra_info == {"index": 3}
    return {"score": float(solution_str == ground_truth), "acc": solution_str == ground_truth, "pred": solution_str}

def compute_batch(data_sources, solution_strs, ground_truths, extra_infos, **kwargs):
    return [float(solution == truth) for solution, truth in zip(solution_strs, ground_truths, strict=True)]

def together(responses, finished):
    return [len(responses)] * len(responses)

def too_few(responses):
    return [1.0]

async def slow(response):
    await asyncio.sleep(0.2)
    if response == "bad":
        raise ValueError("bad")
    if response == "late":
        await asyncio.sleep(60)
    return {"score": len(response), "pid": os.getpid()}

async def slow_together(responses):
    await asyncio.sleep(0.01)
    return [None if text == "x" else len(responses) for text in responses]

def pid(response):
    time.sleep(0.05)
    return os.getpid()

def picky(response, row):
    if response == "dies":
        os._exit(3)
    if response == "late":
        time.sleep(60)
    if response == "once" and not os.path.exists(row["mark"]):
        open(row["mark"], "w").close()
        raise ValueError("not yet")
    return {"bad": None}.get(response, 1.0) if response != "raises" else 1 / 0

def nothing(prompt): return None
"""
ROW: dict[str, Any] = {
    "id": "r",
    "data_source": "mine",
    "reward_model": {"style": "rule", "ground_truth": "yes"},
    "extra_info": {"index": 3},
}
Judge = Callable[..., list[Scored]]


@pytest.fixture
def judge(tmp_path: Path) -> Iterator[Judge]:
    """Scores texts with a function of the file."""
    (tmp_path / "mine.py").write_text(FILE)
    ROW["mark"] = str(tmp_path / "mark")
    made: list[RewardFunction] = []

    def score(function: str, *texts: str, **settings: Any) -> list[Scored]:
        made.append(RewardFunction(RewardConfig(function=f"{tmp_path}/mine.py:{function}", **settings)))
        return made[-1].score([Response("p", text, ROW, text != "cut", (1, 2)) for text in texts])

    yield score
    for function in made:
        function.close()


def totals(scored: list[Scored]) -> list[float]:
    return [it.total for it in scored]


def test_a_parameter_gets_what_its_name_says_and_numbers_are_kept(judge: Judge) -> None:
    whole, cut = judge("by_name", "whole", "cut")
    assert (whole.total, whole.numbers, cut.numbers) == (2.0, {"reward_cut": 0.0}, {"reward_cut": 1.0})


def test_verls_compute_score_works_unchanged(judge: Judge) -> None:
    right, wrong = judge("compute_score", "yes", "no")
    assert (right.total, wrong.total, right.numbers) == (1.0, 0.0, {"reward_acc": 1.0})
    assert totals(judge("compute_batch", "yes", "no", "yes")) == [1.0, 0.0, 1.0]


def test_a_function_may_score_several_together_in_the_order_of_the_rows(judge: Judge) -> None:
    assert totals(judge("together", *"abcdefg", batch_size=3)) == [3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 1.0]
    with pytest.raises(UserCodeError, match=r"failed on 2 responses, the first of them on row 'r'[\s\S]*a list of 2"):
        judge("too_few", "a", "b")


def test_an_asynchronous_function_works_on_many_at_a_time(judge: Judge) -> None:
    texts = ["x" * (i % 7) for i in range(40)]
    scored = judge("slow", *texts, concurrency=40, timeout_s=5.0)
    assert totals(scored) == [float(i % 7) for i in range(40)]
    assert len({it.numbers["reward_pid"] for it in scored}) == 1
    assert [str(it) for it in totals(judge("slow_together", *"axa", batch_size=2))] == ["2.0", "nan", "1.0"]


def test_an_asynchronous_function_has_a_limit_for_each_response(judge: Judge) -> None:
    found = judge("slow", "a", "late", "bb", "bad", timeout_s=5.0, on_error="drop")
    assert [it.dropped for it in found] == [False, True, False, True]
    assert totals(found)[::2] == [1.0, 2.0]


def test_several_processes_share_the_work(judge: Judge) -> None:
    found = totals(judge("pid", *"a" * 100, processes=3))
    assert len(set(found)) == 3


def test_what_fails_is_dropped_and_told_and_the_others_are_scored(judge: Judge, capfd: Any) -> None:
    texts = ["ok", "raises", "ok", "dies", "late", "bad", "ok"]
    found = judge("picky", *texts, on_error="drop", timeout_s=5.0)
    assert [it.dropped for it in found] == [text in ("raises", "dies", "late") for text in texts]
    assert [it.total == 1.0 for it in found] == [text == "ok" for text in texts]
    told = capfd.readouterr().err
    assert "ZeroDivisionError" in told and 'mine.py", line' in told and "response: 'raises'" in told
    assert "(exit code 3)" in told and "took longer than 5 s" in told
    assert told.count("It is dropped, and not counted.") == 3


def test_what_fails_is_tried_again_and_ends_the_run_at_the_third_time(judge: Judge, capfd: Any) -> None:
    assert totals(judge("picky", "once", "ok", on_error="retry")) == [1.0, 1.0]
    with pytest.raises(UserCodeError, match="ZeroDivisionError"):
        judge("picky", "ok", "raises", on_error="retry")
    assert capfd.readouterr().err.count("It is tried again, 2 of 2 times.") == 1


def test_no_reward_is_none_and_not_zero(judge: Judge) -> None:
    (found,) = judge("nothing", "a")
    assert str(found.total) == "nan" and not found.dropped


@pytest.mark.parametrize(
    ("function", "kwargs", "problem"),
    [
        (
            lambda response, other: 1,
            {},
            "nothing fills its parameter 'other'; a parameter may be called prompt, resp",
        ),
        (lambda responses, prompt: 1, {}, "nothing fills its parameter 'prompt'; a parameter may be called prompts"),
        (lambda response: 1, {"most": 3}, "its kwargs give 'most', but it has no such parameter"),
        (eval("lambda response, /: 1"), {}, "nothing fills its parameter 'response'"),
    ],
)
def test_a_function_that_cannot_be_called_is_refused(function: Any, kwargs: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        call_of(function, kwargs)


def test_further_arguments_come_by_name() -> None:
    call = call_of(lambda response, *, most, **others: (response, most, others), {"most": 3, "x": 1})
    assert call([Response("p", "r", {})]) == ("r", 3, {"x": 1})


@pytest.mark.parametrize(
    ("returned", "problem"),
    [
        ({"scores": [(1, 0.5)], "score": 1}, 'both "score" and "scores"'),
        ({"scores": [1, 2]}, r'"scores" \[1, 2\]; expected pairs'),
        ({"scores": [(1, "x")]}, "expected one number"),
        ({"scores": [(1, float("nan"))]}, "returned nan"),
        ({"points": 1}, "expected one number"),
    ],
)
def test_what_is_no_score_is_refused(returned: Any, problem: str) -> None:
    with pytest.raises((TypeError, ValueError), match=problem):
        as_results(returned, 1, several=False)


def test_places_add_up_to_the_score() -> None:
    (result,) = as_results({"scores": [(3, 0.5), (9, -1)], "words": 4}, 1, several=False)
    assert (result.score, result.places, result.numbers) == (-0.5, ((3, 0.5), (9, -1.0)), {"words": 4.0})
