"""Files beside the user's code that hide a module of Python's, or of a package that hpcrl needs.

Whether such a file or the module is imported would depend on who imports it first. Imports nothing.
"""

import re
import sys
import sysconfig
from contextlib import suppress
from functools import cache
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path

from hpcrl.errors import ConfigurationError

OURS = "hpcrl"
UNUSED = frozenset({"antigravity", "idlelib", "test", "this", "turtle", "turtledemo"})
"""Of Python's own, those that no library imports."""


def refuse_hiding(folder: Path, given: str) -> None:
    """Raises ConfigurationError, of the setting that is `given`, where something in the folder of its code hides a
    module. A folder that cannot be read has nothing."""
    with suppress(OSError):
        for path in sorted(folder.iterdir()):
            name = path.stem if path.suffix == ".py" else path.name
            if (path.is_file() if path.suffix == ".py" else (path / "__init__.py").is_file()) and (of := _owner(name)):
                raise ConfigurationError(
                    [f"{given}: {path} has the name of {of}, and would be imported in its place."],
                    f"Rename {path.name}, or move it out of {folder}.",
                )


def _owner(name: str) -> str:
    """Whose module of this name there is besides, in words; "" where there is none that matters."""
    if name in sys.stdlib_module_names - UNUSED:
        return f"Python's own module {name}"
    if name == OURS or not name.isidentifier() or PathFinder.find_spec(name, _homes()) is None:
        return ""
    owners = metadata.packages_distributions().get(name, ())
    return f"the module {name}, which hpcrl needs" if any(map(_needed().__contains__, map(_plain, owners))) else ""


@cache
def _homes() -> list[str]:
    return sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})


@cache
def _needed() -> frozenset[str]:
    """The installed distributions that hpcrl needs, directly or not."""
    pending, found = [OURS], set[str]()
    while pending:
        name = _plain(pending.pop())
        if name not in found:
            with suppress(metadata.PackageNotFoundError):
                pending += [re.split(r"[^\w.-]", it, maxsplit=1)[0] for it in metadata.requires(name) or ()]
                found.add(name)
    return frozenset(found)


def _plain(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()
