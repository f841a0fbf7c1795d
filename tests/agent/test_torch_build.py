"""Which torch runs on which node, and what is said where it does not."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.gpus import NODES, FakeNode, a100s, inventory_of

from hpcrl.agent import gpus
from hpcrl.agent.gpus import bindings
from hpcrl.agent.nvml import Inventory
from hpcrl.agent.torch_build import TorchBuild, build_problems, install_line, measure_build, older_driver, runs_on
from hpcrl.config.cluster import ClusterConfig
from hpcrl.errors import ConfigurationError

CU126 = TorchBuild("python", "2.11.0+cu126", "12.6", None, ("sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_90"))
CU128 = TorchBuild("python", "2.11.0+cu128", "12.8", None, ("sm_75", "sm_80", "sm_90", "sm_100", "sm_120"))
CU130 = TorchBuild("python", "2.11.0+cu130", "13.0", None, ("sm_75", "sm_80", "sm_90", "sm_120", "compute_120"))
CPU = TorchBuild("python", "2.13.0+cpu")
ROCM = TorchBuild("python", "2.11.0+rocm7", None, "7.0")
GONE = TorchBuild("python", failed="ModuleNotFoundError: No module named 'torch'")
INSTALL = "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/"


def node(driver: str, cuda: int | None, capability: tuple[int, int] | None) -> Inventory:
    return inventory_of(FakeNode(a100s(capability=capability), driver=driver, cuda=cuda))


def said(build: TorchBuild, there: Inventory) -> str:
    return "\n".join(map(str, build_problems(build, there, there.devices)))


@pytest.mark.parametrize(
    ("build", "driver", "cuda", "capability"),
    [
        (CU126, "550.54", 12040, (8, 0)),
        (CU128, "525.60", 12000, (9, 0)),
        (CU128, "570.00", 12080, (12, 0)),
        (CU130, "580.65", 13000, (9, 0)),
        (CU130, "580.65", 13000, (12, 1)),
        (CU126, "580.65", 13000, (8, 9)),
        (CU126, "", None, None),
    ],
)
def test_a_build_for_the_drivers_cuda_and_the_gpus_generation_is_fine(build, driver, cuda, capability):
    assert said(build, node(driver, cuda, capability)) == ""


@pytest.mark.parametrize(
    ("build", "driver", "cuda", "capability", "text", "advice"),
    [
        (CPU, "550.54", 12040, (8, 0), "built for CPUs only", INSTALL + "cu126. Or set cluster.device to cpu."),
        (CPU, "570.00", 12080, (12, 0), "4 × NVIDIA A100-SXM4-80GB, but torch 2.13.0+cpu of", INSTALL + "cu128."),
        (CPU, "580.65", 13000, (9, 0), "built for CPUs only", INSTALL + "cu130."),
        (CPU, "580.65", 13000, (7, 0), "built for CPUs only", INSTALL + "cu126."),
        (ROCM, "550.54", 12040, (8, 0), "built for ROCm", INSTALL + "cu126."),
        (GONE, "550.54", 12040, (8, 0), "cannot be imported by python: ModuleNotFoundError", INSTALL + "cu126"),
        (CU130, "550.54", 12040, (8, 0), "built for CUDA 13.0, but this node's driver 550.54 knows CUDA only up to 12",
         INSTALL + "cu126. Or have the driver updated."),
        (CU126, "470.82", 11040, (8, 0), "only up to 11.4", "driver 470.82: it has to be 525 or newer."),
        (GONE, "470.82", 11040, (8, 0), "cannot be imported", "driver 470.82: it has to be 525 or newer."),
        (CU126, "570.00", 12080, (12, 0), "has no code for 4 × NVIDIA A100-SXM4-80GB (compute capability 12.0); it has "
         "sm_50 sm_60", INSTALL + "cu128."),
        (CU130, "580.65", 13000, (7, 0), "compute capability 7.0", INSTALL + "cu126."),
    ],
)  # fmt: skip
def test_what_does_not_run_is_named_with_the_line_that_installs_what_does(
    build, driver, cuda, capability, text, advice
):
    there = node(driver, cuda, capability)
    (problem,) = build_problems(build, there, there.devices)
    assert text in problem.text and advice in problem.advice


def test_the_line_that_is_advised_installs_a_build_that_runs():
    builds = {"cu126": CU126, "cu128": CU128, "cu130": CU130}
    for cuda, capability in [(12040, (7, 0)), (12040, (9, 0)), (12080, (12, 0)), (13000, (9, 0)), (13000, (6, 0))]:
        there = node("any", cuda, capability)
        tag = install_line(there, there.devices).rpartition("/")[2]
        assert said(builds[tag], there) == "", (cuda, capability, tag)


def test_what_is_advised_instead_of_another_torch_serves_as_well():
    """Whether a torch runs is decided here alone, by what it and the driver say of themselves."""
    old, new = node("550.54", 12040, (8, 0)), node("580.65", 13000, (8, 0))
    assert said(CU130, old).endswith("Or have the driver updated.") and said(CU130, new) == ""
    assert said(CPU, old).endswith("Or set cluster.device to cpu.")
    (place,) = bindings(ClusterConfig(device="cpu", workers_per_node=1), 0, {}, lambda: CPU)
    assert place.device == "cpu"


@pytest.mark.parametrize(
    ("architectures", "capability", "runs"),
    [
        ("sm_80", (8, 0), True),
        ("sm_80", (8, 6), True),
        ("sm_86", (8, 0), False),
        ("sm_80", (9, 0), False),
        ("sm_80 compute_80", (9, 0), True),
        ("sm_80 compute_90", (8, 9), True),
        ("compute_90", (8, 0), False),
        ("sm_90a", (9, 0), True),
        ("sm_100a", (10, 3), False),
        ("sm_100", (10, 3), True),
        ("sm_120", (12, 0), True),
        ("sm_90", None, True),
        ("", (9, 0), True),
    ],
)
def test_code_runs_on_later_processors_of_its_generation_and_what_is_compiled_late_on_all_later(
    architectures, capability, runs
):
    assert runs_on(architectures.split(), capability) == runs


def test_an_older_driver_of_the_same_major_version_is_noticed():
    assert older_driver(CU128, node("550", 12040, (8, 0))) and not older_driver(CU126, node("570", 12080, (8, 0)))


def test_the_torch_of_this_python_is_measured_by_a_child():
    code = "import sys; from hpcrl.agent import torch_build; print(torch_build.measure_build(), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("False")
    assert f"version='{torch.__version__}', cuda={torch.version.cuda!r}" in done.stdout


def test_a_torch_that_cannot_be_imported_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so.12: cannot open shared object file')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert measure_build().failed == "ImportError: libcudart.so.12: cannot open shared object file"


@pytest.mark.parametrize(
    ("code", "failed"),
    [("exec(SPIN); raise ImportError('in the end')", "in the end"), ("time.sleep(600)", "has stood still for 6 s")],
    ids=["comes further", "stands still"],
)
def test_an_import_has_as_long_as_it_takes_while_it_comes_further(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, failed: str
) -> None:
    spin = "SPIN = 'end = time.monotonic() + 12\\nwhile time.monotonic() < end: pass'"
    (tmp_path / "torch.py").write_text(f"import time\n{spin}\n{code}\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert measure_build(6.0).failed.endswith(failed)


def test_an_agent_with_gpus_and_a_torch_for_cpus_forks_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gpus, "read_inventory", lambda: inventory_of("a100"))
    cluster = ClusterConfig(workers_per_node=2)
    with pytest.raises(ConfigurationError, match=r"2 × NVIDIA A100-SXM4-80GB, but torch 2\.13\.0\+cpu") as error:
        bindings(cluster, 0, {}, lambda: CPU)
    assert error.value.advice and INSTALL in error.value.advice[0]
    assert [binding.device for binding in bindings(cluster, 0, {}, lambda: CU126)] == ["cuda:0", "cuda:1"]
    monkeypatch.setattr(gpus, "read_inventory", lambda: inventory_of(replace(NODES["none"])))
    assert [binding.device for binding in bindings(cluster, 0, {}, lambda: pytest.fail("no GPU"))] == ["cpu", "cpu"]
