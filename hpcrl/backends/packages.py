"""Whether what a backend needs is installed, in a version that it was tested with. Imports none of it."""

import importlib.metadata
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress

import msgspec
from packaging.version import Version

from hpcrl.backends.backend import Package, Server

OWN_VARIABLES = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV")
"""They lead an interpreter to what this one uses."""
ASKED_S = 60.0
"""On a cold file system an interpreter takes its time to start."""


def package_problems(packages: Sequence[Package]) -> Iterator[tuple[str, str]]:
    """(what is wrong, what to do about it) of each that is missing, or of a version that was not tested."""
    for package in packages:
        command = f"pip install 'hpcrl[{package.extra}]'"
        try:
            version = importlib.metadata.version(package.name)
        except importlib.metadata.PackageNotFoundError:
            yield f"{package.name} is not installed", f"Run: {command}"
            continue
        if tested := _untested(version, package.tested):
            yield f"{package.name} is version {version}, and {tested}", f"Run: {command}"


def interpreter_problem(python: str | None, server: Server) -> str:
    """What is wrong with what is to run a server; None is this interpreter. Empty where nothing is."""
    if python is None:
        found = _versions(server.package)
        names = "hpcrl's own interpreter"
    else:
        names = "it"
        try:
            found = _asked(python, server.package)
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            said = getattr(error, "stderr", "") or error
            return f"it does not run Python 3.11 or newer: {str(said).strip().splitlines()[-1]}"
    if not found:
        return f"{names} has no {' or '.join(server.package)}"
    name, version = next(iter(found.items()))
    tested = _untested(version, server.tested)
    return f"{names} has {name} {version}, and {tested}" if tested else ""


def _untested(version: str, tested: tuple[str, str]) -> str:
    """The versions that are tested, in words, where this is none of them."""
    first, beyond = tested
    if Version(first) <= Version(version) < Version(beyond):
        return ""
    return f"versions from {first} to below {beyond} are tested"


_ASK = """
import importlib.metadata as m, json, sys
assert sys.version_info >= (3, 11), sys.version
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = m.version(name)
    except m.PackageNotFoundError:
        pass
print(json.dumps(found))
"""


def _asked(python: str, packages: Sequence[str]) -> dict[str, str]:
    """Of these packages, those that another interpreter has. It imports none of them."""
    environment = {name: value for name, value in os.environ.items() if name not in OWN_VARIABLES}
    command = [python, "-P", "-c", _ASK, *packages]
    done = subprocess.run(command, capture_output=True, text=True, timeout=ASKED_S, check=True, env=environment)
    return msgspec.json.decode(done.stdout, type=dict[str, str])


def _versions(packages: Sequence[str]) -> dict[str, str]:
    found = {}
    for name in packages:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found
