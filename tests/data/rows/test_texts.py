import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.batches import assert_same
from support.experiments import QWEN2_TINY
from support.rows import open_datasets, open_order
from support.tiny_tokenizer import train_tokenizer
from tokenizers import Tokenizer
from tokenizers.normalizers import Replace

from hpcrl.config.control import ControlConfig, Frequency
from hpcrl.config.data import DataConfig
from hpcrl.config.generation import GenerationConfig
from hpcrl.config.model import ReferenceConfig, TrainedModelConfig
from hpcrl.config.reward import RewardConfig
from hpcrl.data import datasets
from hpcrl.data.datasets import open_texts
from hpcrl.data.indexes import ScratchIndexes
from hpcrl.data.order import sample_ids
from hpcrl.data.tokens import Tokens, load_tokens
from hpcrl.errors import DataError
from hpcrl.recipes.algorithm import algorithm_of
from hpcrl.recipes.ppo import CriticConfig, PPOExperiment
from hpcrl.recipes.sft import SFTExperiment, SFTModelConfig

PAIRS = [
    ("2 + 2 = ", "#### 4"),
    ("10 + 20 = ", "ten and twenty are thirty: #### 30"),
    ("a much longer question, about 1 + 1: ", "#### 2"),
]
GSM8K = Path(__file__).parents[3].parent / "shared" / "data" / "gsm8k"
EVALUATES = ControlConfig(evaluate=Frequency(steps=5))


def write_rows(path: Path, pairs: list[tuple[str, str]]) -> str:
    path.write_text("".join(json.dumps({"prompt": prompt, "answer": answer}) + "\n" for prompt, answer in pairs))
    return str(path)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(train_tokenizer(tmp_path_factory.mktemp("tokenizer"), [text for pair in PAIRS for text in pair]))


@pytest.fixture
def data(tmp_path: Path, tokenizer: str) -> DataConfig:
    return DataConfig(
        train=write_rows(tmp_path / "train.jsonl", PAIRS),
        evaluate=write_rows(tmp_path / "test.jsonl", PAIRS[::-1]),
        tokenizer=tokenizer,
        batch_size=2,
    )


def sft(data: DataConfig, control: ControlConfig = EVALUATES) -> SFTExperiment:
    return SFTExperiment(data=data, actor=SFTModelConfig(path="model"), control=control)


def ppo(data: DataConfig, control: ControlConfig = EVALUATES) -> PPOExperiment:
    return PPOExperiment(
        data=data,
        actor=TrainedModelConfig(path="model"),
        critic=CriticConfig(path="model"),
        reference=ReferenceConfig(path="model"),
        reward=RewardConfig(function="gsm8k"),
        control=control,
    )


def test_sft_rows_are_prompts_and_answers_that_end(data: DataConfig) -> None:
    training = open_datasets(sft(data))["train"]
    tokens = load_tokens(data.tokenizer)
    batch = training.rows(["1@0", "0@0"])
    assert (
        batch.keys == ("prompts", "answers", "answer_mask")
        and batch.data["answer_mask"].all()
        and batch.ids == ("1@0", "0@0")
    )
    for (prompt, answer), row, label in zip(
        [PAIRS[1], PAIRS[0]], batch.rows("prompts"), batch.rows("answers"), strict=True
    ):
        assert tokens.decode(row) == prompt and tokens.decode(label) == answer
        assert label[-1] == tokens.eos_id and row.dtype == np.int32
    assert training.lengths(batch.ids) == [
        a + b for a, b in zip(batch.length("prompts"), batch.length("answers"), strict=True)
    ]


def test_ppo_rows_are_prompts_and_evaluation_has_keys_of_its_own(data: DataConfig) -> None:
    found = open_datasets(ppo(data))
    assert found["train"].rows(["0@0"]).keys == ("prompts",)
    held_out = found["eval"].rows(["2@0"])
    assert held_out.keys == ("eval_prompts",)
    np.testing.assert_array_equal(held_out.data["eval_prompts"], found["train"].rows(["0@0"]).data["prompts"])


def test_sft_is_evaluated_on_answers_too(data: DataConfig) -> None:
    found = open_datasets(sft(data))
    held_out, same = found["eval"].rows(["2@0"]), found["train"].rows(["0@0"])
    assert held_out.keys == ("eval_prompts", "eval_answers", "eval_answer_mask")
    np.testing.assert_array_equal(held_out.data["eval_answers"], same.data["answers"])


def test_samples_of_one_row_have_equal_rows(data: DataConfig) -> None:
    training = open_datasets(ppo(data))["train"]
    batch = training.rows(sample_ids(["2", "0"], 4, 2))
    assert batch.ids == ("2@4#0", "2@4#1", "0@4#0", "0@4#1")
    first, second, *_ = batch.rows("prompts")
    np.testing.assert_array_equal(first, second)


