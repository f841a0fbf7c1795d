"""What the backends of this installation can do, as their declarations say."""

import importlib.metadata
from collections.abc import Iterator, Sequence

from hpcrl.backends.attention import FLASH, FLASH_CAPABILITY, choose_kernel
from hpcrl.backends.backend import BACKENDS
from hpcrl.backends.packages import interpreter_problem, package_problems
from hpcrl.doctor.findings import Finding, Severity
from hpcrl.doctor.measurements import NodeMeasurements
from hpcrl.errors import ConfigurationError
from hpcrl.plugins import find, names

USUAL_HEAD_DIM = 128


def check_backends(nodes: Sequence[NodeMeasurements]) -> Iterator[Finding]:
    capabilities = {capability for node in nodes for capability in node.gpus.capabilities if capability is not None}
    yield Finding("backends", "attention", _attention(sorted(capabilities)), Severity.OK)
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
        if backend.offloads:
            value += f"; offloads {', '.join(backend.offloads)}"
        if len(backend.devices) == 1:
            value += f"; on {backend.devices[0]} only"
        if backend.inexact_on:
            value += f"; resumed up to rounding on {', '.join(backend.inexact_on)}"
        if backend.server is not None:
            here = interpreter_problem(None, backend.server)
            value += "; in a server, for a call that names it" + (f" and its python, since {here}" if here else "")
        wrong = list(package_problems(backend.packages))
        if not wrong:
            yield Finding("backends", name, value, Severity.OK)
        for problem, advice in wrong:
            yield Finding("backends", name, f"{value}; but {problem}", Severity.NOTE, advice)


def _attention(capabilities: Sequence[tuple[int, int]]) -> str:
    """The kernels that hpcrl's own attention takes on CPUs and, in bf16 with heads of the usual size, on GPUs."""
    try:
        version = importlib.metadata.version(FLASH)
    except importlib.metadata.PackageNotFoundError:
        version = ""

    def kernel(capability: tuple[int, int] | None) -> str:
        return choose_kernel(capability, True, USUAL_HEAD_DIM, has_flash=bool(version))

    on_gpus = [f"{kernel(each)} on {each[0]}.{each[1]}" for each in capabilities]
    on_gpus = on_gpus or [f"{kernel(FLASH_CAPABILITY)} on {FLASH_CAPABILITY[0]}.{FLASH_CAPABILITY[1]} and newer"]
    installed = f"{FLASH} {version}" if version else f"{FLASH} is not installed"
    return f"{kernel(None)} on CPUs; in bf16 on GPUs, by compute capability: {', '.join(on_gpus)} ({installed})"
