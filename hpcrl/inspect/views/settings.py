"""What a run is set to: what differs from the defaults, all of it, and what each later version has changed."""

import difflib
import json
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import msgspec

from hpcrl.config.experiment import ExperimentConfig
from hpcrl.config.fields import Setting, settings
from hpcrl.durable.code import inside
from hpcrl.durable.records import CodeCopy
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ConfigurationError, HpcrlError
from hpcrl.inspect.reader import RunReader
from hpcrl.inspect.views.diff import Difference, differences, flat, same
from hpcrl.recipes.algorithm import experiment_of

LONGEST_BYTES = 200_000
"""Of a file of code whose lines are compared."""
LINES_SHOWN = 60
"""Of the differences of a file."""


class Value(msgspec.Struct, frozen=True):
    """A setting by its dotted name. `default` is null of one that has none."""

    key: str
    value: Any
    default: Any


class ChangedFile(msgspec.Struct, frozen=True):
    """A file of the user's code, and its lines that differ from those of the version before."""

    file: str
    lines: list[str]


class Version(msgspec.Struct, frozen=True):
    """A version of the settings, and what it has changed of the one before. `from_step` is the first that it counted
    in; None where no step has closed under it."""

    version: int
    created: float
    """Seconds since 1970, by the clock of whoever resumed the run."""
    from_step: int | None
    changes: list[Difference]
    """`second` is the value of this version."""
    code: list[ChangedFile]
    lacks: str = ""
    """Why it is not known what it changed."""


class Settings(msgspec.Struct, frozen=True):
    """The newest version as the user gave it, and the later versions in order."""

    own: list[Value]
    """Those that differ from the defaults."""
    every: dict[str, Any]
    versions: list[Version]


def settings_of(reader: RunReader) -> Settings:
    """Raises InternalError where the newest are damaged."""
    run, numbers = reader.run, reader.run.versions()
    newest = run.read_settings(numbers[-1]).experiment
    every = dict(flat(newest))
    counts = {version: step for step, version in reader.seen.settings}
    versions = [_version(run, *pair, counts) for pair in pairwise(numbers)]
    return Settings(list(_own(newest, every)), every, versions)


def _own(experiment: Mapping[str, Any], every: Mapping[str, Any]) -> Iterator[Value]:
    known = {setting.key: setting for setting in _known(str(experiment.get("algorithm", "")))}
    for key, value in every.items():
        setting = known.get(key)
        default = None if setting is None or setting.required else _default(setting, every)
        if setting is None or setting.required or not same(value, default):
            yield Value(key, value, default)


def _known(algorithm: str) -> Iterator[Setting]:
    """Those of the algorithm; of one in a file of the user's, which nobody executes to look at a run, what every run
    has."""
    try:
        return settings(ExperimentConfig if ":" in algorithm else experiment_of(algorithm))
    except ConfigurationError:
        return settings(ExperimentConfig)


def _default(setting: Setting, every: Mapping[str, Any]) -> Any:
    """As JSON holds it."""
    return every.get(setting.like) if setting.like is not None else json.loads(msgspec.json.encode(setting.default))


def _version(run: RunDirectory, before: int, version: int, counts: Mapping[int, int]) -> Version:
    try:
        old, new = run.read_settings(before), run.read_settings(version)
    except HpcrlError as error:
        return Version(version, 0.0, counts.get(version), [], [], str(error))
    changed = differences(dict(flat(old.experiment)), dict(flat(new.experiment)))
    code, lacks = list[ChangedFile](), ""
    if old.code != new.code:
        try:
            code = list(_changed_files(run, old.code, new.code))
        except (HpcrlError, OSError) as error:
            lacks = f"Its code cannot be compared: {error}"
    return Version(version, new.created, counts.get(version), changed, code, lacks)


def _changed_files(run: RunDirectory, old: int, new: int) -> Iterator[ChangedFile]:
    copies = run.read_code(old), run.read_code(new)
    for path in sorted(copies[0].files.keys() | copies[1].files.keys()):
        if copies[0].files.get(path) != copies[1].files.get(path):
            texts = [_text(run, *pair, path) for pair in zip(copies, (old, new), strict=True)]
            yield ChangedFile(path, _differing(*texts))


def _text(run: RunDirectory, copy: CodeCopy, number: int, path: str) -> list[str]:
    """Its lines; none of a file that a copy lacks, or that is too long."""
    if path not in copy.files or copy.files[path].size > LONGEST_BYTES:
        return []
    return inside(run.code_copy(number), path).read_text(errors="replace").splitlines()


def _differing(old: list[str], new: list[str]) -> list[str]:
    lines = [line for line in difflib.unified_diff(old, new, lineterm="", n=0) if line[:3] not in ("---", "+++")]
    more = len(lines) - LINES_SHOWN
    return [*lines[:LINES_SHOWN], *([f"… {more} more lines"] if more > 0 else [])]
