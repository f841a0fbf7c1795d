"""Chats to texts and tokens, against transformers' own tokenizer."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.templates import CHATML, DATED, FORGETFUL, MARKED, chat_tokenizer
from support.tiny_tokenizer import END

from hpcrl.data.chat import ChatTemplate, find_template
from hpcrl.data.rows.turns import Texts
from hpcrl.data.tokens import load_tokens
from hpcrl.errors import DataError

USER, ASKED = {"role": "user", "content": "2 + 2 ="}, {"role": "user", "content": "And 3 + 3?"}
SYSTEM = {"role": "system", "content": "Be polite."}
FOUR, SIX = {"role": "assistant", "content": "4"}, {"role": "assistant", "content": "It is 6."}
CHATS = [[USER], [SYSTEM, USER], [USER, FOUR, ASKED]]
WHOLE = [SYSTEM, USER, FOUR, ASKED, SIX]


def texts_of(folder: Path, learn: Any = "last", **arguments: Any) -> Texts:
    chat = find_template(folder, None, arguments)
    return Texts(tokens=load_tokens(folder), prompt_template="{prompt}", chat=chat, learn=learn)


@pytest.fixture
def eager_threads() -> Iterator[None]:
    """They take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_readers_that_render_at_the_same_time_find_the_same_answers(eager_threads: None) -> None:
    chats = [[USER, {"role": "assistant", "content": "4" * length}] * 4 for length in range(1, 41)]
    templates = [ChatTemplate(MARKED, {}, {}) for _ in range(4)]
    expected = [templates[0].answered(chat, every=True) for chat in chats]
    with ThreadPoolExecutor(len(templates)) as pool:
        found = pool.map(lambda template: [template.answered(chat, every=True) for chat in chats], templates)
        assert all(each == expected for each in found)


@pytest.mark.parametrize("template", [CHATML, MARKED, DATED.replace("strftime_now", "undefined")])
@pytest.mark.parametrize("chat", CHATS)
def test_a_prompt_has_the_tokens_that_transformers_gives_it(tmp_path: Path, template: str, chat: Any) -> None:
    from transformers import AutoTokenizer

    folder = chat_tokenizer(tmp_path, template)
    expected = AutoTokenizer.from_pretrained(folder).apply_chat_template(chat, add_generation_prompt=True, brief=True)
    (row,) = texts_of(folder, brief=True).prompts([{"prompt": chat}])
    assert row.prompt.tolist() == list(expected["input_ids"] if hasattr(expected, "keys") else expected)


def learnt(folder: Path, messages: Any, learn: Any) -> tuple[str, str, list[str]]:
    """The prompt, all that follows it, and the runs of what is learnt, as texts with their special tokens."""
    texts = texts_of(folder, learn)
    (row,) = texts.answered([{"messages": messages, "prompt": messages[:-1], "answer": ""}])
    assert row.answer is not None and row.learnt is not None and row.answer.dtype == np.int32

    def text(tokens: Any) -> str:
        return texts.tokens.tokenizer.decode(list(map(int, tokens)), skip_special_tokens=False)

    edges = np.flatnonzero(np.diff(np.concatenate([[False], row.learnt, [False]]).astype(int)))
    return text(row.prompt), text(row.answer), [text(row.answer[a:b]) for a, b in edges.reshape(-1, 2)]


@pytest.mark.parametrize("template", [CHATML, MARKED])
def test_the_last_answer_or_every_one_is_learnt_through_its_end(tmp_path: Path, template: str) -> None:
    folder = chat_tokenizer(tmp_path, template)
    prompt, answer, runs = learnt(folder, WHOLE, "last")
    assert prompt.endswith("assistant\n" if template == CHATML else "[assistant]") and "And 3 + 3?" in prompt
    assert answer == f"It is 6.{END}" and runs == [answer]
    prompt, answer, runs = learnt(folder, WHOLE, "all")
    assert "And 3 + 3?" not in prompt and "2 + 2 =" in prompt and "And 3 + 3?" in answer
    assert runs == [f"4{END}", f"It is 6.{END}"] and answer.endswith(f"6.{END}")


