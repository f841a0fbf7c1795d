"""A command's own words are told from settings."""

import pytest
from support.experiments import KNOWN

from hpcrl.cli.arguments import command_parser, parse, separate
from hpcrl.cli.settings import help_with_settings
from hpcrl.config.fields import settings
from hpcrl.errors import ConfigurationError
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
    assert "are required: config, --step." in problem
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
