"""docs/lora.md: its commands do what it says, and what it says is refused is refused in these words."""

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml
from support.experiments import ppo_values, write_config, write_inputs

from hpcrl.cli.main import main
from hpcrl.errors import ExitCode

PAGE = (Path(__file__).parent.parent / "docs" / "lora.md").read_text(encoding="utf-8")
COMMANDS = [shlex.split(line, comments=True)[1:] for line in PAGE.splitlines() if line.startswith("hpcrl ")]
(REFUSED,) = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the commands are typed."""
    write_inputs(tmp_path)
    values = ppo_values() | {"cluster": {"type": "local", "workers_per_node": 2}, "control": {"steps": 2}}
    write_config(tmp_path / "ppo.yaml", values)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "140")
    return tmp_path


def test_a_run_is_planned_submitted_and_exported_as_the_page_says(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, submit, export = COMMANDS
    assert main(plan) == ExitCode.DONE
    said = capsys.readouterr()
    assert said.err == ""
    assert "reference, which is actor without its adapters" in said.out
    assert main([*submit, "--run-dir", "run"]) == ExitCode.DONE
    assert main(["run" if word == "RUN" else word for word in export]) == ExitCode.DONE
    assert {"model.safetensors", "config.json", "adapter"} <= {path.name for path in Path("tuned").iterdir()}
    fields = json.loads(Path("tuned/adapter/adapter_config.json").read_text())
    assert (fields["r"], fields["lora_alpha"]) == (16, 32.0)
    begun = ["--actor.lora.path", str(here / "tuned" / "adapter"), *submit[2:]]
    assert main(["plan", "ppo.yaml", *begun]) == ExitCode.DONE


def test_the_settings_of_the_page_are_taken(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    values = ppo_values() | {"cluster": {"type": "local"}} | yaml.safe_load(block)
    values["actor"] |= {"path": "model"}
    write_config(here / "sample.yaml", values)
    assert main(["plan", "sample.yaml"]) == ExitCode.DONE
    assert capsys.readouterr().err == ""
    values["reference"] |= {"layout": "d1"}
    write_config(here / "sample.yaml", values)
    assert main(["plan", "sample.yaml"]) == ExitCode.CONFIGURATION
    assert "reference.layout is of a model of its own" in capsys.readouterr().err


def test_what_is_refused_is_refused_in_these_words(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = ["--actor.lora.rank", "2", "--actor.lora.targets", "[qq_proj]"]
    wrong += ["--critic.lora.rank", "2", "--critic.backend", "zero1"]
    assert main(["submit", "ppo.yaml", *wrong, "--run-dir", "refused"]) == ExitCode.CONFIGURATION
    said = capsys.readouterr().err
    assert sorted(said.splitlines()) == sorted(REFUSED.splitlines())
    assert not Path("refused").exists()
