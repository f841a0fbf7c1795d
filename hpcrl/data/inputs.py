"""What a run reads and does not copy: fingerprints of its files, and how files differ from their fingerprints.

A fingerprint has name, size and checksum of each file, NAME:SIZE:CHECKSUM, with / between them. Files in several
folders are named by their paths below the folder that has all of them, with // for each /.
"""

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from hpcrl.config.classifier import ClassifierConfig
from hpcrl.config.environment import EnvironmentConfig
from hpcrl.config.experiment import ExperimentConfig
from hpcrl.config.fields import sections_of
from hpcrl.config.model import lora_of, models_of
from hpcrl.config.reward import RewardConfig
from hpcrl.data.contents import Contents, stamp_of
from hpcrl.data.rows.kind import RowKind
from hpcrl.data.user_code import is_installed, module_file
from hpcrl.errors import DataError
from hpcrl.families.adapter_files import CONFIG, TENSORS

Inputs = Mapping[str, list[Path]]
"""Setting → the files that it names."""
_FILES = re.compile("(?<!/)/(?!/)")
"""What is between two files of a fingerprint."""


def input_files(experiment: ExperimentConfig, rows: RowKind[Any], roles: Collection[str] | None = None) -> Inputs:
    """Rows, tokenizer, installed code, and the base weights of these roles (all of them, if None)."""
    found = dict(rows.inputs(experiment))
    for role, model in models_of(experiment).items():
        if roles is None or role in roles:
            found[f"{role}.path"] = model_files(Path(model.path))
            lora = lora_of(model)
            if lora is not None and lora.path is not None:
                found[f"{role}.lora.path"] = [Path(lora.path) / name for name in (CONFIG, TENSORS)]
    for role, judge in sections_of(experiment, ClassifierConfig).items():
        if judge.path is not None and (roles is None or role in roles):
            weights = (path for kind in ("*.safetensors", "*.bin") for path in sorted(Path(judge.path).glob(kind)))
            found[f"{role}.path"] = [Path(judge.path) / "config.json", *weights]
    called: list[tuple[str, RewardConfig | EnvironmentConfig]] = [*sections_of(experiment, RewardConfig).items()]
    for role, reward in (*called, *sections_of(experiment, EnvironmentConfig).items()):
        for key, function in reward.functions(role):
            found[key] = list(_installed(function))
    return {setting: files for setting, files in found.items() if files}


def model_files(folder: Path) -> list[Path]:
    """config.json and the weights."""
    index = folder / "model.safetensors.index.json"
    return [folder / "config.json", *([index] if index.is_file() else []), *sorted(folder.glob("*.safetensors"))]


def _installed(function: str) -> Iterator[Path]:
    """The file of a function of an installed module; what is the user's own is copied."""
    module = function.rpartition(":")[0]
    file = module_file(module) if module and "/" not in module else None
    if file is not None and is_installed(file):
        yield file


def fingerprints(inputs: Inputs, contents: Contents) -> dict[str, str]:
    """Setting → names, sizes and checksums of its files.

    Raises:
        DataError: a file cannot be read, or changed meanwhile.
    """
    found = {}
    for setting, files in inputs.items():
        with _readable(setting):
            checksums = contents.checksums(files)
            named = zip(_names(files), files, strict=True)
            found[setting] = "/".join(f"{name}:{path.stat().st_size}:{checksums[path]}" for name, path in named)
    return found


def _names(files: Sequence[Path]) -> list[str]:
    """What each file is called in a fingerprint."""
    if not files:
        return []
    folder = _folder(files)
    return [file.absolute().relative_to(folder).as_posix().replace("/", "//") for file in files]


def _path(name: str) -> str:
    """That of a file below the folder of all, by its name."""
    return name.replace("//", "/")


def _folder(files: Sequence[Path]) -> Path:
    """The deepest that has all of them."""
    return Path(os.path.commonpath([file.absolute().parent for file in files]))


