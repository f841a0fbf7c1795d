"""nvidia-smi's texts, in the form of several versions, as values."""

from pathlib import Path

import pytest

from hpcrl.doctor import gpus as doctor_gpus
from hpcrl.doctor.gpus import gpus_here, parse_list, parse_topology
from hpcrl.doctor.measurements import GpuMeasurements

TEXTS = Path(__file__).parents[1] / "agent" / "texts"
LIST = """GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-0f9ff9ba-3c11-3a3a-5a7f-6f1f2f9a0a01)
  MIG 1g.10gb     Device  0: (UUID: MIG-3d2ad6a3-2a0c-5a5e-9a15-7d9a3d6a1d11)
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-0f9ff9ba-3c11-3a3a-5a7f-6f1f2f9a0a02)
"""


def test_the_list_names_gpus_and_not_their_parts():
    assert parse_list(LIST) == ("NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3")
    assert parse_list("No devices found.\n") == ()


def test_all_pairs_of_gpus_and_no_network_cards():
    links = parse_topology((TEXTS / "topo-dgx.txt").read_text())
    assert links == dict.fromkeys(["0-1", "0-2", "0-3", "1-2", "1-3", "2-3"], "NV18")


def test_gpus_on_two_sockets():
    links = parse_topology((TEXTS / "topo-pcie.txt").read_text())
    assert links == {"0-1": "PIX", "2-3": "PIX", "0-2": "SYS", "0-3": "SYS", "1-2": "SYS", "1-3": "SYS"}


@pytest.mark.parametrize("text", ["", "Failed to initialize NVML", "\tGPU0\tCPU Affinity\nGPU0\t X \t0-15\n"])
def test_of_one_gpu_or_none_there_are_no_links(text):
    assert parse_topology(text) == {}


def test_a_node_without_nvidia_smi_has_no_gpus(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpus_here() == GpuMeasurements(tool=False)


def test_an_nvidia_smi_that_fails_shows_none(monkeypatch, tmp_path):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed' >&2\nexit 9\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpus_here() == GpuMeasurements(tool=False)


def test_a_node_asks_nvidia_smi(monkeypatch):
    answers = {("-L",): LIST, ("topo", "-m"): "\tGPU0\tGPU1\nGPU0\t X \tNV4\nGPU1\tNV4\t X \n"}
    monkeypatch.setattr(doctor_gpus, "_ask", lambda *words: answers[words])
    assert gpus_here() == GpuMeasurements(True, ("NVIDIA H100 80GB HBM3",) * 2, {"0-1": "NV4"})
