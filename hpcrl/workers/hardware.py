"""What a worker computes on, by its maker's name: other hardware may round in other ways. Needs no driver, no torch."""

import re
from collections.abc import Iterable
from pathlib import Path

CPUS = Path("/proc/cpuinfo")
GPUS = Path("/proc/driver/nvidia/gpus")
_CPU = re.compile(r"^model name\s*:\s*(.+)$", re.MULTILINE)
_GPU = re.compile(r"^Model:\s*(.+)$", re.MULTILINE)


def hardware_of(device: str, uuid: str) -> str:
    """The model of the CPU, or of the GPU of this UUID; the kind of device where the kernel does not tell."""
    if device == "cpu":
        return cpu_model(_read(CPUS)) or "cpu"
    return gpu_model(map(_read, sorted(GPUS.glob("*/information"))), uuid) or device.partition(":")[0]


def cpu_model(cpuinfo: str) -> str:
    """Of the first processor in /proc/cpuinfo; "" if it names none."""
    found = _CPU.search(cpuinfo)
    return "" if found is None else found[1].strip()


def gpu_model(informations: Iterable[str], uuid: str) -> str:
    """Of the GPU whose /proc/driver/nvidia/gpus/…/information has this UUID; "" for another, as a MIG instance is."""
    for text in informations:
        found = _GPU.search(text)
        if found is not None and uuid and uuid in text.split():
            return found[1].strip()
    return ""


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