def test_a_batch_equals_its_rows_one_at_a_time(data: DataConfig) -> None:
    training = open_datasets(sft(data))["train"]
    ids = ("2@0", "0@0", "1@0")
    assert_same(training.rows(ids), type(training.rows(ids)).gather([training.rows([sample]) for sample in ids]))


def test_a_part_without_samples_has_a_batch_without_rows(data: DataConfig) -> None:
    training = open_datasets(sft(data))["train"]
    assert training.rows([]).ids == () and training.lengths([]) == []


def test_the_template_surrounds_the_prompt_and_braces_mean_nothing_else(data: DataConfig) -> None:
    templated = replace(data, prompt_template="Q {x}: {prompt}\nA:")
    prompt = open_datasets(ppo(templated))["train"].rows(["0@0"])
    assert load_tokens(data.tokenizer).decode(prompt.data["prompts"]) == "Q {x}: 2 + 2 = \nA:"


def test_rows_that_are_too_long_are_left_out_and_named(data: DataConfig) -> None:
    everything = open_datasets(sft(data))["train"]
    assert everything.ids == ("0", "1", "2") and everything.left_out == () and everything.notice == ""
    bound = everything.rows(["1@0"]).length("prompts")[0]
    some = open_datasets(sft(replace(data, max_prompt_tokens=bound)))["train"]
    assert some.ids == ("0", "1") and some.left_out == ("2",)
    assert "1 of 3 rows of data.train" in some.notice and f"data.max_prompt_tokens = {bound}" in some.notice
    assert some.notice.endswith("left out: 2.")


def test_the_bound_of_answers_counts_for_sft_only(data: DataConfig) -> None:
    bounded = replace(data, max_answer_tokens=len(open_datasets(sft(data))["train"].rows(["0@0"]).data["answers"]))
    assert "2" in open_datasets(sft(bounded))["train"].ids
    assert "1" in open_datasets(sft(bounded))["train"].left_out
    assert open_datasets(ppo(bounded))["train"].left_out == ()


def test_bounds_that_leave_no_row_are_refused(data: DataConfig) -> None:
    with pytest.raises(
        DataError, match=r"data.max_prompt_tokens = 0 .*No row remains. Submit a new run with shorter rows"
    ):
        _ = open_datasets(ppo(replace(data, max_prompt_tokens=0)))["train"].ids


def test_only_the_first_rows_are_evaluated_on_where_that_is_asked_for(data: DataConfig) -> None:
    assert open_datasets(ppo(replace(data, evaluate_rows=2)))["eval"].ids == ("0", "1")


def test_there_is_an_evaluation_set_only_where_something_is_evaluated(data: DataConfig) -> None:
    assert list(open_datasets(ppo(data, control=ControlConfig()))) == ["train"]
    assert list(open_datasets(ppo(replace(data, evaluate=None)))) == ["train"]
    assert list(open_datasets(ppo(data))) == ["train", "eval"]


@pytest.mark.parametrize("knob", ["train", "evaluate"])
def test_a_missing_answer_matters_where_it_is_learnt_or_compared(data: DataConfig, knob: str) -> None:
    Path(getattr(data, knob)).write_text('{"prompt": "p"}\n{"prompt": "q"}\n')
    own = RewardConfig(function="judge:score")
    assert open_datasets(replace(ppo(data), reward=own))["train"].ids[:2] == ("0", "1")
    for needs_it in (ppo(data), replace(ppo(data), reward=RewardConfig(function="exact")), sft(data)):
        with pytest.raises(
            DataError, match=rf"columns prompt, but data.{knob} needs prompt and answer.*Give data.{knob} such"
        ):
            open_datasets(needs_it)


