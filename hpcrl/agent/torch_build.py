"""What the installed torch was built for, and whether a node's driver and GPUs can run it.

Loads no torch: a child of this process does, so that whoever forks workers has called nothing of CUDA's.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress

import msgspec

from hpcrl.agent.nvml import Device, Inventory
from hpcrl.errors import Problem
from hpcrl.processes import work_done

STANDS_STILL_S = 300.0
"""An import from a busy file server takes minutes; so long is waited for one that neither reads nor computes."""
LOOK_S = 1.0
CODE = """
import json, torch
flags = getattr(torch._C, "_cuda_getArchFlags", lambda: None)() or ""
print(json.dumps([torch.__version__, torch.version.cuda, torch.version.hip, flags.split()]))
"""
"""torch.cuda.get_arch_list would start CUDA first, and answers nothing on a node that has none."""
Version = tuple[int, int]


class TorchBuild(msgspec.Struct, frozen=True):
    """The torch of one Python. `cuda` is None of a build for CPUs only; `architectures` are sm_80, compute_90, …"""

    executable: str
    version: str = ""
    cuda: str | None = None
    hip: str | None = None
    architectures: tuple[str, ...] = ()
    failed: str = ""
    """Why it cannot be imported."""


def measure_build(stands_still_s: float = STANDS_STILL_S) -> TorchBuild:
    """Of this process' Python."""
    pipe, without_gpus = subprocess.PIPE, dict(os.environ, CUDA_VISIBLE_DEVICES="")
    with subprocess.Popen(
        [sys.executable, "-c", CODE], stdout=pipe, stderr=pipe, text=True, env=without_gpus
    ) as importing:
        said = _while_it_works(importing, stands_still_s)
    if said is None:
        return TorchBuild(sys.executable, failed=f"import torch has stood still for {stands_still_s:g} s")
    out, errors = said
    if importing.returncode:
        lines = errors.strip().splitlines() or [f"exit status {importing.returncode}"]
        return TorchBuild(sys.executable, failed=lines[-1])
    version, cuda, hip, architectures = msgspec.json.decode(out.splitlines()[-1])
    return TorchBuild(sys.executable, version, cuda, hip, tuple(architectures))


def _while_it_works(process: subprocess.Popen[str], stands_still_s: float) -> tuple[str, str] | None:
    """What it has written; None where it neither read nor computed for so long, and was killed."""
    work, since = 0, time.monotonic()
    while time.monotonic() - since < stands_still_s:
        with suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=min(LOOK_S, stands_still_s))
        if (done := work_done(process.pid)) != work:
            work, since = done, time.monotonic()
    process.kill()
    return None


def build_problems(build: TorchBuild, inventory: Inventory, devices: Sequence[Device]) -> Iterator[Problem]:
    """Why this torch computes on none, or not on all, of these devices of a node. Pure."""
    if not devices:
        return
    if build.failed:
        text = f"torch cannot be imported by {build.executable}: {build.failed}."
        yield Problem(("cluster.device",), text, _remedy(inventory, devices))
        return
    torch, there = f"torch {build.version} of {build.executable}", _in_words(devices)
    if build.cuda is None:
        text = f"This node has {there}, but {torch} is built for {'ROCm' if build.hip else 'CPUs only'}."
        yield Problem(("cluster.device",), text, f"{_remedy(inventory, devices)} Or set cluster.device to cpu.")
        return
    driver = inventory.cuda
    if driver is not None and driver[0] < _version(build.cuda)[0]:
        text = (
            f"{torch} is built for CUDA {build.cuda}, but this node's driver {inventory.driver} knows CUDA only up to "
            f"{driver[0]}.{driver[1]}."
        )
        yield Problem(("cluster.device",), text, f"{_remedy(inventory, devices)} Or have the driver updated.")
        return
    if strange := [device for device in devices if not runs_on(build.architectures, device.capability)]:
        text = (
            f"{torch} has no code for {_in_words(strange)} (compute capability "
            f"{', '.join(sorted({dotted(device.capability) for device in strange}))}); it has "
            f"{' '.join(build.architectures)}."
        )
        yield Problem(("cluster.device",), text, _remedy(inventory, devices))


def older_driver(build: TorchBuild, inventory: Inventory) -> bool:
    """Whether the driver knows only an older CUDA than this build's; of the same major version it runs all the same."""
    return build.cuda is not None and inventory.cuda is not None and inventory.cuda < _version(build.cuda)


def runs_on(architectures: Sequence[str], capability: Version | None) -> bool:
    """Whether code for some architectures runs on a GPU of this compute capability.

    Code for a processor (sm_80) runs on later ones of its generation, sm_90a on that one only; what is compiled as it
    is loaded (compute_80) runs on all later ones. Nothing is known without both.
    """
    if capability is None or not architectures:
        return True
    for name in architectures:
        kind, _, number = name.partition("_")
        exact = not number.isdecimal()
        digits = number.rstrip("abcdefghijklmnopqrstuvwxyz")
        made_for = int(digits[:-1]), int(digits[-1])
        if made_for == capability:
            return True
        if exact or made_for > capability:
            continue
        if kind == "compute" or made_for[0] == capability[0]:
            return True
    return False


def install_line(inventory: Inventory, devices: Sequence[Device]) -> str | None:
    """The command that installs a torch for this driver and these GPUs; None where no torch is built for the driver.

    A build for any CUDA 12 runs on any driver for CUDA 12. That for 12.6 knows the oldest GPUs, Blackwell's begin with
    12.8, and 13 ended those before Turing.
    """
    capabilities = [device.capability for device in devices if device.capability is not None]
    major = inventory.cuda[0] if inventory.cuda else 12
    if major < 12:
        return None
    newest, oldest = max(capabilities, default=(8, 0)), min(capabilities, default=(8, 0))
    tag = "cu128" if newest >= (10, 0) else "cu126"
    if major > 12 and oldest >= (7, 5):
        tag = "cu130"
    return f"pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/{tag}"


def _remedy(inventory: Inventory, devices: Sequence[Device]) -> str:
    line = install_line(inventory, devices)
    if line is None:
        return f"No torch that hpcrl runs on is built for driver {inventory.driver}: it has to be 525 or newer."
    return f"Install one for this node: {line}."


def _in_words(devices: Sequence[Device]) -> str:
    names = [device.name for device in devices]
    return ", ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names))


def _version(written: str) -> Version:
    major, minor = written.split(".")[:2]
    return int(major), int(minor)


def dotted(version: Version | None) -> str:
    """As people write it."""
    return "?" if version is None else f"{version[0]}.{version[1]}"
