"""docs/data.md: its settings open the data that the page describes."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.experiments import load_config, write_config
from support.rows import open_datasets, open_order
from support.templates import MARKED, chat_tokenizer

PAGE = (Path(__file__).parent.parent / "docs" / "data.md").read_text(encoding="utf-8")
SETTINGS = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)]
(CODE,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)

QUESTIONS = [{"question": f"{i} + {i} = ", "solution": str(2 * i)} for i in range(600)]
USER, ASSISTANT = ({"role": role, "content": role} for role in ("user", "assistant"))
FILES: dict[str, Any] = {
    "questions.jsonl": QUESTIONS,
    "more.jsonl": QUESTIONS,
    "exams.jsonl": [{"text": "1 + 1?", "options": ["1", "2"], "right": 1}] * 6,
    "chats.jsonl": [{"messages": [USER, ASSISTANT, USER, ASSISTANT]}] * 6,
}


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: ", ".join(settings.get("data", settings)))
def test_settings_of_the_page_can_be_read_and_open_rows(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, rows in FILES.items():
        Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("exams.py").write_text(CODE)
    Path("chat.jinja").write_text("{{ tone }}" + MARKED)
    Path("plain.jsonl").write_text('{"prompt": "1 + 1", "answer": "2"}\n' * 4)
    chat_tokenizer(tmp_path / "model", None)
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "model" / "model.safetensors").touch()
    data = {"tokenizer": "model", "batch_size": 4} | settings.get("data", {"train": "plain.jsonl"})
    values = {"control": {"steps": 2}} | settings | {"algorithm": "sft", "actor": {"path": "model"}, "data": data}
    experiment = load_config(write_config(tmp_path / "c.yaml", values), checks=())
    (tmp_path / "model" / "config.json").unlink()
    training = open_datasets(experiment)["train"]
    order = open_order(experiment, training)
    batch = training.rows(order.batch_at(order.start).ids)
    assert len(batch.ids) == 4 or sum(training.lengths(batch.ids)) > 0.9 * data["batch_tokens"]
    assert all(length > 1 for length in batch.length("answers"))
    if "learn" in data:
        assert not batch.data["answer_mask"].all()


def test_the_page_lists_every_form_of_a_row() -> None:
    from hpcrl.data.rows.lines import ANSWERED, JUDGED, PROMPTED, needed
    from hpcrl.data.rows.pairs import PAIRS

    for columns in (*map(needed, (*PROMPTED, *JUDGED, *ANSWERED)), PAIRS.fields):
        assert any(
            set(columns) <= set(re.findall(r"`(\w+)`", line.split("|")[1])) for line in PAGE.splitlines() if "|" in line
        ), columns
