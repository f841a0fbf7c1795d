"""docs/rewards.md: every snippet does what the page says."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from hpcrl.config.reward import RewardConfig
from hpcrl.config.validate_reward import reward_problems
from hpcrl.rewards.calling import ARGUMENTS
from hpcrl.rewards.response import Response
from hpcrl.rewards.results import as_results
from hpcrl.rewards.run import RewardFunction

PAGE = (Path(__file__).parents[2] / "docs" / "rewards.md").read_text(encoding="utf-8")


def snippets(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


ROW = {"id": "0", "answer": "yes", "data_source": "mine"}
EXPECTED = [(1.0, 0.0), (1.0, 0.0), (1.0, 0.0), (3.0, 5.0), (1.0, 1.1)]
"""What each function of the page says of "yes" and of "no\\nno"."""


@pytest.mark.parametrize(("snippet", "expected"), list(zip(snippets("python"), EXPECTED, strict=True)))
def test_a_function_of_the_page_scores(tmp_path: Path, snippet: str, expected: tuple[float, float]) -> None:
    (tmp_path / "judge.py").write_text(snippet)
    (name,) = re.findall(r"^(?:async )?def (\w+)", snippet, re.MULTILINE)
    function = RewardFunction(RewardConfig(function=f"{tmp_path}/judge.py:{name}"))
    try:
        found = function.score([Response("p", text, ROW) for text in ("yes", "no\nno")])
    finally:
        function.close()
    assert [it.total for it in found] == pytest.approx(expected)


def test_a_configuration_of_the_page_is_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_TOKEN", "1")
    named = {name for snippet in snippets("yaml") for name in re.findall(r"judge\.py:(\w+)", snippet)}
    (tmp_path / "judge.py").write_text("".join(f"def {name}(response):\n    return 1.0\n" for name in named))
    for snippet in snippets("yaml"):
        values: dict[str, Any] = yaml.safe_load(snippet.replace("judge.py:", f"{tmp_path}/judge.py:"))
        assert list(reward_problems("reward", RewardConfig(**values["reward"]))) == []


def test_the_messages_of_a_service_are_those_that_are_sent_and_read() -> None:
    sent, answered = map(json.loads, snippets("json"))
    (response,) = sent["responses"]
    assert Response(**response).row["answer"] == "5"
    (result,) = as_results(answered["scores"], 1, several=True)
    assert (result.score, result.numbers) == (1.0, {"sure": 0.9})


def test_the_page_lists_every_name_of_a_parameter() -> None:
    table = PAGE.partition("Each parameter gets")[2].partition("`reward.kwargs`")[0]
    named = re.findall(r"`(\w+)`", re.sub(r"\|[^|]*\|$", "", table, flags=re.MULTILINE))
    assert {*named, "messages"} == set(ARGUMENTS), "an environment alone has messages"
