import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.tiny_tokenizer import BEGIN, END, train_tokenizer

from hpcrl.data.tokens import load_tokens
from hpcrl.errors import DataError

TEXTS = ["How many apples?", "12 + 30 = 42", "übermäßig 価"]


def configure(folder: Path, **files: object) -> None:
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))


def test_decoding_gives_the_text_back_without_special_tokens(tmp_path: Path) -> None:
    tokens = load_tokens(train_tokenizer(tmp_path, TEXTS))
    for encode in (tokens.encode_prompts, tokens.encode_answers):
        assert [tokens.decode(ids) for ids in encode(TEXTS)] == TEXTS


def test_answers_end_with_eos_and_prompts_do_not(tmp_path: Path) -> None:
    tokens = load_tokens(train_tokenizer(tmp_path, TEXTS))
    for prompt, answer in zip(tokens.encode_prompts(TEXTS), tokens.encode_answers(TEXTS), strict=True):
        assert prompt.dtype == answer.dtype == np.int32
        assert [*prompt, tokens.eos_id] == answer.tolist()
    assert [ids.tolist() for ids in tokens.encode_answers([""])] == [[tokens.eos_id]]


def test_a_prompt_has_the_bos_of_its_tokenizer_once_and_an_answer_has_none(tmp_path: Path) -> None:
    tokens = load_tokens(train_tokenizer(tmp_path, TEXTS, begin=True))
    bos = tokens.tokenizer.token_to_id(BEGIN)
    plain, marked = tokens.encode_prompts([TEXTS[0], BEGIN + TEXTS[0]])
    assert plain.tolist() == marked.tolist() and plain.tolist().count(bos) == 1 and plain[0] == bos
    assert bos not in tokens.encode_answers(TEXTS)[0]


def test_special_tokens_of_a_template_are_one_token_each(tmp_path: Path) -> None:
    tokens = load_tokens(train_tokenizer(tmp_path, TEXTS))
    assert tokens.encode_prompts([f"{END}{END}"])[0].tolist() == [tokens.eos_id] * 2


def test_the_eos_that_is_written_is_the_tokenizers_and_all_that_are_named_end_a_text(tmp_path: Path) -> None:
    folder = train_tokenizer(tmp_path, TEXTS)
    own = load_tokens(folder).eos_id
    configure(folder, config={"eos_token_id": 7}, generation_config={"eos_token_id": [9, own]})
    assert load_tokens(folder).eos_ids == (own, 7, 9)
    configure(folder, tokenizer_config={"eos_token": {"content": END}})
    assert load_tokens(folder).eos_id == own
    configure(folder, tokenizer_config={"eos_token": None})
    assert load_tokens(folder).eos_ids == (7, 9, own)


def test_a_folder_without_tokenizer_or_eos_is_refused_with_path_and_setting(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere/tokenizer.json is no tokenizer.*another data\.tokenizer"):
        load_tokens(tmp_path / "nowhere")
    folder = train_tokenizer(tmp_path / "made", TEXTS)
    (folder / "tokenizer_config.json").unlink()
    with pytest.raises(DataError, match=r"made names no token that ends a text.*another actor\.path"):
        load_tokens(folder, "actor.path")
    (folder / "config.json").write_text("{")
    with pytest.raises(DataError, match=r"config.json is not JSON"):
        load_tokens(folder)


def test_data_and_dataflow_load_neither_torch_nor_transformers() -> None:
    code = (
        "import sys, hpcrl.data.datasets, hpcrl.data.inputs, hpcrl.data.partition, hpcrl.dataflow.readiness;"
        "assert not {'torch', 'transformers'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
