"""Whether what a backend needs is installed, in a version that it was tested with. Imports none of it."""

import importlib.metadata
from collections.abc import Iterator, Sequence

from packaging.version import Version

from hpcrl.backends.backend import Package


def package_problems(packages: Sequence[Package]) -> Iterator[tuple[str, str]]:
    """(what is wrong, what to do about it) of each that is missing, or of a version that was not tested."""
    for package in packages:
        first, beyond = package.tested
        command = f"pip install 'hpcrl[{package.extra}]'"
        try:
            version = importlib.metadata.version(package.name)
        except importlib.metadata.PackageNotFoundError:
            yield f"{package.name} is not installed", f"Run: {command}"
            continue
        if not Version(first) <= Version(version) < Version(beyond):
            tested = f"versions from {first} to below {beyond} are tested"
            yield f"{package.name} is version {version}, and {tested}", f"Run: {command}"
