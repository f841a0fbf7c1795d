"""What memory workers will have, as this machine says it."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from support.experiments import load_config, ppo_values, write_config, write_inputs, write_model
from support.gpus import FakeGpu, FakeNode, FakeNvml

from hpcrl.cli.main import main
from hpcrl.config.cluster import ClusterConfig
from hpcrl.errors import ConfigurationError, ExitCode
from hpcrl.launch import answering, local_memory
from hpcrl.launch.local import LocalLauncher
from hpcrl.placement.capacity import on_its_device
from hpcrl.placement.check import ALL_CHECKS
from hpcrl.placement.search_inputs import rates_asked

MEMINFO = "MemTotal:       24000000 kB\nMemFree:        1 kB\n"


def test_a_container_has_what_its_limit_says(tmp_path):
    meminfo, limit = tmp_path / "meminfo", tmp_path / "memory.max"
    meminfo.write_text(MEMINFO)
    limit.write_text("max\n")
    assert local_memory.machine_bytes(meminfo, (limit,)) == 24_000_000 * 1024
    limit.write_text("1048576\n")
    assert local_memory.machine_bytes(meminfo, (limit, tmp_path / "none")) == 1048576


def test_workers_on_gpus_have_the_smallest(monkeypatch):
    gpus = tuple(FakeGpu(f"GPU-{size}", "a GPU", bus=size, memory=size << 30) for size in (80, 40))
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(FakeNode(gpus)))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found = local_memory.memory(ClusterConfig())
    assert (found.bytes, found.of, found.gpu) == (40 << 30, "worker", "a GPU")
    assert found.host is not None
    assert (found.host().bytes, found.host().of) == (local_memory.machine_bytes(), "node")
    assert local_memory.memory(ClusterConfig(device="cpu")).of == "node"


def test_gpus_that_are_hidden_from_this_process_are_none_of_its_workers(monkeypatch):
    gpus = tuple(FakeGpu(f"GPU-{size}", "a GPU", bus=size, memory=size << 30) for size in (40, 80))
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(FakeNode(gpus)))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert local_memory.memory(ClusterConfig()).of == "node"
    assert local_memory.memory(ClusterConfig(device="cuda")).bytes is None
    assert answering.device_of("auto") == "cpu"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert local_memory.memory(ClusterConfig()).bytes == 80 << 30
    assert answering.device_of("auto") == "cuda"
    assert answering.free_bytes("cuda") == (80 << 30, "the first GPU")
    in_use = tuple(replace(gpu, used=gpu.memory - (7 << 30)) for gpu in gpus)
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(FakeNode(in_use)))
    assert answering.free_bytes("cuda") == (7 << 30, "the first GPU")
    silent = tuple(replace(gpu, memory=None) for gpu in gpus)
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(FakeNode(silent)))
    assert answering.free_bytes("cuda") == (None, "the first GPU")


def test_times_are_those_of_the_gpu_that_is_here_unless_settings_name_another(tmp_path, monkeypatch):
    here = FakeGpu("GPU-1", "NVIDIA H100 80GB HBM3", bus=1, memory=80 << 30)
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(FakeNode((here,))))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    write_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    experiment = load_config(write_config(tmp_path / "ppo.yaml", ppo_values()), (), ALL_CHECKS)
    capacity = local_memory.memory(experiment.cluster)
    assert rates_asked(on_its_device(experiment, capacity)).device == "NVIDIA H100 80GB HBM3"
    other = replace(experiment, search=replace(experiment.search, device="A100"))
    assert rates_asked(on_its_device(other, capacity)).device == "A100"
    on_cpus = replace(experiment, cluster=replace(experiment.cluster, device="cpu"))
    assert on_its_device(on_cpus, local_memory.memory(on_cpus.cluster)) == on_cpus


@pytest.mark.parametrize(("device", "gpus", "refused"), [("cuda", 0, True), ("auto", 1, True), ("auto", 0, False)])
def test_workers_without_a_gpu_each_are_refused_before_anything_is_made(
    tmp_path, monkeypatch, capsys, device, gpus, refused
):
    there = tuple(FakeGpu(f"GPU-{number}", "a GPU", bus=number) for number in range(gpus))
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(FakeNode(there)))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    write_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    values = ppo_values() | {"cluster": {"type": "local", "device": device, "workers_per_node": 2}}
    write_config(tmp_path / "ppo.yaml", values)
    launcher = LocalLauncher()
    experiment = load_config(Path("ppo.yaml"), (), ALL_CHECKS)
    if not refused:
        assert launcher.prepare(experiment) == experiment
        return
    with pytest.raises(ConfigurationError, match=f"needs 2 GPUs on this node, but this job may use {gpus}"):
        launcher.prepare(experiment)
    assert main(["submit", "ppo.yaml", "--run-dir", "run"]) == ExitCode.CONFIGURATION
    assert "or set cluster.device to cpu" in capsys.readouterr().err and not Path("run").exists()


@pytest.mark.parametrize(
    "command", [*(pytest.param(it, marks=pytest.mark.slow) for it in (["plan"], ["submit", "--dry-run"])), ["submit"]]
)
def test_a_model_that_this_machine_cannot_hold_is_refused_before_anything_is_made(
    tmp_path, monkeypatch, capsys, command
):
    write_inputs(tmp_path)
    write_model(tmp_path / "model", hidden_size=16384, intermediate_size=53248, num_hidden_layers=126)
    monkeypatch.chdir(tmp_path)
    config = str(write_config(tmp_path / "ppo.yaml", ppo_values()))
    name, *options = command
    arguments = [name, config, *options, "--cluster", "local", "--cluster.device", "cpu"]
    assert main(arguments) == ExitCode.CONFIGURATION
    assert "but this machine has for it" in capsys.readouterr().err
    assert not Path("runs").exists()