@dataclass(frozen=True)
class Share:
    """What one of several processes reads of what all of them look at: every `of`-th file, from number `index` on."""

    index: int = 0
    of: int = 1


def differences(
    expected: Mapping[str, str], inputs: Inputs, contents: Contents, share: Share | None = None
) -> dict[str, str]:
    """Setting → how its files differ from their fingerprints: first by name and size, then by content where the times
    differ too.

    Raises:
        DataError: a file cannot be read, or changed meanwhile.
    """
    share = share or Share()
    found: dict[str, str] = {}
    unknown: list[tuple[str, Path, str]] = []
    for setting in expected.keys() & inputs.keys():
        were = {name: (int(size), checksum) for name, size, checksum in map(_fields, _FILES.split(expected[setting]))}
        are = dict(zip(_names(inputs[setting]), inputs[setting], strict=True))
        if were.keys() != are.keys():
            found[setting] = _other_files(were, inputs[setting])
            continue
        for name, path in are.items():
            with _readable(setting):
                how = _at_a_glance(path, *were[name], contents)
            if how is None:
                unknown.append((setting, path, were[name][1]))
            elif how:
                found[setting] = how
    mine = sorted(unknown)[share.index :: share.of]
    with _readable(", ".join(sorted({setting for setting, _, _ in mine}))):
        now = contents.checksums([path for _, path, _ in mine])
    for setting, path, checksum in mine:
        if now[path] != checksum:
            found.setdefault(setting, _other_content(path, checksum, now[path]))
    return found


def _other_files(were: Iterable[str], files: Sequence[Path]) -> str:
    """The first file that is new, else the first that is missing. The files that stayed tell where all lay."""
    now = {file.absolute() for file in files}
    folders = [_folder(files), *sorted({folder for file in now for folder in file.parents})]
    then = max(({folder / _path(name) for name in were} for folder in folders), key=lambda paths: len(paths & now))
    new, gone = sorted(now - then), sorted(then - now)
    return f"{new[0]} is new" if new else f"{gone[0]} is missing"


def _at_a_glance(path: Path, size: int, checksum: str, contents: Contents) -> str | None:
    """How a file differs, as far as can be told without reading it: empty if it does not, None if nobody knows."""
    stamp = stamp_of(path)
    if stamp.size != size:
        return f"{path} has {stamp.size} bytes and had {size}{_written(stamp.mtime_ns)}"
    known = contents.find(path, stamp)
    if known is None or known == checksum:
        return known and ""
    return _other_content(path, checksum, known)


def changed(differing: Mapping[str, str], run_dir: Path) -> DataError:
    """The error that ends a run, and that `resume` gives, where inputs are not what they were."""
    what = "; ".join(f"{setting}: {how}" for setting, how in sorted(differing.items()))
    return DataError(
        f"{what}. Since the run was submitted this has changed, and resuming would give other numbers.",
        f"Put it back, or accept it: hpcrl resume {run_dir} --accept-changed {' '.join(sorted(differing))}",
    )


def contents_in(fingerprint: str) -> list[list[str]]:
    """Size and checksum of each of its files, wherever they lie."""
    return [_fields(file)[1:] for file in _FILES.split(fingerprint)]


def _fields(text: str) -> list[str]:
    return text.rsplit(":", 2)


def _other_content(path: Path, before: str, now: str) -> str:
    return f"{path} has other content, checksum {now} in the place of {before}{_written(path.stat().st_mtime_ns)}"


def _written(mtime_ns: int) -> str:
    return f" (written {datetime.fromtimestamp(mtime_ns / 1e9):%Y-%m-%d %H:%M:%S})"


@contextmanager
def _readable(setting: str) -> Iterator[None]:
    """What cannot be read is a DataError that names the setting."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"cannot read {error.filename}: {error.strerror}.",
            f"Make it readable, or submit a new run with another {setting}.",
        ) from error