def test_a_batch_is_not_larger_than_the_data_set(data: DataConfig, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data.batch_size = 4, but data.train .* has 3 rows"):
        open_datasets(ppo(replace(data, batch_size=4)))
    with pytest.raises(DataError, match=r"data.batch_size = 2, but data.train .* has 1 rows"):
        one = replace(data, train=write_rows(tmp_path / "one.jsonl", PAIRS[:1]), batch_size=1)
        open_order(ppo(data), open_datasets(ppo(one))["train"])


def of_model(folder: Path, tokenizer: str, **sizes: int) -> str:
    """A model's folder with the tokenizer, without weights."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(QWEN2_TINY | {"vocab_size": 400} | sizes))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(Path(tokenizer) / name, folder)
    return str(folder)


def test_rows_that_no_model_has_positions_for_are_left_out_and_named(data: DataConfig, tmp_path: Path) -> None:
    """Whatever the settings of data say: of PPO's roles the one with the fewest positions counts."""
    everything = open_datasets(sft(data))["train"]
    (longest,) = everything.rows(["2@0"]).length("prompts")
    others = max(everything.rows(["0@0", "1@0"]).length("prompts"))
    assert others < longest
    wide = of_model(tmp_path / "wide", data.tokenizer)
    narrow = of_model(tmp_path / "narrow", data.tokenizer, max_position_embeddings=longest + 15)
    experiment = replace(
        ppo(data),
        actor=TrainedModelConfig(path=wide),
        critic=CriticConfig(path=wide),
        reference=ReferenceConfig(path=narrow),
        generation=GenerationConfig(max_new_tokens=16),
    )
    found = open_datasets(experiment)
    assert found["train"].left_out == ("2",) and found["eval"].left_out == ("0",)
    said = f"longer than max_position_embeddings - generation.max_new_tokens = {longest + 15} - 16 tokens"
    assert said in found["train"].notice
    assert open_datasets(replace(experiment, reference=ReferenceConfig(path=wide)))["train"].left_out == ()


def test_an_answer_that_the_model_has_no_positions_for_is_not_learnt(data: DataConfig, tmp_path: Path) -> None:
    everything = open_datasets(sft(data))["train"]
    lengths = everything.lengths(["0@0", "1@0", "2@0"])
    narrow = of_model(tmp_path / "narrow", data.tokenizer, max_position_embeddings=max(lengths) - 1)
    training = open_datasets(replace(sft(data), actor=SFTModelConfig(path=narrow)))["train"]
    assert [int(row) for row in training.left_out] == [i for i in range(3) if lengths[i] == max(lengths)]
    assert "(prompt and answer together)" in training.notice


def test_rows_that_surely_fit_are_not_tokenised_before_they_are_used(data: DataConfig, tmp_path: Path) -> None:
    experiment = replace(
        sft(data), actor=SFTModelConfig(path=of_model(tmp_path / "model", data.tokenizer, max_position_embeddings=4096))
    )
    training = open_datasets(experiment)["train"]
    assert training.ids == ("0", "1", "2")
    assert not training._lengths.known(np.arange(3)).any()


def test_lengths_that_a_bound_asks_for_are_measured_once_and_found_by_other_processes(
    data: DataConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounded, indexes, rows = replace(data, max_prompt_tokens=8), ScratchIndexes(), algorithm_of(sft(data)).rows
    first = datasets.open_datasets(sft(bounded), rows, indexes)["train"]
    left_out, lengths = tuple(first.left_out), first.lengths(["0@0", "1@0"])
    found = ScratchIndexes(below=lambda name: indexes.made.get(name))
    monkeypatch.setattr(Tokens, "encode_prompts", lambda *_: pytest.fail("tokenised again"))
    again = datasets.open_datasets(sft(bounded), rows, found)["train"]
    assert tuple(again.left_out) == left_out == ("2",) and again.notice == first.notice
    assert again.lengths(["0@0", "1@0"]) == lengths and found.made == {}
    for other in (replace(bounded, prompt_template="{prompt}:"), replace(bounded, tokenizer=None)):
        named = replace(sft(other), actor=SFTModelConfig(path=data.tokenizer))
        if other.tokenizer is None:
            assert tuple(datasets.open_datasets(named, rows, found)["train"].left_out) == ("2",)
        else:
            with pytest.raises(pytest.fail.Exception, match="tokenised again"):
                _ = datasets.open_datasets(named, rows, found)["train"].ids


def test_a_token_that_the_models_do_not_know_is_refused_with_its_row(data: DataConfig, tmp_path: Path) -> None:
    row = open_datasets(sft(data))["train"].rows(["1@0"])
    largest = int(max(row.data[key].max() for key in row.keys))
    folder = of_model(tmp_path / "model", data.tokenizer, vocab_size=largest)
    training = open_datasets(replace(sft(data), actor=SFTModelConfig(path=folder)))["train"]
    with pytest.raises(
        DataError, match=rf"row '1' .* has the token {largest}, .* vocab_size = {largest}\..*data.tokenizer"
    ):
        training.rows(["1@0"])


def test_a_prompt_without_tokens_is_refused_with_its_row(data: DataConfig) -> None:
    tokenizer = Tokenizer.from_file(str(Path(data.tokenizer) / "tokenizer.json"))
    tokenizer.normalizer = Replace("10", "")
    folder = Path(data.train).parent / "forgetful"
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    shutil.copy(Path(data.tokenizer) / "tokenizer_config.json", folder)
    write_rows(Path(data.train), [("2", "#### 2"), ("10", "#### 10")])
    training = open_datasets(ppo(replace(data, tokenizer=str(folder))))["train"]
    for ask in (training.rows, training.lengths):
        with pytest.raises(DataError, match=r"prompt of row '1' of data.train .*train.jsonl.* data.prompt_template"):
            ask(["0@0", "1@0"])


def test_a_chat_on_which_the_template_fails_is_refused_with_its_row(data: DataConfig, tmp_path: Path) -> None:
    chats = [[{"role": "user", "content": text}, {"role": "assistant", "content": "4"}] for text in ("1 + 1", "2")]
    Path(data.train).write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats))
    (tmp_path / "chat.jinja").write_text("{{ 1 // (messages[0].content | length - 1) }}")
    training = open_datasets(ppo(replace(data, chat_template=str(tmp_path / "chat.jinja"))))["train"]
    assert len(training.rows(["0@0"]).ids) == 1
    with pytest.raises(DataError, match=r"^row '1' of data.train .*: the chat template fails: ZeroDivisionError: "):
        training.rows(["0@0", "1@0"])


