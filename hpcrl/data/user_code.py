"""The user's code: the files that settings name, the modules that these import from beside them, further files.

Finds modules by reading import statements, and executes nothing. What an import hides (`importlib`, a file that is
opened) has to be named in `code.files`.
"""

import ast
import glob
import importlib.util
import site
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.machinery import all_suffixes
from pathlib import Path

import msgspec

from hpcrl.config.experiment import ExperimentConfig
from hpcrl.config.fields import settings
from hpcrl.errors import ConfigurationError
from hpcrl.hidden_modules import refuse_hiding

FILES = "code.files"
MOST_BYTES = 256 << 20


class CodeSetting(msgspec.Struct, frozen=True):
    """What a setting names of the user's code: its place (`code.files` has none), and the files that it needs."""

    place: str
    files: tuple[str, ...]


@dataclass(frozen=True)
class UserCode:
    """Code of the user: by the settings that name it, and its files by their absolute path."""

    settings: Mapping[str, CodeSetting] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)


NO_CODE = UserCode()


def code_places(experiment: ExperimentConfig) -> dict[str, str]:
    """Setting → where its code is, of the settings that name code of the user's, neither hpcrl's nor installed.

    `/FOLDER/file.py:NAME` or `/FOLDER/module:NAME`, where the module is imported from the folder.
    """
    every = settings(type(experiment))
    places = {key: _place(value) for setting in every for key, value in setting.functions(experiment)}
    return {key: place for key, place in places.items() if place}


def collect_code(places: Mapping[str, str], patterns: Sequence[str]) -> UserCode:
    """The code at these places, with all that it imports from its folder; and the files that `code.files` names.

    Raises:
        ConfigurationError: a file cannot be read or is no Python, a file beside it hides a module, a pattern matches
            nothing, or all is too large.
    """
    of: dict[str, dict[str, bytes]] = {key: _with_imports(key, *_start(place)) for key, place in places.items()}
    if patterns:
        of[FILES] = {str(path): _read(FILES, path) for path in _matches(patterns)}
    files = {path: data for found in of.values() for path, data in found.items()}
    if (size := sum(map(len, files.values()))) > MOST_BYTES:
        raise ConfigurationError(
            [f"{FILES} and the user's code are {size >> 20} MiB, and a run copies {MOST_BYTES >> 20} MiB at most."],
            f"Leave data out of {FILES}, and have your code read it where it is.",
        )
    return UserCode({key: CodeSetting(places.get(key, ""), tuple(sorted(found))) for key, found in of.items()}, files)


def module_file(module: str) -> Path | None:
    """Where a module lies, found without being imported; None where it is nowhere."""
    package, *inner = module.split(".")
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return None
    stem = Path(spec.origin).parent.joinpath(*inner)
    files = [stem.with_suffix(".py"), stem / "__init__.py"] if inner else [Path(spec.origin)]
    return next((file for file in files if file.is_file()), None)


def is_installed(file: Path) -> bool:
    """Whether a module belongs to the Python installation or to its environment."""
    homes = [sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    return any(file.is_relative_to(home) for home in (*homes, site.getusersitepackages()))


def _place(value: str) -> str | None:
    """Where the code is that a setting names; None where it is hpcrl's or installed."""
    module = value.rpartition(":")[0]
    if not module or module.endswith(".py") or module.startswith("/"):
        return value if module else None
    file = module_file(module)
    if file is None or is_installed(file):
        return None
    return f"{file.parents[module.count('.') + (file.name == '__init__.py')]}/{value}"


def _start(place: str) -> tuple[Path, Path]:
    """(the folder from which it imports, the file to begin with) of a place."""
    where = Path(place.rpartition(":")[0])
    if where.suffix == ".py":
        return where.parent, where
    return where.parent, [where.with_name(f"{where.name}.py"), *_files_of(where.parent, where.name)][-1]


def _with_imports(setting: str, folder: Path, start: Path) -> dict[str, bytes]:
    """The file, and all modules that it imports, directly or not, from a folder and below."""
    refuse_hiding(folder, f"{setting} = {start}")
    around = [parent / "__init__.py" for parent in start.parents if folder in parent.parents]
    pending = [start, *(package for package in around if package.is_file())]
    found: dict[str, bytes] = {}
    while pending:
        file = pending.pop()
        if str(file) not in found:
            found[str(file)] = _read(setting, file)
            if file.suffix == ".py":
                pending += _imports(setting, file, found[str(file)], folder)
    return found


def _imports(setting: str, file: Path, source: bytes, folder: Path) -> Iterator[Path]:
    try:
        tree = ast.parse(source, file)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 1
        problem = f"{setting}: {file}, line {line}: {error.msg if isinstance(error, SyntaxError) else error}."
        raise ConfigurationError([problem], f"Fix the file, or submit a new run with another {setting}.") from None
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _of_user(folder, alias.name)
        elif isinstance(node, ast.ImportFrom):
            prefix = f"{node.module}." if node.module else ""
            for alias in node.names:
                if node.level:
                    yield from _files_of(file.parents[node.level - 1], prefix + alias.name)
                else:
                    yield from _of_user(folder, prefix + alias.name)


def _of_user(folder: Path, module: str) -> list[Path]:
    """hpcrl is no user's, wherever it lies."""
    return [] if module.partition(".")[0] == "hpcrl" else _files_of(folder, module)


def _files_of(folder: Path, module: str) -> list[Path]:
    """The files of a module and of the packages around it, outermost first, as far as they lie in a folder."""
    names = module.split(".")
    stems = [folder.joinpath(*names[: i + 1]) for i in range(len(names))]
    paths = (path for stem in stems for suffix in all_suffixes() for path in _candidates(stem, suffix))
    return [path for path in paths if path.is_file()]


def _candidates(stem: Path, suffix: str) -> tuple[Path, Path]:
    return stem / f"__init__{suffix}", stem.with_name(stem.name + suffix)


def _matches(patterns: Iterable[str]) -> Iterator[Path]:
    """The files that the patterns name; of a folder, all that are in it."""
    for pattern in patterns:
        paths = [Path(pattern)] if Path(pattern).exists() else map(Path, glob.glob(pattern, recursive=True))
        files = [file for path in paths for file in ([path] if path.is_file() else sorted(path.rglob("*")))]
        files = [file for file in files if file.is_file() and file.parent.name != "__pycache__"]
        if not files:
            raise ConfigurationError([f"{FILES}: {pattern} matches no file."], "Set code.files.")
        yield from files


def _read(setting: str, path: Path) -> bytes:
    try:
        str(path).encode()
        return path.read_bytes()
    except UnicodeEncodeError:
        raise ConfigurationError([f"{setting}: the name {str(path)!a} is not UTF-8."], "Rename the file.") from None
    except OSError as error:
        raise ConfigurationError(
            [f"{setting}: {path} cannot be read ({error.strerror})."],
            f"Make it readable, or submit a new run with another {setting}.",
        ) from None
