"""What the README shows works as it is shown."""

import re
import shlex
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from support.experiments import write_inputs, write_model

from hpcrl.cli.main import COMMANDS, main
from hpcrl.config.yaml_file import read_yaml
from hpcrl.errors import ExitCode

README = Path(__file__).parents[2] / "README.md"


def blocks(language: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [text for name, text in found if name == language]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The README's ppo.yaml, over a model and rows that stand for those it names."""
    write_inputs(tmp_path / "inputs")
    write_model(tmp_path / "inputs/model", max_position_embeddings=1024)
    monkeypatch.chdir(tmp_path)
    (text,) = blocks("yaml")
    Path("ppo.yaml").write_text(text)
    values = read_yaml(Path("ppo.yaml"))
    for role in ("actor", "critic"):
        place(values[role]["path"], Path("inputs/model"))
    for name in ("train", "evaluate"):
        place(values["data"][name], Path("inputs/rows.jsonl"))
    return tmp_path


def place(name: str, source: Path) -> None:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    if not Path(name).exists():
        Path(name).symlink_to(source.resolve())


def test_the_configuration_can_be_planned_as_it_stands(folder, capsys):
    assert main(["plan", "ppo.yaml", "--cluster", "local"]) == ExitCode.DONE
    said = capsys.readouterr()
    assert "critic_train" in said.out and said.err == ""


def test_the_reward_function_is_one(folder, capsys):
    (text,) = blocks("python")
    Path("reward.py").write_text(text)
    words = ["--cluster", "local", "--reward.function", "reward.py:score"]
    assert main(["plan", "ppo.yaml", *words]) == ExitCode.DONE, capsys.readouterr().err


def test_the_graph_is_that_of_the_configuration(folder, capsys):
    """If this fails, draw it again: hpcrl draw ppo.yaml --out docs/ppo-graph.svg, with the README's ppo.yaml."""
    assert main(["draw", "ppo.yaml", "--out", "graph.svg"]) == ExitCode.DONE
    drawn, shown = (ElementTree.parse(path).getroot() for path in ("graph.svg", README.parent / "docs/ppo-graph.svg"))
    assert sorted(drawn.itertext()) == sorted(shown.itertext())


def test_the_reported_mistakes_are_those_that_are_reported(folder, capsys):
    text = Path("ppo.yaml").read_text().replace("actor: {", "actor: {optimizer: {learning_rate: 1e-6}, ")
    Path("ppo.yaml").write_text(text.replace("max_new_tokens: 512", "max_new_tokens: 512, top_p: 0"))
    assert main(["submit", "ppo.yaml", "--nodes", "two"]) == ExitCode.CONFIGURATION
    (shown,) = (block for block in blocks("") if block.startswith("hpcrl: "))
    assert capsys.readouterr().err == shown


def test_every_command_is_shown_and_every_shown_command_exists():
    lines = [shlex.split(line, comments=True) for block in blocks("") for line in block.splitlines()]
    shown = [words for words in lines if words[:1] == ["hpcrl"]]
    assert {words[1] for words in shown} == set(COMMANDS)


def test_every_file_that_is_linked_to_exists():
    targets = re.findall(r"\]\(([^)#:]+)\)", README.read_text(encoding="utf-8"))
    assert [target for target in targets if not (README.parent / target).is_file()] == []
