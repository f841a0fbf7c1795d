"""What is compiled from csrc, whether or not this installation was: on the host, without a device."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STRICT = ["-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]


def built(folder: Path, name: str) -> ctypes.CDLL:
    """csrc/NAME.cpp as setup.py compiles it."""
    flags = ["-O3", "-ffp-contract=off", "-fopenmp", *STRICT]
    return _library(folder, [*flags, ROOT / "csrc" / f"{name}.cpp"])


def kernel_on_host(folder: Path) -> ctypes.CDLL:
    """csrc/rectangles.cu, where the threads of a launch run one after another."""
    stands_in = ROOT / "tests" / "support" / "no_cuda"
    flags = ["-x", "c++", "-std=c++17", "-O2", *STRICT, f"-I{stands_in}"]
    return _library(folder, [*flags, ROOT / "csrc" / "rectangles.cu"])


def _library(folder: Path, arguments: list[str | Path]) -> ctypes.CDLL:
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    subprocess.run([compiler, *arguments, "-o", folder / "built.so"], check=True)
    return ctypes.CDLL(str(folder / "built.so"))
