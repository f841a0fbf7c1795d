"""What the backends of this installation can do, as their declarations say."""

import importlib.metadata
from collections.abc import Iterator

from hpcrl.backends.backend import BACKENDS
from hpcrl.backends.packages import package_problems
from hpcrl.doctor.findings import Finding, Severity
from hpcrl.errors import ConfigurationError
from hpcrl.plugins import find, names

FLASH = "flash-attn"


def check_backends() -> Iterator[Finding]:
    yield Finding("backends", "attention", _attention(), Severity.OK)
    for name in names(BACKENDS):
        try:
            backend = find(BACKENDS, name, "<role>.backend")
        except ConfigurationError as error:
            yield Finding("backends", name, str(error), Severity.PROBLEM, f"no role can have backend: {name}")
            continue
        able = ((backend.train, "trains"), (backend.generate, "generates"))
        does = ", ".join([word for can, word in able if can] or ["predicts only"])
        axes = ", ".join(backend.axes) + (", parameters too" if backend.shards else "")
        does += " (adapters too)" if backend.lora else ""
        value = f"{does}; splits over {axes}; computes in {', '.join(backend.dtypes)}"
        if len(backend.devices) == 1:
            value += f"; on {backend.devices[0]} only"
        if backend.inexact_on:
            value += f"; resumed up to rounding on {', '.join(backend.inexact_on)}"
        wrong = list(package_problems(backend.packages))
        if not wrong:
            yield Finding("backends", name, value, Severity.OK)
        for problem, advice in wrong:
            yield Finding("backends", name, f"{value}; but {problem}", Severity.NOTE, advice)


def _attention() -> str:
    """Whose kernels hpcrl's own attention takes on GPUs."""
    try:
        return f"{FLASH} {importlib.metadata.version(FLASH)} on GPUs, else PyTorch's kernels"
    except importlib.metadata.PackageNotFoundError:
        return f"PyTorch's kernels; {FLASH} is not installed"
