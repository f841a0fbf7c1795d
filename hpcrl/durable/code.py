"""The user's code as a run keeps it: `code/000/`, `code/001/`, …, a folder for each copy.

A file lies in a copy under the whole path that it was copied from, so that a traceback names the original, and what
code reads from beside itself is found. A copy is published whole and never changed; MANIFEST.json says what is in it.
"""

import hashlib
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hpcrl.config.changes import with_settings
from hpcrl.data.user_code import FILES, CodeSetting, UserCode
from hpcrl.durable.exclusive import DIRECTORY_MODE
from hpcrl.durable.records import CodeCopy, CopiedFile, encode, sealed

MANIFEST = "MANIFEST.json"


def describe_code(code: UserCode) -> CodeCopy:
    """The manifest of a copy."""
    files = {path: CopiedFile(len(data), digest_of(data)) for path, data in code.files.items()}
    return sealed(CodeCopy(dict(code.settings), files, ""))


def digest_of(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def write_code(code: UserCode, folder: Path) -> None:
    """Fill a new folder with a copy."""
    for path, data in code.files.items():
        target = inside(folder, path)
        target.parent.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
        target.write_bytes(data)
    (folder / MANIFEST).write_bytes(encode(describe_code(code)))


def read_code(copy: CodeCopy, folder: Path) -> UserCode:
    """What a copy holds."""
    return UserCode(copy.settings, {path: inside(folder, path).read_bytes() for path in copy.files})


def inside(folder: Path, path: str) -> Path:
    """Where a copy has the file of this absolute path."""
    return Path(f"{folder}{path}")


def with_code(values: Mapping[str, Any], settings: Mapping[str, CodeSetting], folder: Path) -> dict[str, Any]:
    """A configuration as JSON, whose settings name the code in a copy."""
    return with_settings(values, {key: f"{folder}{named.place}" for key, named in settings.items() if named.place})


@contextmanager
def staged(code: UserCode) -> Iterator[Path]:
    """For a trial: the folder of a copy, which is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="hpcrl-") as folder:
        write_code(code, Path(folder))
        yield Path(folder)


def changed_files(copy: CodeCopy) -> dict[str, list[str]]:
    """Setting → those of its files that are no longer, where they were copied from, as they were copied."""
    differing = {path for path, copied in copy.files.items() if not _is_the_same(Path(path), copied)}
    found = {key: sorted(differing.intersection(named.files)) for key, named in copy.settings.items()}
    return {key: files for key, files in found.items() if files}


def _is_the_same(path: Path, copied: CopiedFile) -> bool:
    try:
        return path.stat().st_size == copied.size and digest_of(path.read_bytes()) == copied.digest
    except OSError:
        return False


def is_same_script(one: CodeCopy, other: CodeCopy) -> bool:
    """Whether two copies have the same algorithm, and the same further files that it may import."""
    return _script(one) == _script(other)


def _script(copy: CodeCopy) -> list[tuple[str, dict[str, str]]]:
    named = [copy.settings[key] for key in ("algorithm", FILES) if key in copy.settings]
    return [(each.place, {path: copy.files[path].digest for path in each.files}) for each in named]
