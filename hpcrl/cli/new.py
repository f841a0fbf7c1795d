"""`hpcrl new FILE`: write a configuration for the user's model, data and reward, with a comment on every setting."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

from hpcrl.cli.arguments import asks_for_help, command_parser, parse
from hpcrl.cli.settings import read_experiment
from hpcrl.config.cluster import ClusterConfig
from hpcrl.config.data import DataConfig
from hpcrl.config.fields import Setting, description, sections, settings
from hpcrl.config.generation import GenerationConfig
from hpcrl.config.model import ModelConfig
from hpcrl.config.reward import RewardConfig
from hpcrl.config.yaml_file import in_yaml
from hpcrl.errors import ConfigurationError, ExitCode, HpcrlError
from hpcrl.families.reader import read_config
from hpcrl.plugins import names
from hpcrl.recipes.algorithm import ALGORITHMS, algorithm_of
from hpcrl.recipes.policy import PolicyConfig

BATCH_ROWS = 32
"""Rows of a step; fewer where the data is a .jsonl file that has not so many."""
WIDTH = 118
HEAD = """What differs from the defaults. A line like #seed: 1, with no space behind the #, shows a default. To change
it, remove the # there and before the names of the sections that it is in.
Start with `hpcrl plan {file}`, then `hpcrl submit {file}`."""


def run(words: Sequence[str]) -> int:
    known = ", ".join(names(ALGORITHMS))
    parser = command_parser("new", "Write a configuration that can be planned at once, every setting with a comment.")
    parser.add_argument("file", type=str, help="the YAML file to write; it must not exist yet")
    parser.add_argument("--algorithm", type=str, default="ppo", help=f"{known}, or file.py:NAME")
    parser.add_argument("--model", type=str | None, default=None, help="a folder in Hugging Face format, for all roles")
    parser.add_argument("--data", type=str | None, default=None, help="rows: a file .jsonl or .parquet, or a folder")
    parser.add_argument(
        "--reward", type=str, default="exact", help="exact, gsm8k, math, or your function as file.py:NAME"
    )
    if asks_for_help(words):
        print(parser.format_help())
        return int(ExitCode.DONE)
    given = parse(parser, words)
    file = Path(given.file)
    text = configuration(given.file, given.algorithm, _chosen(given))
    try:
        with file.open("x", encoding="utf-8") as out:
            out.write(text)
    except OSError as error:
        raise ConfigurationError([f"{file} cannot be written: {error.strerror}."], "Give another file.") from None
    try:
        read_experiment(given.file, ())
    except HpcrlError:
        # Whoever corrects the command gives the same file again.
        file.unlink()
        raise
    print(f"wrote {file}\n  hpcrl plan {file}\n  hpcrl submit {file}")
    return int(ExitCode.DONE)


def _chosen(given: Any) -> dict[str, Any]:
    """Setting → value, of those that the algorithm has and the user's model, data and reward ask for."""
    config = algorithm_of(given.algorithm).experiment
    chosen: dict[str, Any] = {"algorithm": given.algorithm, "control.epochs": 1}
    fewer: dict[str, int] = {}
    for setting in settings(config):
        match setting.section, setting.key.rpartition(".")[2]:
            case section, "path" if issubclass(section, ModelConfig) and setting.required:
                chosen[setting.key] = _needed(given.model, "--model", given.algorithm)
            case section, "function" if issubclass(section, RewardConfig):
                chosen[setting.key] = given.reward
            case section, "train" if issubclass(section, DataConfig):
                chosen |= _of_data(_needed(given.data, "--data", given.algorithm), setting.key.removesuffix("train"))
            case section, "minibatches" if issubclass(section, PolicyConfig):
                fewer[setting.key] = setting.default
            case section, "workers_per_node" if issubclass(section, ClusterConfig):
                fewer[setting.key] = setting.default
            case section, "max_new_tokens" if issubclass(section, GenerationConfig):
                chosen |= _lengths(given.model, setting)
    rows = min((value for key, value in chosen.items() if key.endswith("batch_size")), default=BATCH_ROWS)
    return chosen | {key: rows for key, default in fewer.items() if default > rows}


def _needed(value: str | None, option: str, algorithm: str) -> str:
    if value is None:
        raise ConfigurationError([f"algorithm {algorithm} needs {option}."], "Give it, or see hpcrl new --help.")
    return value


def _of_data(path: str, prefix: str) -> dict[str, Any]:
    rows = BATCH_ROWS
    try:
        if Path(path).stat() and path.endswith(".jsonl"):
            with Path(path).open("rb") as file:
                rows = sum(1 for _ in islice(filter(bytes.strip, file), BATCH_ROWS))
    except OSError as error:
        raise ConfigurationError(
            [f"--data {path} cannot be read: {error.strerror}."], "Give a file .jsonl or .parquet, or a folder of them."
        ) from None
    return {f"{prefix}train": path, f"{prefix}batch_size": max(1, rows)}


def _lengths(model: str | None, new: Setting) -> dict[str, Any]:
    """As many tokens as the default has, if the model has twice the positions; else half of the model's."""
    if model is None or not (Path(model) / "config.json").is_file():
        return {}
    tokens = min(new.default, read_config(Path(model), kind="auto").max_positions // 2)
    return {new.key: tokens, "data.max_prompt_tokens": tokens}


def configuration(file: str, algorithm: str, chosen: Mapping[str, Any]) -> str:
    """The text: every setting in the order of the sections, those that are not chosen as comments."""
    config = algorithm_of(algorithm).experiment
    titles = {name: description(owner, name) for name, owner in sections(config)}
    lines = [*_comment(HEAD.format(file=file), ""), ""]
    open_: list[str] = []
    for setting in settings(config):
        *path, _ = setting.key.split(".")
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(open_, path, strict=False)))
        for depth in range(shared, len(path)):
            name = ".".join(path[: depth + 1])
            active = any(key.startswith(f"{name}.") for key in chosen)
            lines += [] if depth else [""]
            lines += [*_comment(titles[name], "  " * depth), f"{'  ' * depth}{'' if active else '#'}{path[depth]}:"]
        open_ = path
        lines += _setting(setting, chosen, "  " * len(path))
    return "\n".join(lines) + "\n"


def _setting(setting: Setting, chosen: Mapping[str, Any], indent: str) -> Iterator[str]:
    name = setting.key.rpartition(".")[2]
    yield from _comment(setting.help, indent)
    if setting.key in chosen:
        yield f"{indent}{name}: {in_yaml(chosen[setting.key])}"
    elif setting.required:
        yield f"{indent}{name}:  # REQUIRED: {setting.expectation}"
    else:
        default = setting.default if setting.like is None else chosen[setting.like]
        yield f"{indent}#{name}: {in_yaml(default)}"


def _comment(text: str, indent: str) -> list[str]:
    return [f"{indent}# {line}" for part in text.splitlines() for line in textwrap.wrap(part, WIDTH - len(indent))]
