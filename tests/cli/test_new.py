"""`hpcrl new` writes what can be planned at once."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from support.experiments import write_inputs

from hpcrl.cli.main import main
from hpcrl.config.fields import settings
from hpcrl.config.yaml_file import read_yaml
from hpcrl.errors import ExitCode
from hpcrl.models.pretrained import read_config, write_random_pretrained
from hpcrl.plugins import names
from hpcrl.recipes.algorithm import ALGORITHMS, algorithm_of

MINE = ("--model", "model", "--data", "rows.jsonl", "--reward", "gsm8k")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    write_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_inputs_for(algorithm):
    """rows.jsonl, and model/config.json, where this algorithm asks for others than most do."""
    if algorithm == "evaluate_pairs":
        config = read_config(Path("model"))
        Path("model/model.safetensors").unlink()
        write_random_pretrained("model", replace(config, head="reward"), seed=1)
    if "chosen" in algorithm_of(algorithm).rows.fields:
        row = {"prompt": "1+1=", "chosen": "#### 2", "rejected": "#### 3"}
        Path("rows.jsonl").write_text(f"{json.dumps(row)}\n" * 8)


@pytest.mark.parametrize("algorithm", names(ALGORITHMS))
def test_what_is_written_can_be_planned(folder, algorithm, capsys):
    write_inputs_for(algorithm)
    assert main(["new", "mine.yaml", "--algorithm", algorithm, *MINE]) == ExitCode.DONE
    assert "hpcrl plan mine.yaml" in capsys.readouterr().out
    assert main(["plan", "mine.yaml"]) == ExitCode.DONE, capsys.readouterr().err
    text = Path("mine.yaml").read_text()
    for setting in settings(algorithm_of(algorithm).experiment):
        assert re.search(rf"^ *#?{setting.key.rpartition('.')[2]}:", text, re.MULTILINE)
        assert " ".join(setting.help.split()[:8]) in " ".join(re.sub("^ *# ", "", text, flags=re.MULTILINE).split())


@pytest.mark.parametrize("rows", [1, 3])
def test_few_rows_are_as_many_minibatches_at_most(folder, rows, capsys):
    Path("rows.jsonl").write_text(f"{json.dumps({'prompt': '1+1=', 'answer': '#### 2'})}\n" * rows)
    assert main(["new", "mine.yaml", *MINE]) == ExitCode.DONE, capsys.readouterr().err
    written = read_yaml(Path("mine.yaml"))
    assert written["data"]["batch_size"] == written["ppo"]["minibatches"] == rows
    assert main(["plan", "mine.yaml"]) == ExitCode.DONE, capsys.readouterr().err


def test_a_misspelt_function_is_refused_and_nothing_is_written(folder, capsys):
    Path("reward.py").write_text("def score(prompt, response, row):\n    return 1.0\n")
    mine = ["new", "mine.yaml", "--model", "model", "--data", "rows.jsonl", "--reward"]
    assert main([*mine, "reward.py:scor"]) == ExitCode.CONFIGURATION
    assert "there is no function scor in that file; it has score." in capsys.readouterr().err
    assert not Path("mine.yaml").exists()
    assert main([*mine, "reward.py:score"]) == ExitCode.DONE


def test_data_may_be_a_folder_of_files(folder, capsys):
    rows = Path("rows")
    rows.mkdir()
    for name in ("a.jsonl", "b.jsonl"):
        lines = (json.dumps({"prompt": f"{name} {i}+1=", "answer": str(i + 1)}) for i in range(20))
        (rows / name).write_text("\n".join(lines) + "\n")
    assert main(["new", "mine.yaml", "--model", "model", "--data", "rows"]) == ExitCode.DONE
    assert main(["plan", "mine.yaml"]) == ExitCode.DONE, capsys.readouterr().err
    assert read_yaml(Path("mine.yaml"))["data"]["batch_size"] == 32


@pytest.mark.parametrize("algorithm", names(ALGORITHMS))
def test_what_is_a_comment_is_a_default(folder, algorithm):
    """With every # that has no space behind it removed, and nothing else, the configuration is the same."""
    write_inputs_for(algorithm)
    main(["new", "mine.yaml", "--algorithm", algorithm, *MINE])
    lines = Path("mine.yaml").read_text().splitlines()
    Path("all.yaml").write_text("\n".join(re.sub(r"^( *)#(?! )", r"\1", line) for line in lines))
    chosen, whole = read_yaml(Path("mine.yaml")), read_yaml(Path("all.yaml"))
    assert main(["plan", "all.yaml"]) == ExitCode.DONE
    assert chosen["control"] == {"epochs": 1} and whole["control"]["steps"] is None


def test_a_default_is_changed_by_what_the_first_lines_say(folder):
    main(["new", "mine.yaml", *MINE])
    text = Path("mine.yaml").read_text()
    for line in ("seed: 1", "steps: null", "cluster:", "nodes: 1"):
        assert f"#{line}\n" in text
        text = text.replace(f"#{line}\n", f"{line.replace('1', '2').replace('null', '3')}\n", 1)
    Path("mine.yaml").write_text(text)
    values = read_yaml(Path("mine.yaml"))
    assert (values["seed"], values["control"]["steps"], values["cluster"]) == (2, 3, {"nodes": 2})


def test_what_cannot_be_planned_is_not_left_so_that_the_corrected_command_works(folder, capsys):
    assert main(["new", "mine.yaml", *MINE, "--model", "modle"]) == ExitCode.CONFIGURATION
    assert "actor.path = " in (said := capsys.readouterr()).err and "wrote" not in said.out
    assert main(["new", "mine.yaml", *MINE]) == ExitCode.DONE


def test_a_file_that_is_there_is_left_alone(folder, capsys):
    Path("mine.yaml").write_text("mine")
    assert main(["new", "mine.yaml", *MINE]) == ExitCode.CONFIGURATION
    assert "mine.yaml cannot be written: File exists" in capsys.readouterr().err
    assert Path("mine.yaml").read_text() == "mine"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "algorithm ppo needs --data"),
        (("--data", "rows.jsonl"), "algorithm ppo needs --model"),
        (("--model", "model", "--data", "none.jsonl"), "--data none.jsonl cannot be read: No such file"),
        (("--algorithm", "pppo"), "algorithm = pppo must be one of"),
    ],
)
def test_what_is_missing_is_named_and_nothing_is_written(folder, capsys, words, message):
    assert main(["new", "mine.yaml", *words]) == ExitCode.CONFIGURATION
    assert message in capsys.readouterr().err
    assert not Path("mine.yaml").exists()


def test_what_is_written_after_its_advice_is_followed(folder, capsys):
    """Give it; give a file .jsonl or .parquet, or a folder of them; give another file."""
    Path("there.yaml").touch()
    words = ["new", "there.yaml", "--model", "model"]
    for advice, follow in (
        ("Give it, or see hpcrl new --help.", ["--data", "none.jsonl"]),
        ("Give a file .jsonl or .parquet, or a folder of them.", ["--data", "rows.jsonl"]),
        ("Give another file.", ["mine.yaml"]),
    ):
        assert main(words) == ExitCode.CONFIGURATION
        assert advice in capsys.readouterr().err
        words = [words[0], *follow, *words[2:]] if follow == ["mine.yaml"] else [*words, *follow]
    assert main(words) == ExitCode.DONE
