"""docs/export.md: its commands do what it says."""

import io
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.experiments import ppo_values, write_config, write_inputs, write_model
from support.templates import chat_tokenizer

from hpcrl.cli.main import main
from hpcrl.errors import ExitCode

PAGE = (Path(__file__).parent.parent / "docs" / "export.md").read_text(encoding="utf-8")
COMMANDS = [shlex.split(line, comments=True)[1:] for line in PAGE.splitlines() if line.startswith("hpcrl ")]
TEMPLATE = "{% for m in messages %}{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"


def commands(name: str) -> Iterator[list[str]]:
    """Where they name a run, ours."""
    for words in COMMANDS:
        if words[0] == name:
            yield [re.sub(r"^RUN(?=@|$)", "run", word) for word in words]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four steps that saves every second, a prompt, and a model that chats, as that of the run does not."""
    folder = tmp_path_factory.mktemp("page")
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.chdir(folder)
    write_inputs(folder)
    (folder / "held_out.jsonl").write_text((folder / "rows.jsonl").read_text())
    (folder / "reward.py").write_text("def ones(prompt, response, row):\n    return float('1' in response)\n")
    control = {"steps": 4, "checkpoint": {"steps": 2}}
    values = ppo_values() | {"cluster": {"type": "local"}, "control": control}
    values["data"] = {**values["data"], "evaluate": "held_out.jsonl"}
    write_config(folder / "ppo.yaml", values)
    assert main(["submit", "ppo.yaml", "--run-dir", "run"]) == ExitCode.DONE
    monkeypatch.undo()
    (folder / "prompt.txt").write_text("1+1=\n")
    write_model(folder / "talker", vocab_size=320, max_position_embeddings=512)
    chat_tokenizer(folder / "talker", TEMPLATE)
    return folder


def test_the_commands_do_what_the_page_says(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hello\n/exit\n"))
    listed, newest, older, other = commands("export")
    assert main(listed) == ExitCode.DONE
    assert "no checkpoint was due (control.checkpoint)" in capsys.readouterr().out
    assert main(newest) == ExitCode.DONE
    assert all("step-00000004" in line for line in capsys.readouterr().out.splitlines())
    assert main(older) == ExitCode.DONE and Path("tuned/model.safetensors").is_file()
    assert main(other) == ExitCode.DONE
    assert capsys.readouterr().out.splitlines()[-1].endswith("run/export/actor/step-00000004.bf16")
    chats = [["talker" if word == "run" else word for word in words] for words in commands("chat")]
    for words in [*commands("generate"), *chats]:
        assert main([*words, "--max-new-tokens", "4"]) == ExitCode.DONE, words
    here = ["--max-new-tokens", "4", "--cluster.type", "local", "--cluster.device", "cpu"]
    for words in commands("eval"):
        capsys.readouterr()
        assert main([*words, *here]) == ExitCode.DONE, words
        assert "Intervals: 95 %, normal approximation over prompts." in capsys.readouterr().out


def test_the_page_has_every_command_of_its_kind() -> None:
    assert {words[0] for words in COMMANDS} == {"export", "generate", "chat", "eval"}


def test_every_file_that_is_linked_to_exists() -> None:
    targets = re.findall(r"\]\(([^)#:]+)", PAGE)
    assert [name for name in targets if not (Path(__file__).parent.parent / "docs" / name).is_file()] == []
