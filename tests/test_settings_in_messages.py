"""A message of a run that has begun tells its user to change what `resume` lets them change, or names a new run.

What says something before the start is left out: there every setting is free. Where `resume` checks settings as
`submit` does, the one that is wrong is among those that were just given, and can be given otherwise.
"""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from support.sources import texts_of

from hpcrl.config.fields import ChangeClass, settings
from hpcrl.recipes.algorithm import CATALOGUE

PACKAGE = Path(__file__).parent.parent / "hpcrl"
BEFORE_THE_START = ("cli", "config", "doctor", "families", "placement", "plugins.py", "recipes", "launch/preflight.py")
"""Checks of a configuration and of a site, and what is tried before anything is made."""
TELLS = re.compile(
    r"\b(set|raise|lower|widen|change|correct|lengthen|shorten|increase|decrease|make it)\b", re.IGNORECASE
)
WAYS_OUT = re.compile(r"hpcrl fork|new run|submit anew|--accept-changed", re.IGNORECASE)
UNNAMED = re.compile(r"\b(set|lower) \{\}(?!\.[a-z])", re.IGNORECASE)
NAMED = re.compile(r"(?:\{\}|[a-z_]+)(?:\.[a-z_]+)+|\{\}|[a-z]+(?:_[a-z]+)+")


@cache
def classes() -> dict[str, ChangeClass | None]:
    """Of every setting of every algorithm."""
    types = map(CATALOGUE.experiment, CATALOGUE.names())
    return {setting.key: setting.change for experiment in types for setting in settings(experiment)}


def meant(word: str, keys: dict[str, ChangeClass | None]) -> list[str]:
    """The settings that a word of a message may mean: its own, those of any role, or those that end so."""
    if word == "{}":
        return []
    tail = word.removeprefix("{}")
    return [key for key in keys if key == word or (tail != word and key.endswith(tail)) or key.endswith(f".{word}")]


def sentences(text: str) -> Iterator[str]:
    yield from re.split(r"(?<=[.;:])\s+", text)


def told(path: Path) -> Iterator[str]:
    """The sentences of a file that tell somebody to change something."""
    for text in texts_of(path):
        ways_out = WAYS_OUT.search(text)
        yield from (sentence for sentence in sentences(text) if TELLS.search(sentence) and not ways_out)


def of_a_run() -> list[Path]:
    places = (path.relative_to(PACKAGE) for path in sorted(PACKAGE.rglob("*.py")))
    return [path for path in places if not any(path.is_relative_to(place) for place in BEFORE_THE_START)]


def refused(path: Path) -> list[str]:
    """What `path` tells to change and `resume` refuses, or may refuse: a setting whose name is not in the text."""
    keys = classes()
    unnamed = [f"{{}}: {sentence}" for sentence in told(path) if UNNAMED.search(sentence)]
    return unnamed + [
        f"{key}: {sentence}"
        for sentence in told(path)
        for word in NAMED.findall(sentence)
        for key in meant(word, keys)
        if keys[key] in (None, ChangeClass.IDENTITY)
    ]


@pytest.mark.parametrize("path", of_a_run(), ids=str)
def test_what_a_run_tells_to_change_is_what_resume_lets_change(path: Path) -> None:
    assert refused(PACKAGE / path) == []


def test_the_settings_that_messages_name_are_found() -> None:
    """The scan sees messages that are known to tell what to change, so that it cannot pass by seeing none."""
    keys, found = classes(), set[str]()
    for path in of_a_run():
        for sentence in told(PACKAGE / path):
            found |= {key for word in NAMED.findall(sentence) for key in meant(word, keys)}
    known = {
        "reward.timeout_s", "cluster.slurm.memory", "control.keep_checkpoints", "control.steps", "cluster.grace_s",
        "cluster.device", "cluster.workers_per_node", "cluster.ports", "cluster.interface", "cluster.gpu_isolation",
    }  # fmt: skip
    assert known <= found


@pytest.mark.parametrize(
    ("text", "settings_of_it"),
    [
        ("Set data.tokenizer to another folder.", ["data.tokenizer"]),
        ("raise {}.max_new_tokens, or lower {}.dtype", ["actor.dtype", "critic.dtype"]),
        ("Raise batch_size.", ["data.batch_size", "toy.batch_size"]),
        ("Fix the file, or set {}.", ["{}"]),
        ("Lower {}.", ["{}"]),
        ("Raise control.steps, set {}.kl.coef to 0.", []),
        ("Set data.tokenizer in a new run.", []),
    ],
)
def test_a_setting_that_a_run_keeps_for_life_is_found_in_a_message(
    tmp_path: Path, text: str, settings_of_it: list[str]
) -> None:
    file = tmp_path / "file.py"
    file.write_text(f'"""Set data.tokenizer."""\nraise ValueError(f"{text}")\n'.replace("{}", "{x}"))
    assert set(settings_of_it) <= {found.partition(":")[0] for found in refused(file)}
    assert bool(settings_of_it) == bool(refused(file))