def test_texts_lead_from_a_sample_to_its_record_and_from_tokens_to_text(data: DataConfig) -> None:
    experiment = ppo(data)
    texts = open_texts(experiment, open_datasets(experiment))
    assert texts.record("train", "1@3#0") == {"id": "1", "prompt": PAIRS[1][0], "answer": PAIRS[1][1]}
    assert texts.record("eval", "0@0")["prompt"] == PAIRS[2][0]
    tokens = load_tokens(data.tokenizer)
    assert texts.eos_token_ids == tokens.eos_ids
    assert texts.decode(tokens.encode_answers(["#### 4"])[0]) == "#### 4"


def test_the_actors_folder_has_the_tokenizer_where_no_other_is_named(data: DataConfig) -> None:
    experiment = sft(replace(data, tokenizer=None))
    with pytest.raises(DataError, match=r"model/tokenizer.json .*another actor.path or data.tokenizer"):
        open_datasets(experiment)
    assert open_datasets(replace(experiment, actor=SFTModelConfig(path=data.tokenizer)))["train"].ids == ("0", "1", "2")


@pytest.mark.parametrize("cut", [{"batch_tokens": 20, "batch_size": None}, {"balance": True, "batch_size": 1}])
def test_lengths_that_cut_batches_are_measured_once_and_kept(
    cut: dict[str, Any], data: DataConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment, indexes = sft(replace(data, **cut)), ScratchIndexes()
    rows = algorithm_of(experiment).rows
    first = datasets.open_datasets(experiment, rows, indexes)["train"]
    lengths, order = first.row_lengths().tolist(), open_order(experiment, first)
    assert lengths == first.lengths(["0@0", "1@0", "2@0"]) and lengths != sorted(lengths, reverse=True)
    monkeypatch.setattr(Tokens, "encode_prompts", lambda *_: pytest.fail("tokenised again"))
    again = datasets.open_datasets(experiment, rows, ScratchIndexes(below=lambda name: indexes.made.get(name)))["train"]
    assert again.row_lengths().tolist() == lengths
    steps = [open_order(experiment, again).batch_at(cursor) for cursor in range(3)]
    assert steps == [order.batch_at(cursor) for cursor in range(3)]
    if experiment.data.balance:
        assert [sum(first.lengths(step.ids)) for step in steps] == sorted(lengths, reverse=True)


@pytest.mark.skipif(not GSM8K.is_dir(), reason="needs real rows in ../shared/data/gsm8k")
def test_real_rows_of_gsm8k_survive_the_way_to_tokens_and_back(tmp_path: Path) -> None:
    pairs = [json.loads(line) for line in (GSM8K / "train.jsonl").read_text().strip().split("\n")]
    folder = train_tokenizer(tmp_path, (row["prompt"] for row in pairs[:500]), size=1000)
    data = DataConfig(train=str(GSM8K / "train.jsonl"), tokenizer=str(folder), batch_size=64, max_prompt_tokens=150)
    training = open_datasets(sft(data))["train"]
    order = open_order(sft(data), training)
    assert len(training.ids) + len(training.left_out) == 7473 and 0 < len(training.left_out) < 2000
    batch = order.batch_at(order.start)
    rows, tokens = training.rows(batch.ids), load_tokens(folder)
    by_id = {row["id"]: row for row in pairs}
    for sample, prompt, answer in zip(batch.ids, rows.rows("prompts"), rows.rows("answers"), strict=True):
        record = by_id[sample.rpartition("@")[0]]
        assert tokens.decode(prompt) == record["prompt"] and tokens.decode(answer) == record["answer"]
        assert training.text(sample) == record and len(prompt) <= 150
