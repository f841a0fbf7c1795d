"""docs/first-run.md: its commands, typed one after another by somebody who has what the page asks for."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.hosts import LETTERS, write_model

from hpcrl.cli.main import main
from hpcrl.config.fields import settings
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ExitCode
from hpcrl.inspect.reader import merged_metrics
from hpcrl.recipes.algorithm import CATALOGUE

DOCS = Path(__file__).parent.parent / "docs"
PAGE = (DOCS / "first-run.md").read_text(encoding="utf-8")
COMMANDS = [shlex.split(line)[1:] for line in PAGE.splitlines() if line.startswith("hpcrl ")]
(REWARD,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
(ROW,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    write_model(tmp_path / "models" / "base", LETTERS, max_positions=64)
    (tmp_path / "data").mkdir()
    rows = [json.loads(ROW)] + [{"prompt": f"{i}+{j}=", "answer": str(i + j)} for i in range(4) for j in range(4)]
    for name, part in (("train", rows[:12]), ("held_out", rows[12:])):
        (tmp_path / "data" / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    (tmp_path / "reward.py").write_text("\n".join(line.removeprefix("  ") for line in REWARD.splitlines()))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    yield tmp_path


def test_its_commands_lead_to_a_trained_model(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    said = {}
    for words in COMMANDS:
        assert main(words) == ExitCode.DONE, (words, capfd.readouterr().err)
        said[" ".join(words)] = capfd.readouterr().out
    run = RunDirectory.open(here / "runs" / "first")
    assert [row["step"] for row in merged_metrics(run)] == list(range(9))
    assert "step 6 of 6" in said["status first"]
    assert "step 8 was the last" in said["inspect first"]
    assert "No attempt ended early." in said["inspect first why"]
    assert (here / "models" / "six" / "config.json").is_file() and (run.root / "curves.png").is_file()
    assert said["generate first 3+4= --greedy"].strip()
    assert "first@8 − first@6" in said["eval first@6 first@8 --out evals"]


@pytest.mark.parametrize("page", ["first-run.md", "gpu.md", "inspect.md", "export.md", "samples.md"])
def test_every_page_that_a_page_names_exists(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    named = [name for name in re.findall(r"\]\(([^)#]+)", text) if "://" not in name]
    assert [name for name in named if not (DOCS / name).exists()] == []


def test_every_setting_of_the_page_on_gpus_exists() -> None:
    known = {it.key for name in CATALOGUE.names() for it in settings(CATALOGUE.experiment(name))}
    text = (DOCS / "gpu.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:cluster|generation|control|<role>)\.[a-z_.]+)", text))
    assert len(named) > 10 and {name.replace("<role>", "actor") for name in named} <= known
