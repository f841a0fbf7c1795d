"""A command's own words are told from settings."""

import re
from pathlib import Path

import pytest
from support.experiments import KNOWN
from support.made_run import MadeRun

from hpcrl.cli.arguments import command_parser, parse, separate
from hpcrl.cli.main import COMMANDS, main
from hpcrl.cli.settings import help_with_settings
from hpcrl.config.fields import settings
from hpcrl.errors import ConfigurationError, ExitCode
from hpcrl.recipes.algorithm import algorithm_of

OWN = ("--detach", "--run-dir")


@pytest.mark.parametrize(
    ("words", "mine", "overrides"),
    [
        (["ppo.yaml"], ["ppo.yaml"], []),
        (["ppo.yaml", "--seed", "3"], ["ppo.yaml"], ["seed=3"]),
        (["--seed=3", "ppo.yaml", "--detach"], ["ppo.yaml", "--detach"], ["seed=3"]),
        (["a", "--run-dir", "b", "--actor.path", "c"], ["a", "--run-dir", "b"], ["actor.path=c"]),
        (["a", "--nodes", "4", "--cluster", "local"], ["a"], ["cluster.nodes=4", "cluster.type=local"]),
        (["a", "--ppo.reward_bias", "-1"], ["a"], ["ppo.reward_bias=-1"]),
        (["a", "--reward.kwargs", "{k: a=b}"], ["a"], ["reward.kwargs={k: a=b}"]),
        (["a", "--name="], ["a"], ["name="]),
        (["a", "--seed"], ["a"], ["seed"]),
        (["a", "--seed", "--detach"], ["a", "--detach"], ["seed"]),
        (["--help"], ["--help"], []),
    ],
)
def test_every_option_that_is_not_the_commands_is_a_setting(words, mine, overrides):
    assert separate(words, OWN) == (mine, overrides)


@pytest.mark.parametrize(("word", "near"), [("--detatch", "--detach"), ("--run_dir", "--run-dir")])
def test_a_misspelt_option_does_not_swallow_the_next_word(word, near):
    with pytest.raises(ConfigurationError, match=f"{word} is not an option. The nearest is {near}"):
        separate([word, "ppo.yaml"], OWN)


def test_a_setting_without_dashes_is_refused_with_an_example():
    parser = command_parser("submit", "Start a run.")
    with pytest.raises(ConfigurationError, match=r"seed=3; settings begin with two dashes, as in --seed 3. See hpcrl"):
        parse(parser, ["seed=3"])


def test_what_the_parser_refuses_is_one_line_with_a_hint():
    parser = command_parser("submit", "Start a run.")
    parser.add_argument("config", type=str)
    parser.add_argument("--step", type=int, required=True)
    with pytest.raises(ConfigurationError) as raised:
        parse(parser, [])
    (problem,) = raised.value.problems
    assert "are required: CONFIG, --step." in problem
    assert problem.endswith("See hpcrl submit --help.")
    assert "\n" not in problem


@pytest.mark.parametrize("algorithm", KNOWN)
def test_help_lists_every_setting_of_the_named_algorithm(algorithm):
    text = help_with_settings(command_parser("submit", "Start a run."), [], [f"algorithm={algorithm}"])
    keys = {word.strip() for line in text.splitlines() if line.startswith("  --") for word in line.split()[:1]}
    assert {f"--{setting.key}" for setting in settings(algorithm_of(algorithm).experiment)} <= keys


def test_help_is_about_the_algorithm_of_the_file(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("algorithm: toy\n")
    assert "--toy.width" in help_with_settings(command_parser("plan", "Plan."), [str(path)], [])


SHOWS_OTHERS = re.compile(r"`?hpcrl (\w+ --algorithm (\w+) --help)\b")


@pytest.mark.parametrize("words", [["--help"], ["submit", "--help"], ["search", "--help"], ["resume", "--help"]])
def test_help_shows_how_to_get_the_settings_of_another_algorithm(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == ExitCode.DONE
    (shown,) = SHOWS_OTHERS.finditer(capsys.readouterr().out)
    assert main(shown[1].split()) == ExitCode.DONE
    said = capsys.readouterr().out
    assert f"of algorithm {shown[2]}" in said
    (another,) = SHOWS_OTHERS.finditer(said)
    assert another[2] != shown[2]


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "template"])
def test_help_is_in_plain_words(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == ExitCode.DONE
    said = capsys.readouterr().out
    assert said.startswith(f"usage: hpcrl {command}")
    assert not re.search(r"type: |str \||<class|required|default: (null|False)", said), said


def test_help_on_changes_is_that_of_the_runs_algorithm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    MadeRun(tmp_path / "runs" / "first")
    monkeypatch.chdir(tmp_path)
    for words in (["resume", "first", "--help"], ["fork", "--help", "runs/first"]):
        assert main(words) == ExitCode.DONE
        said = capsys.readouterr().out
        assert "What may change in a run of algorithm ppo." in said and "--ppo.clip" in said
    assert main(["resume", "none", "--help"]) == ExitCode.DONE
    assert "What may change in a run of algorithm dpo." in capsys.readouterr().out
    assert main(["resume", "first", "--algorithm", "grpo", "--help"]) == ExitCode.DONE
    assert "What may change in a run of algorithm grpo." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["samples", "RUN", "--limit", "few"], "--limit few is not a whole number. See hpcrl samples --help."),
        (["eval", "RUN", "--max-new-tokens", "1.5"], "--max-new-tokens 1.5 is not a whole number."),
        (["generate", "RUN", "--top-p", "x"], "--top-p x is not a number."),
        (["fork"], "the following arguments are required: RUN, --step."),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_by_its_option(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == ExitCode.CONFIGURATION
    assert says in capsys.readouterr().err
