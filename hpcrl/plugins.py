"""From a name to a declaration: a file of hpcrl's own, or the user's as `file.py:NAME`. There is no list to keep."""

import dataclasses
import difflib
import functools
import importlib
import importlib.util
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from importlib.abc import Traversable
from importlib.resources import files
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar, cast

from hpcrl.errors import ConfigurationError, HpcrlError
from hpcrl.hidden_modules import refuse_hiding

D = TypeVar("D")


@dataclass(frozen=True)
class Room(Generic[D]):
    """A package whose modules declare, each one thing of one type under one attribute; others in it declare nothing."""

    package: str
    attribute: str
    type: type[D]


def names(room: Room[D]) -> tuple[str, ...]:
    """The modules of the room that declare, by name. Imports none of them."""
    return _declaring(room.package, str(files(room.package)), room.attribute)


@functools.cache
def _declaring(package: str, place: str, attribute: str) -> tuple[str, ...]:
    """Of a package that is at this place, which may be within an archive."""
    modules = sorted((file for file in files(package).iterdir() if file.name.endswith(".py")), key=str)
    return tuple(file.name.removesuffix(".py") for file in modules if _line_of(file, attribute))


def find(room: Room[D], name: str, setting: str, fitting: Callable[[str], bool] = lambda _: True) -> D:
    """What is declared under a name of the room's, or in the user's `file.py:NAME`. Of names, those that are `fitting`
    are proposed for one that is not known.

    Raises:
        ConfigurationError: names `setting`, and the file and line where there is one to fix; one beside the user's that
            hides a module is such a file.
    """
    imported = sys.modules.get(f"{room.package}.{name}")
    if imported is not None and isinstance(declared := vars(imported).get(room.attribute), room.type):
        return declared
    given, own = f"{setting} = {name}", _user_file(name)
    path: Path | Traversable
    if own is not None:
        if _module_name(own) not in sys.modules:
            refuse_hiding(own.parent, given)
        path, attribute, importing = own, name.rpartition(":")[2], functools.partial(_user_module, own)
    elif name in names(room):
        path, attribute = files(room.package) / f"{name}.py", room.attribute
        importing = functools.partial(importlib.import_module, f"{room.package}.{name}")
    else:
        raise _unknown(given, name, tuple(filter(fitting, names(room))))
    found = _declared(path, importing, attribute, given)
    if not isinstance(found, room.type):
        line, is_, needed = _line_of(path, attribute) or 1, _a(type(found).__name__), _a(room.type.__name__)
        raise _to_fix(given, f"{path}, line {line}: {attribute} is {is_}; {needed} is needed.")
    return cast(D, _guarded(found, own, given)) if own is not None and dataclasses.is_dataclass(found) else found


def load(place: str) -> Any:
    """What `module:NAME` or `file.py:NAME` names: code that a declaration mentions, imported where it is to run."""
    module, _, name = place.rpartition(":")
    path = _user_file(place)
    return getattr(importlib.import_module(module) if path is None else _user_module(path), name)


def _guarded(declared: Any, path: Path, given: str) -> Any:
    """A user's declaration, of whose functions every error names the setting, the file and the line."""
    functions = {
        field.name: _guard(value, path, given)
        for field in dataclasses.fields(declared)
        if callable(value := getattr(declared, field.name)) and not isinstance(value, type)
    }
    return dataclasses.replace(declared, **functions)


def _guard(function: Callable[..., Any], path: Path, given: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def guarded(*arguments: Any, **named: Any) -> Any:
        try:
            result = function(*arguments, **named)
            return list(result) if isinstance(result, Iterator) else result
        except HpcrlError:
            raise
        except (Exception, SystemExit) as error:
            raise _raised(path, error, given) from error

    return guarded


def _user_file(place: str) -> Path | None:
    file = place.rpartition(":")[0]
    return Path(file).absolute() if file.endswith(".py") else None


def _user_module(path: Path) -> ModuleType:
    """The user's file under a module name of its own, executed once in a process."""
    own = _module_name(path)
    if own not in sys.modules:
        spec = importlib.util.spec_from_file_location(own, path)
        assert spec is not None and spec.loader is not None, path
        sys.modules[own] = module = importlib.util.module_from_spec(spec)
        try:
            with _neighbours_first(path.parent):
                spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[own]
            raise
    return sys.modules[own]


def _module_name(path: Path) -> str:
    return f"{path.stem}_{blake2b(str(path).encode(), digest_size=4).hexdigest()}"


@contextmanager
def _neighbours_first(folder: Path) -> Iterator[None]:
    """A file imports what lies beside it, as if Python had been started on it, and writes nothing there.

    Later imports, as within functions, find its neighbours too, but none of them hides a module of anybody else's. A
    run's copy has the path of the original at its end, and comes before that.
    """
    place, writes_nothing = str(folder), sys.dont_write_bytecode
    sys.path.insert(0, place)
    sys.dont_write_bytecode = True
    try:
        yield
    finally:
        sys.dont_write_bytecode = writes_nothing
        sys.path.remove(place)
        originals = (i for i, entry in enumerate(sys.path) if entry.startswith("/") and place.endswith(entry))
        sys.path.insert(next(originals, len(sys.path)), place)


def _declared(path: Path | Traversable, importing: Callable[[], ModuleType], attribute: str, given: str) -> Any:
    if not path.is_file():
        raise ConfigurationError([f"{given}: {path} does not exist."], f"Set {given.partition(' ')[0]}.")
    try:
        imported = importing()
    except (Exception, SystemExit) as error:
        raise _raised(path, error, given) from error
    if not hasattr(imported, attribute):
        near = difflib.get_close_matches(attribute, [name for name in vars(imported) if name[0] != "_"], n=1)
        hint = f" The nearest is {near[0]}, line {_line_of(path, near[0]) or 1}." if near else ""
        raise _to_fix(given, f"{path} has no {attribute}.{hint}")
    return getattr(imported, attribute)


def _unknown(given: str, name: str, known: tuple[str, ...]) -> ConfigurationError:
    near = difflib.get_close_matches(name.lower(), known, n=1)
    probably = f", probably to {near[0]}" if near else ""
    return ConfigurationError(
        [f"{given} must be one of {', '.join(known)}, or file.py:NAME."], f"Set {given.partition(' ')[0]}{probably}."
    )


def _to_fix(given: str, what: str) -> ConfigurationError:
    return ConfigurationError([f"{given}: {what}"], f"Fix the file or set {given.partition(' ')[0]}.")


def _raised(path: Path | Traversable, error: BaseException, given: str) -> ConfigurationError:
    return _to_fix(given, f"{path}, line {_guilty_line(path, error)}: {type(error).__name__}: {error}.")


def _guilty_line(path: Path | Traversable, error: BaseException) -> int:
    """The last line of the file that took part in an error; of a file that does not parse, the one that is wrong."""
    lines = [frame.lineno or 1 for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    if isinstance(error, SyntaxError) and not lines:
        return error.lineno or 1
    return lines[-1] if lines else 1


def _line_of(path: Path | Traversable, attribute: str) -> int | None:
    """The first line where a file binds a name at its top level, as its text has it; None where it does not."""
    text = path.read_bytes().decode(errors="replace") if path.is_file() else ""
    found = re.search(rf"^(?:(?:class|def) +)?{re.escape(attribute)}\b", text, re.MULTILINE)
    return None if found is None else text.count("\n", 0, found.start()) + 1


def _a(noun: str) -> str:
    return f"{'an' if noun[0] in 'AEIOUaeiou' else 'a'} {noun}"
