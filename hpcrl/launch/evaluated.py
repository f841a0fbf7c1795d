"""Evaluations that are there: whether one is of what is asked now, and whether two differ in more than the model."""

import hashlib
from collections.abc import Iterator, Sequence
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

from hpcrl.config.changes import changes, with_settings
from hpcrl.config.experiment import ExperimentConfig
from hpcrl.config.fields import ChangeClass, settings
from hpcrl.data.contents import Contents
from hpcrl.data.inputs import contents_in, differences, input_files
from hpcrl.data.user_code import CodeSetting, code_places, collect_code
from hpcrl.durable.code import changed_files, describe_code
from hpcrl.durable.history import inputs_of
from hpcrl.durable.records import CodeCopy, SettingsRecord
from hpcrl.durable.rundir import RunDirectory
from hpcrl.durable.seen import read_seen
from hpcrl.errors import ConfigurationError
from hpcrl.recipes.algorithm import algorithm_of, experiment_from

COUNTS = (ChangeClass.NUMBERS, ChangeClass.FORK, ChangeClass.IDENTITY)
"""Of settings: what a result may depend on."""
ROWS = "data.batch_size"
"""It follows from the number of rows, where it is not given."""
ELSEWHERE = ("name", "run_root")
"""Where a run is. It has a folder of its own."""
ASKED = ("data", "reward", "reward_model", "judge", "environment", "generation", "code")
"""The sections of what models are asked, and of how it is judged."""
SCORING = ("reward_model", "judge", "environment")
"""Those of roles that count only where a call is theirs."""
OF_STEP = ("actor.path", "evaluate.as_step")
"""What is another where the run of a model has gone on."""
NOT_ASKED = (
    ROWS,
    *(f"data.{name}" for name in ("batch_tokens", "balance", "shuffle", "drop_last", "tokenizer")),
    *(f"generation.{name}" for name in ("temperature", "greedy", "segment", "refresh", "evaluation.pass_at")),
    "reward.max_dropped",
)
"""Settings of these that no score of an evaluation depends on; a tokenizer is its model's."""


def refuse_other(run: RunDirectory, word: str, asked: ExperimentConfig) -> None:
    """Raise ConfigurationError where a run evaluates something else than is asked now of the model of this name."""
    record = _newest(run)
    what = f"{run.root} holds an evaluation of something else than {word} as it is asked for now"
    if (other := record.experiment["algorithm"]) != asked.algorithm:
        raise ConfigurationError([f"{run.root} is a run of {other}."], "Name another folder with --out.")
    alike = {*ELSEWHERE, *_same_code(run.read_code(record.code), asked)}
    changed = [it for it in changes(experiment_from(record.experiment), asked, COUNTS) if it.key not in alike]
    others = [str(change) for change in changed if change.key != ROWS]
    if found := others or _other_contents(run, record, asked) or [str(change) for change in changed]:
        has_moved = "@" not in word and any(change.key in OF_STEP for change in changed)
        raise ConfigurationError(
            [f"{what}: {'; '.join(found)}."],
            "Name another folder with --out, or the step that was evaluated: RUN@STEP."
            if has_moved
            else "Name another folder with --out.",
        )


def _same_code(copy: CodeCopy, asked: ExperimentConfig) -> Iterator[str]:
    """The settings that name the code that was copied, wherever it lies now: a run that was resumed with other code has
    a new copy of all of it."""
    now = describe_code(collect_code(code_places(asked), asked.code.files))
    for key in copy.settings.keys() & now.settings.keys():
        if _code(copy, copy.settings[key]) == _code(now, now.settings[key]):
            yield key


def placed_anew(run: RunDirectory, asked: ExperimentConfig, given: Sequence[str]) -> list[str]:
    """Of the settings that are given, those by which what is left runs elsewhere or otherwise, with the same result."""
    made = experiment_from(_newest(run).experiment)
    changed = [f"{it.key}." for it in changes(made, asked, [ChangeClass.PLACEMENT])]
    return [word for word in given if any(key.startswith(f"{word.partition('=')[0]}.") for key in changed)]


def _other_contents(run: RunDirectory, record: SettingsRecord, asked: ExperimentConfig) -> list[str]:
    """The files that are no longer what was evaluated, with settings that are the same."""
    inputs = input_files(asked, algorithm_of(asked).rows)
    found = differences(inputs_of(run), inputs, Contents(read_seen(run)))
    code = changed_files(run.read_code(record.code))
    files = sorted({file for named in code.values() for file in named})
    return [*(f"{key}: {how}" for key, how in sorted(found.items())), *(f"{file} has changed" for file in files)]


def differing(one: RunDirectory, other: RunDirectory) -> tuple[str, ...]:
    """The settings by which the models of two evaluations were asked or judged in different ways: rows, how a prompt is
    written, how responses are drawn, rewards. Of files the contents count, not where they are."""
    first, second = _asked(one), _asked(other)
    return tuple(key for key in {**first, **second} if first.get(key) != second.get(key))


def _asked(run: RunDirectory) -> dict[str, Any]:
    record = _newest(run)
    copy = run.read_code(record.code)
    values = with_settings(record.experiment, {key: _code(copy, named) for key, named in copy.settings.items()})
    known = [it for it in settings(type(experiment_from(record.experiment))) if it.change in COUNTS]
    found: dict[str, Any] = {it.key: reduce(getitem, it.key.split("."), values) for it in known}
    places = {it.key for it in known if it.is_path}
    for key, text in inputs_of(run).items():
        found[key] = (None if key in places else found.get(key), contents_in(text))
    experiment = experiment_from(record.experiment)
    called = {call.role for call in algorithm_of(experiment).calls(experiment)}
    sections = [name for name in ASKED if name not in SCORING or name in called]
    return {key: it for key, it in found.items() if key.partition(".")[0] in sections and key not in NOT_ASKED}


def _code(copy: CodeCopy, named: CodeSetting) -> str:
    """What a setting names, by the contents of its files."""
    files = sorted((Path(path).name, copy.files[path].digest) for path in named.files)
    return f"{hashlib.blake2b(repr(files).encode(), digest_size=16).hexdigest()}:{named.place.rpartition(':')[2]}"


def _newest(run: RunDirectory) -> SettingsRecord:
    return run.read_settings(run.versions()[-1])
