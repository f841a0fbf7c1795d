"""hpcrl works wherever pip or a zip puts it: commands, the algorithms' files, the sbatch templates."""

import os
import shutil
import subprocess
import sys
import sysconfig
import zipapp
from pathlib import Path

import pytest

from hpcrl.launch.slurm.render import with_parts

ROOT = Path(__file__).parents[1]
TOY = "algorithm: toy\ncontrol: {steps: 1}\n"
PIP = ("install", "--quiet", "--no-deps", "--no-index", "--disable-pip-version-check", "--break-system-packages")


def python(*words, path="", program=sys.executable, **environment):
    """Python far from the checkout, with `path` before the packages that the tests run with."""
    libraries = os.pathsep.join(filter(None, [str(path), sysconfig.get_path("purelib")]))
    given = os.environ | {"PYTHONPATH": libraries} | environment
    done = subprocess.run([program, *map(str, words)], cwd="/", env=given, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """As on a machine whose nvcc compiles nothing: what it would make for all GPUs takes most of the time."""
    folder = tmp_path_factory.mktemp("wheel")
    (folder / "bin").mkdir()
    (folder / "bin" / "nvcc").symlink_to(shutil.which("false"))
    return built(folder, PATH=f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}")


def built(folder, **environment):
    source = folder / "source"
    left_out = shutil.ignore_patterns(".git", ".venv", ".vllm", "build", "tests", "runs", "*.so")
    shutil.copytree(ROOT, source, symlinks=True, ignore=left_out)
    build = ("wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check")
    python("-m", "pip", *build, "-w", folder, source, **environment)
    (found,) = folder.glob("*.whl")
    return found


def target(wheel, folder):
    python("-m", "pip", *PIP, "--target", folder, wheel)
    return {"path": folder}


def user(wheel, folder):
    """With the interpreter below the virtual environment, which has no place for its user's packages."""
    base = {"program": getattr(sys, "_base_executable", sys.executable), "PYTHONUSERBASE": str(folder)}
    # pip is the test's own, so that the interpreter need not have one.
    python("-m", "pip", *PIP, "--user", wheel, **base)
    return base


def wheel_itself(wheel, folder):
    return {"path": wheel}


def a_zip(wheel, folder):
    shutil.unpack_archive(wheel, folder / "code", "zip")
    zipapp.create_archive(folder / "code", folder / "hpcrl.pyz", main="hpcrl.cli.main:main")
    return {"path": folder / "hpcrl.pyz"}


@pytest.mark.parametrize("install", [target, pytest.param(user, marks=pytest.mark.slow), wheel_itself, a_zip])
def test_commands_templates_and_algorithms_are_found(install, wheel, tmp_path):
    there = install(wheel, tmp_path)
    where = python("-c", "import hpcrl; print(hpcrl.__file__)", **there).strip()
    assert where.startswith((str(tmp_path), str(wheel)))
    own = ROOT / "sbatch"
    assert python("-m", "hpcrl", "template", "array", **there) == with_parts(own / "array.sbatch")
    assert python("-m", "hpcrl", "template", "site.yaml", **there) == (own / "site.yaml").read_text()
    (tmp_path / "toy.yaml").write_text(TOY)
    assert "critic_train" in python("-m", "hpcrl", "plan", tmp_path / "toy.yaml", **there)


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
def test_a_wheel_that_was_built_where_a_compiler_is_has_the_compiled_operations(wheel, tmp_path):
    found = python("-c", "from hpcrl.ops.library import compiled; print(compiled())", **target(wheel, tmp_path))
    assert "_compiled" in found


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
def test_a_wheel_that_was_built_where_nvcc_is_has_those_for_gpus(tmp_path):
    there = target(built(tmp_path), tmp_path / "there")
    found = python("-c", "from hpcrl.ops.library import compiled_for_cuda as it; print(it())", **there)
    assert "_cuda" in found


def test_a_wheel_that_was_built_where_nvcc_compiles_nothing_has_none_for_gpus(wheel, tmp_path):
    command = "from hpcrl.ops.library import compiled_for_cuda as it; print(it())"
    assert python("-c", command, **target(wheel, tmp_path)).strip() == "None"


def test_a_zip_starts_by_itself(wheel, tmp_path):
    archive = a_zip(wheel, tmp_path)["path"]
    assert "usage: hpcrl COMMAND" in python(archive, "--help")


def test_a_snapshot_of_hpcrl_in_a_zip_is_hpcrl(wheel, tmp_path):
    copy = "import sys; from pathlib import Path; from hpcrl.launch.slurm.launcher import copy_code; "
    python("-c", f"{copy} copy_code(Path(sys.argv[1]))", tmp_path / "copy", path=wheel)
    assert "usage: hpcrl COMMAND" in python("-m", "hpcrl", "--help", path=tmp_path / "copy")
    assert (tmp_path / "copy/hpcrl/sbatch/array.sbatch").read_text() == (ROOT / "sbatch/array.sbatch").read_text()
