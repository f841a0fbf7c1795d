"""What this machine can do at most, beside which the figures are to be read."""

import os
import platform
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import torch
from figures import Figure, median, spread

FLUSHES, WRITES, WRITTEN_MIB, PRODUCTS, SIDE = 100, 3, 256, 5, 2048


def describe() -> str:
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "numpy", "pyzmq", "h5py"))
    linux = ".".join(platform.release().split(".")[:2])
    return (
        f"{os.cpu_count()} cores of {_processor()}, {memory_gib:.0f} GiB, Linux {linux}; "
        f"Python {platform.python_version()}, {versions}"
    )


def limits(work: Path) -> list[Figure]:
    flushes, writes, products = _flushes(work), _writes(work), _products()
    return [
        Figure("fsync of 512 bytes appended to a file", median(flushes) * 1e3, "ms", "", _spread(flushes, 1e3, "ms")),
        Figure(f"raw write and fsync of {WRITTEN_MIB} MiB", median(writes), "MiB/s", "", spread(writes, "MiB/s")),
        Figure(
            f"product of two {SIDE}×{SIDE} float32 matrices, one thread",
            median(products),
            "GFLOP/s",
            "",
            spread(products, "GFLOP/s"),
        ),
    ]


def _flushes(work: Path) -> list[float]:
    path = work / "flushes"
    with path.open("wb", buffering=0) as file:

        def flush() -> None:
            file.write(b"x" * 512)
            os.fsync(file.fileno())

        taken = [_seconds(flush) for _ in range(FLUSHES)]
    path.unlink()
    return taken


def _writes(work: Path) -> list[float]:
    """MiB a second."""
    data, rates = os.urandom(2**20), []
    for _ in range(WRITES):
        path = work / "written"
        with path.open("wb", buffering=0) as file:

            def write(file: object = file) -> None:
                for _ in range(WRITTEN_MIB):
                    file.write(data)
                os.fsync(file.fileno())

            rates.append(WRITTEN_MIB / _seconds(write))
        path.unlink()
    return rates


def _products() -> list[float]:
    """1e9 operations a CPU second."""
    torch.set_num_threads(1)
    a, b = torch.rand(SIDE, SIDE), torch.rand(SIDE, SIDE)
    rates = []
    for _ in range(PRODUCTS):
        begun = time.process_time()
        torch.mm(a, b)
        rates.append(2 * SIDE**3 / (time.process_time() - begun) / 1e9)
    return rates


def _seconds(action: Callable[[], None]) -> float:
    begun = time.perf_counter()
    action()
    return time.perf_counter() - begun


def _spread(seconds: list[float], scale: float, unit: str) -> str:
    return spread([number * scale for number in seconds], unit)


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
