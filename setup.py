"""The compiled parts of hpcrl. Without a C++ compiler numpy does the same, to the same bits; without nvcc torch."""

import shutil
import subprocess
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

NAMES = ("checksum", "gae", "log_lines", "pipeline", "rectangles", "search", "stored", "version")
SOURCES = [f"csrc/{name}.cpp" for name in NAMES]
FLAGS = ["-O3", "-ffp-contract=off", "-fopenmp"]
COMPILED = Extension(
    "hpcrl.ops._compiled", SOURCES, extra_compile_args=FLAGS, extra_link_args=["-fopenmp"], optional=True
)
CUDA = Extension(
    "hpcrl.ops._cuda",
    ["csrc/rectangles.cu"],
    extra_compile_args=["-O3", "-std=c++17", "-arch=all-major", "-shared", "-Xcompiler", "-fPIC"],
    optional=True,
)


class Build(build_ext):
    """nvcc for what is CUDA's."""

    def build_extension(self, ext: Extension) -> None:
        if ext is not CUDA:
            super().build_extension(ext)
            return
        library = Path(self.get_ext_fullpath(ext.name))
        library.parent.mkdir(parents=True, exist_ok=True)
        command = ["nvcc", *ext.extra_compile_args, *ext.sources, "-o", str(library)]
        if subprocess.run(command, check=False).returncode:
            raise CompileError(f"{' '.join(command)} failed")


setup(ext_modules=[COMPILED, *([CUDA] if shutil.which("nvcc") else [])], cmdclass={"build_ext": Build})
