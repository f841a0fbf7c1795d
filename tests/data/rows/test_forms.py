"""The forms that rows may have, told by their columns."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.rows import open_datasets
from support.templates import MARKED, chat_tokenizer

from hpcrl.config.data import DataConfig
from hpcrl.config.model import ModelConfig, TrainedModelConfig
from hpcrl.config.reward import RewardConfig
from hpcrl.data.tokens import load_tokens
from hpcrl.errors import DataError
from hpcrl.recipes.evaluate import EvaluateExperiment
from hpcrl.recipes.ppo import CriticConfig, PPOExperiment
from hpcrl.recipes.sft import SFTExperiment, SFTModelConfig

USER, ANSWER = {"role": "user", "content": "2 + 2 ="}, {"role": "assistant", "content": "4"}
TASK = {
    "data_source": "openai/gsm8k",
    "prompt": [USER],
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "4"},
    "extra_info": {"split": "train", "index": 7},
}
JUDGED = {
    "a text": {"prompt": "2 + 2 =", "answer": "4"},
    "a text under other names": {"question": "2 + 2 =", "solution": "4", "prompt_length": 3},
    "messages as a prompt": {"prompt": [USER], "answer": "4"},
    "a chat": {"messages": [USER, ANSWER]},
    "verl's": TASK,
}
RENAMED = {"a text under other names": {"prompt": "question", "answer": "solution"}}


def data(folder: Path, *rows: Any, **settings: Any) -> DataConfig:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tokenizer = chat_tokenizer(folder / "tokenizer", MARKED)
    return DataConfig(train=str(path), tokenizer=str(tokenizer), batch_size=1, **settings)


def ppo(config: DataConfig, function: str = "exact") -> PPOExperiment:
    actor = TrainedModelConfig(path="model")
    reference, critic = ModelConfig(path="model"), CriticConfig(path="model")
    return PPOExperiment(
        data=config, actor=actor, critic=critic, reference=reference, reward=RewardConfig(function=function)
    )


def sft(config: DataConfig) -> SFTExperiment:
    return SFTExperiment(data=config, actor=SFTModelConfig(path="model"))


def texts(experiment: Any, key: str) -> str:
    tokens = load_tokens(experiment.data.tokenizer)
    (row,) = open_datasets(experiment)["train"].rows(["0@0"]).rows(key)
    return tokens.tokenizer.decode(row.tolist(), skip_special_tokens=False)


@pytest.mark.parametrize("form", JUDGED)
def test_a_row_is_a_prompt_and_what_it_is_judged_by(tmp_path: Path, form: str) -> None:
    row = JUDGED[form]
    experiment = ppo(data(tmp_path, row, fields=RENAMED.get(form, {})))
    is_chat = "messages" in row or not isinstance(row.get("prompt", ""), str)
    assert texts(experiment, "prompts") == ("[user]2 + 2 =[assistant]" if is_chat else "2 + 2 =")
    record = open_datasets(experiment)["train"].text("0@0")
    assert record["answer"] == "4" and record["id"] == "0" and row.items() <= record.items()


@pytest.mark.parametrize("form", [form for form in JUDGED if form != "verl's"])
def test_a_row_is_a_prompt_and_what_is_learnt(tmp_path: Path, form: str) -> None:
    experiment = sft(data(tmp_path, JUDGED[form], fields=RENAMED.get(form, {})))
    assert texts(experiment, "answers") == "4<|end|>"


@pytest.mark.parametrize("form", JUDGED)
def test_a_model_is_evaluated_on_every_row_that_it_may_be_trained_on(tmp_path: Path, form: str) -> None:
    config = data(tmp_path, JUDGED[form], fields=RENAMED.get(form, {}))
    experiment = EvaluateExperiment(data=config, actor=ModelConfig(path="model"))
    assert texts(experiment, "answers").removesuffix("<|end|>") == "4"
    assert texts(experiment, "prompts") == texts(ppo(config), "prompts")
    assert open_datasets(experiment)["train"].text("0@0")["answer"] == "4"


def test_a_chat_without_an_answer_is_a_prompt(tmp_path: Path) -> None:
    chat = {"messages": [USER, ANSWER, USER]}
    experiment = ppo(data(tmp_path, chat), "judge:score")
    assert texts(experiment, "prompts") == "[user]2 + 2 =[assistant]4<|end|>[user]2 + 2 =[assistant]"
    assert "answer" not in open_datasets(experiment)["train"].text("0@0")
    for needs_one in (replace(experiment, reward=RewardConfig(function="exact")), sft(experiment.data)):
        with pytest.raises(DataError, match=r"line 1: the last of messages is the user's, and an answer"):
            open_datasets(needs_one)


def test_columns_that_are_named_decide_between_two_forms(tmp_path: Path) -> None:
    both = {"prompt": "2 + 2 =", "answer": "4", "messages": [USER, USER, ANSWER]}
    with pytest.raises(
        DataError, match=r"can be read as prompt and answer, or messages. Submit a new run with data.fields"
    ):
        open_datasets(sft(data(tmp_path, both)))
    assert texts(sft(data(tmp_path, both, fields={"prompt": "prompt"})), "prompts") == "2 + 2 ="
    assert texts(sft(data(tmp_path, both, fields={"messages": "messages"})), "prompts").count("[user]") == 2


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"q": "a", "a": "b"}, "columns q, a, but data.train needs prompt and answer, or messages"),
        ({"messages": []}, "line 1: messages need one before the assistant's first"),
        ({"messages": [ANSWER]}, "line 1: messages need one before the assistant's first"),
        ({"messages": [{"content": "a"}]}, r"line 1: Object missing required field `role` - at `\$.messages\[0\]`"),
        ({"messages": [USER, {"role": "assistant", "content": [1]}]}, r"line 1: .*`\$.messages\[1\].content`"),
        (
            TASK,
            "columns data_source, prompt, ability, reward_model, extra_info, but data.train needs prompt and answer",
        ),
    ],
)
def test_rows_that_no_form_fits_are_named_with_their_columns(tmp_path: Path, row: Any, says: str) -> None:
    with pytest.raises(DataError, match=says) as caught:
        open_datasets(sft(data(tmp_path, row)))
    assert "rows.jsonl" in str(caught.value) and "data.train" in str(caught.value)


def test_a_template_of_texts_is_refused_for_chats(tmp_path: Path) -> None:
    config = data(tmp_path, {"messages": [USER, ANSWER]}, prompt_template="Q: {prompt}")
    with pytest.raises(DataError, match=r"data.prompt_template .* chats. Submit a new run with data.chat_template"):
        open_datasets(sft(config))