def test_what_the_template_marks_is_what_transformers_masks(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    folder = chat_tokenizer(tmp_path, MARKED)
    masked = AutoTokenizer.from_pretrained(folder).apply_chat_template(
        WHOLE, return_dict=True, return_assistant_tokens_mask=True
    )
    (row,) = texts_of(folder, "all").answered([{"messages": WHOLE, "prompt": WHOLE[:-1]}])
    assert row.answer is not None and row.learnt is not None
    tokens, mask = masked["input_ids"], masked["assistant_masks"]
    count = len(row.prompt) + len(row.answer)
    assert [*row.prompt.tolist(), *row.answer.tolist()] == tokens[:count] and not any(mask[count:])
    assert [0] * len(row.prompt) + row.learnt.astype(int).tolist() == mask[:count]


def test_an_answer_that_the_template_does_not_end_is_ended(tmp_path: Path) -> None:
    folder = chat_tokenizer(tmp_path, MARKED.replace("{{ eos_token }}", ""))
    assert learnt(folder, WHOLE, "last")[1:] == (f"It is 6.{END}", [f"It is 6.{END}"])


def test_a_template_that_changes_earlier_answers_can_teach_the_last_only(tmp_path: Path) -> None:
    folder = chat_tokenizer(tmp_path, FORGETFUL)
    chat = [USER, {"role": "assistant", "content": "<think>easy</think>4"}, ASKED, SIX]
    prompt, answer, _ = learnt(folder, chat, "last")
    assert "easy" not in prompt and answer == f"It is 6.{END}"
    with pytest.raises(DataError, match=r"writes message 2 in another way .* Change the row, .* data\.learn\."):
        learnt(folder, chat, "all")


def test_a_template_is_not_told_the_date(tmp_path: Path) -> None:
    texts = texts_of(chat_tokenizer(tmp_path, DATED))
    (row,) = texts.prompts([{"prompt": [USER]}])
    assert "26 Jul 2024" in texts.tokens.decode(row.prompt)


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{{ raise_exception('roles must alternate') }}", "TemplateError: roles must alternate"),
        ("{{ messages.__class__.__mro__ }}", "SecurityError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{% if %}", "TemplateSyntaxError"),
        ("{{ no_clock('%d') }}", "UndefinedError"),
        ("{{ 1 / 0 }}", "ZeroDivisionError: division by zero"),
        ("{{ '{}'.format() }}", "IndexError"),
        ("{{ 2.0 ** 9999 }}", "OverflowError"),
    ],
)
def test_a_template_that_fails_or_reaches_out_is_refused(template: str, says: str) -> None:
    with pytest.raises(DataError, match=rf"the chat template fails: {says}.*data\.chat_template"):
        ChatTemplate(template, {}, {}).prompt([USER])


def test_the_template_of_a_setting_comes_first_then_the_file_then_the_configuration(tmp_path: Path) -> None:
    folder, own = chat_tokenizer(tmp_path, None), tmp_path / "own.jinja"
    assert find_template(folder, None, {}) is None
    config = json.loads((folder / "tokenizer_config.json").read_text())
    listed = [{"name": "tools", "template": "x"}, {"name": "default", "template": "listed"}]
    for named in ("in the configuration", listed):
        (folder / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": named}))
        found = find_template(folder, None, {})
        assert found is not None and found.prompt([USER]) == (named if isinstance(named, str) else "listed")
    (folder / "chat_template.jinja").write_text("in a file")
    own.write_text("of the setting {{ word }}")
    for file, said in ((None, "in a file"), (own, "of the setting w")):
        found = find_template(folder, file, {"word": "w"})
        assert found is not None and found.prompt([USER]) == said
    own.unlink()
    with pytest.raises(DataError, match=re.escape(f"cannot read {own}")):
        find_template(folder, own, {})


def test_chats_without_a_template_are_refused_with_the_setting(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"tokenizer has no chat template. Submit a new run with"):
        texts_of(chat_tokenizer(tmp_path, None)).prompts([{"prompt": [USER]}])


def test_chats_are_read_without_torch(tmp_path: Path) -> None:
    folder = chat_tokenizer(tmp_path, CHATML)
    code = f"""
import sys
from pathlib import Path
from hpcrl.data.chat import find_template
assert "transformers" not in sys.modules
print(find_template(Path({str(folder)!r}), None, {{}}).prompt([{USER!r}]))
assert "transformers" in sys.modules and "torch" not in sys.modules
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0 and "assistant\n" in ran.stdout, ran.stderr
