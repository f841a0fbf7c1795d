"""From what NVML says to what a worker sees, through real agents with an NVML of the test's own."""

import json
import os
import signal
import subprocess
import sys
import uuid
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.chaos import create_run, outputs, patient_experiment, rows_of, wait_until
from support.cluster import start
from support.gpus import A100_UUIDS, NODES, FakeNode, a100s, inventory_of
from support.hosts import write_task
from support.nodes import VARIABLES, OnNode

from hpcrl.agent import claims, gpus
from hpcrl.agent.devices import usable
from hpcrl.agent.gpus import DeviceBinding, bindings, choose, place_on
from hpcrl.agent.nvml import Inventory, read_inventory
from hpcrl.agent.starter import Starter
from hpcrl.algos import host as host_module
from hpcrl.config.cluster import ClusterConfig
from hpcrl.config.control import ControlConfig
from hpcrl.config.data import DataConfig
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ConfigurationError, ExitCode, InternalError, StoppedError
from hpcrl.recipes.sft import SFTExperiment, SFTModelConfig


def cluster(**values: Any) -> ClusterConfig:
    return ClusterConfig(**{"device": "auto", "workers_per_node": 2} | values)


# ── decisions ─────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_workers_compute_on_cpus_where_that_is_asked_for_or_gpus_are_hidden(monkeypatch):
    monkeypatch.setattr(gpus, "read_inventory", lambda: pytest.fail("nobody had to ask"))
    assert bindings(cluster(device="cpu"), 0, {}) == (DeviceBinding(), DeviceBinding())
    assert bindings(cluster(), 0, {"CUDA_VISIBLE_DEVICES": ""}) == (DeviceBinding(), DeviceBinding())


def test_auto_takes_cpus_where_there_is_no_gpu_and_cuda_refuses(monkeypatch):
    monkeypatch.setattr(gpus, "DEVICE_FILES", "/nowhere")
    for there in (Inventory(has_library=False), inventory_of("none"), inventory_of("no driver")):
        assert choose(cluster(), 0, {}, there) == ()
        with pytest.raises(ConfigurationError, match=r"cluster\.workers_per_node = 2"):
            choose(cluster(device="cuda"), 0, {}, there)
    # A GPU that is split into nothing is none.
    bare = FakeNode(a100s(A100_UUIDS[0], split=True))
    assert choose(cluster(), 0, {}, inventory_of(bare)) == ()
    # What a cluster with made-up GPUs sets.
    assert choose(cluster(), 0, {"CUDA_VISIBLE_DEVICES": "0,1"}, Inventory(has_library=False)) == ()


def test_gpus_without_the_drivers_library_are_not_overlooked(monkeypatch, tmp_path):
    (tmp_path / "nvidia0").touch()
    monkeypatch.setattr(gpus, "DEVICE_FILES", str(tmp_path / "nvidia[0-9]*"))
    with pytest.raises(ConfigurationError, match=r"nvidia\[0-9\]\*, but .*libnvidia-ml.so.1, cannot be loaded.*--nv"):
        choose(cluster(), 0, {}, Inventory(has_library=False))


@pytest.mark.parametrize("node", ["none", "no driver", "mismatch", "fallen", "lost"])
def test_a_broken_node_is_left_to_be_tried_elsewhere(node):
    with pytest.raises(StoppedError) as refused:
        choose(cluster(workers_per_node=4), 0, {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, inventory_of(node))
    assert inventory_of(node).complaints[0] in str(refused.value)


def test_devices_that_a_mask_does_not_name_are_not_taken():
    with pytest.raises(ConfigurationError, match="CUDA_VISIBLE_DEVICES=6,7"):
        choose(cluster(), 0, {"CUDA_VISIBLE_DEVICES": "6,7"}, inventory_of("a100"))


def test_a_second_agent_of_one_machine_takes_the_gpus_after_those_of_the_first():
    there = inventory_of("a100")
    given = [choose(cluster(), first, {}, there) for first in (0, 2)]
    assert [device.index for devices in given for device in devices] == [0, 1, 2, 3]
    with pytest.raises(ConfigurationError, match="after the 4"):
        choose(cluster(), 4, {}, there)


def test_shared_workers_see_what_the_job_sees_and_name_their_own():
    there = usable(inventory_of("a100").devices)
    visible = (there[2], there[0])
    order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert place_on(there[0], visible, True, False) == DeviceBinding("cuda:1", there[0].uuid, order)
    named = order | {"CUDA_VISIBLE_DEVICES": f"{there[2].uuid},{there[0].uuid}"}
    assert place_on(there[0], visible, False, False) == DeviceBinding("cuda:1", there[0].uuid, named)


def test_strict_workers_and_those_on_instances_see_one_device():
    there = usable(inventory_of("mig").devices)
    for device, strict in ((there[3], True), (there[1], False)):
        place = place_on(device, there, False, strict)
        assert place.device == "cuda:0" and place.environment["CUDA_VISIBLE_DEVICES"] == device.uuid
    # Beside instances a whole GPU is seen alone: no process sees both.
    place = place_on(there[3], there, False, False)
    assert place.device == "cuda:0" and place.environment["CUDA_VISIBLE_DEVICES"] == there[3].uuid


@pytest.mark.parametrize("bind_cpus", [True, False])
def test_workers_keep_to_the_cpus_that_the_driver_names_next_to_their_gpus(bind_cpus, monkeypatch):
    monkeypatch.setattr(gpus, "read_inventory", lambda: inventory_of("pcie"))
    monkeypatch.setattr(gpus, "read_cores", lambda: [{core, core + 20} for core in range(20)])
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(40)))
    given = bindings(cluster(workers_per_node=4, bind_cpus=bind_cpus), 0, {})
    low, high = {*range(10), *range(20, 30)}, {*range(10, 20), *range(30, 40)}
    if not bind_cpus:
        assert [place.cpus for place in given] == [()] * 4
        return
    assert set(given[0].cpus) | set(given[1].cpus) == low and set(given[2].cpus) | set(given[3].cpus) == high
    assert [len(place.cpus) for place in given] == [10] * 4


# ── through real agents ───────────────────────────────────────────────────────────────────────────────────────────────
def gpu_run(root: Path, device: Any = "auto", **values: Any) -> RunDirectory:
    toy = patient_experiment(steps=2, **values)
    return create_run(root, replace(toy, cluster=replace(toy.cluster, device=device)))


def of_worker(folder: Path, rank: int) -> dict[str, Any]:
    return json.loads((folder / f"worker-{rank}.json").read_text())


def forked(run: RunDirectory, node: int = 0) -> dict[str, Any]:
    return next(row for row in rows_of(run.worker_log(0, f"agent-{node}")) if row["event"] == "forked")


def of_a100s(folder: Path, environ: dict[str, str], **values: Any) -> OnNode:
    return OnNode(folder, environ, NODES["a100"], **values)


def test_shared_workers_of_a_run_see_all_gpus_and_take_their_own(tmp_path):
    run = gpu_run(tmp_path / "run")
    node = of_a100s(tmp_path, {"CUDA_VISIBLE_DEVICES": "3,1", "SLURM_JOB_GPUS": "7,5"})
    assert set(start(run.root, "s", node).wait(90).values()) == {0}, outputs(run)
    event = forked(run)
    assert event["devices"] == ["cuda:0", "cuda:1"] and [uuid[:12] for uuid in event["uuids"]] == [
        "GPU-c78d556a",
        "GPU-e52dfcc4",
    ]
    allowed = os.sched_getaffinity(0)
    for rank in range(2):
        found = of_worker(tmp_path, rank)
        assert found["CUDA_VISIBLE_DEVICES"] == "3,1" and found["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
        assert set(found["cpus"]) <= allowed
    if len(allowed) > 1:
        assert not set(of_worker(tmp_path, 0)["cpus"]) & set(of_worker(tmp_path, 1)["cpus"])


def test_strict_workers_of_a_run_see_their_own_gpu(tmp_path):
    run = gpu_run(tmp_path / "run", gpu_isolation="strict", bind_cpus=False)
    node = of_a100s(tmp_path, {"CUDA_VISIBLE_DEVICES": "GPU-2812eb50,GPU-b6"})
    assert set(start(run.root, "s", node).wait(90).values()) == {0}, outputs(run)
    assert forked(run)["devices"] == ["cuda:0", "cuda:0"]
    assert [of_worker(tmp_path, rank)["CUDA_VISIBLE_DEVICES"][:12] for rank in range(2)] == [
        "GPU-2812eb50",
        "GPU-b614723c",
    ]
    assert of_worker(tmp_path, 0)["cpus"] == sorted(os.sched_getaffinity(0))


def test_cpu_workers_are_left_alone(tmp_path):
    run = gpu_run(tmp_path / "run", device="cpu")
    node = of_a100s(tmp_path, {"CUDA_VISIBLE_DEVICES": "0"})
    assert set(start(run.root, "s", node).wait(90).values()) == {0}, outputs(run)
    found = of_worker(tmp_path, 1)
    assert found["CUDA_VISIBLE_DEVICES"] == "0" and found["CUDA_DEVICE_ORDER"] is None
    assert found["cpus"] == sorted(os.sched_getaffinity(0))
    assert not list((tmp_path / "shm").iterdir())


def test_too_few_gpus_end_the_run_with_a_users_error_before_there_is_a_worker(tmp_path):
    run = gpu_run(tmp_path / "run")
    codes = start(run.root, "s", of_a100s(tmp_path, {"CUDA_VISIBLE_DEVICES": "1"})).wait(90)
    assert set(codes.values()) == {ExitCode.CONFIGURATION}, outputs(run)
    verdict = run.read_verdict(0)
    assert verdict is not None and verdict.state == "failed"
    assert "cluster.workers_per_node = 2" in verdict.reason and "CUDA_VISIBLE_DEVICES=1" in verdict.reason
    assert not list(tmp_path.glob("worker-*.json"))


def test_a_torch_that_computes_on_no_gpu_ends_the_run_with_the_line_that_installs_one_that_does(tmp_path):
    """The torch of these tests is one for CPUs, or too new for the made-up driver."""
    write_task(tmp_path)
    experiment = SFTExperiment(
        control=ControlConfig(steps=1),
        cluster=ClusterConfig(workers_per_node=2, start_timeout_s=60.0),
        data=DataConfig(train=str(tmp_path / "rows.jsonl"), batch_size=4),
        actor=SFTModelConfig(path=str(tmp_path / "model")),
    )
    run = create_run(tmp_path / "run", experiment)
    node = OnNode(tmp_path, {"CUDA_VISIBLE_DEVICES": "0,1"}, replace(NODES["a100"], driver="470.82.01", cuda=11040))
    codes = start(run.root, "s", node).wait(60)
    assert set(codes.values()) == {ExitCode.CONFIGURATION}, outputs(run)
    verdict = run.read_verdict(0)
    assert verdict is not None and f"torch {torch.__version__} of {sys.executable} is built for" in verdict.reason
    assert "driver 470.82.01: it has to be 525 or newer" in verdict.reason
    assert not list(tmp_path.glob("worker-*.json"))


def test_a_node_whose_driver_does_not_answer_is_tried_again_elsewhere(tmp_path):
    run = gpu_run(tmp_path / "run")
    node = OnNode(tmp_path, {"CUDA_VISIBLE_DEVICES": "0,1"}, NODES["no driver"])
    codes = start(run.root, "s", node).wait(90)
    assert set(codes.values()) == {ExitCode.REQUEUE}, outputs(run)
    verdict = run.read_verdict(0)
    assert verdict is not None and "Driver Not Loaded" in verdict.reason


def test_two_runs_on_one_gpu_are_refused_naming_the_other(tmp_path):
    first, second = gpu_run(tmp_path / "first", lost_after_s=10.0), gpu_run(tmp_path / "second")
    node = of_a100s(tmp_path, {"CUDA_VISIBLE_DEVICES": "0,1"})
    jobs = start(first.root, "s", node)
    os.kill(jobs.pid("master"), signal.SIGSTOP)
    try:
        wait_for_claims(tmp_path / "shm", 2)
        codes = start(second.root, "s", node).wait(90)
        assert set(codes.values()) == {ExitCode.CONFIGURATION}, outputs(second)
        verdict = second.read_verdict(0)
        assert verdict is not None
        assert f"process {jobs.pid('agent-0')}" in verdict.reason and str(first.root) in verdict.reason
    finally:
        os.kill(jobs.pid("master"), signal.SIGCONT)
        jobs.kill_all()
    # What was killed holds nothing.
    assert set(start(second.root, "again", node).wait(90).values()) == {0}, outputs(second)


def wait_for_claims(shared: Path, count: int) -> None:
    wait_until(lambda: len(list(shared.glob("*/*.lock"))) == count, 90, "the claims")


def test_two_agents_on_one_gpu_that_cannot_see_each_others_claims_are_refused_by_the_master(tmp_path):
    run = gpu_run(tmp_path / "run", nodes=2, workers_per_node=1, type="slurm")
    node = of_a100s(tmp_path, {"CUDA_VISIBLE_DEVICES": "2"}, private=("agent-1",))
    codes = start(run.root, "s", node, nodes=2).wait(90)
    assert set(codes.values()) == {ExitCode.CONFIGURATION}, outputs(run)
    verdict = run.read_verdict(0)
    assert verdict is not None and "worker-0 and worker-1 have the same GPU GPU-2812eb50" in verdict.reason
    assert not list(tmp_path.glob("worker-*.json"))


def test_several_agents_of_one_node_have_the_gpus_that_slurm_gave_each(tmp_path):
    run = gpu_run(tmp_path / "run", nodes=2, workers_per_node=1, type="slurm")
    given = {"agent-0": {"CUDA_VISIBLE_DEVICES": "2"}, "agent-1": {"CUDA_VISIBLE_DEVICES": "0"}}
    codes = start(run.root, "s", of_a100s(tmp_path, {}, by_agent=given), nodes=2).wait(90)
    assert set(codes.values()) == {0}, outputs(run)
    assert [forked(run, node)["uuids"][0][:12] for node in range(2)] == ["GPU-2812eb50", "GPU-b614723c"]


def test_a_run_on_this_machine_has_the_gpus_that_its_user_named_and_not_submitits(tmp_path):
    run = gpu_run(tmp_path / "run")
    # These agents claim in the real place: nobody else has these devices.
    uuids = [f"GPU-{uuid.uuid4()}" for _ in range(3)]
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nfrom support.gpus import FakeNode, FakeNvml, a100s\n"
        f"sys.modules['pynvml'] = FakeNvml(FakeNode(a100s(*{uuids})))\n"
    )
    folders = [str(tmp_path), str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environ = os.environ | {"PYTHONPATH": ":".join(folders), "CUDA_VISIBLE_DEVICES": f"{uuids[2]},{uuids[0]}"}
    try:
        subprocess.run([sys.executable, "-m", "hpcrl.launch.local", str(run.root), "s"], env=environ, check=True)
        wait_until(lambda: run.read_verdict(0) is not None if run.numbers() else False, 90, "the end of the run")
        verdict = run.read_verdict(0)
        assert verdict is not None and verdict.state == "done", verdict
        assert forked(run)["uuids"] == [uuids[2], uuids[0]]
    finally:
        for name in uuids:
            (claims.claims_folder() / f"{name}.lock").unlink(missing_ok=True)


# ── the worker's side ─────────────────────────────────────────────────────────────────────────────────────────────────
def test_a_worker_refuses_a_device_that_is_not_the_one_that_was_meant(monkeypatch):
    class Properties:
        uuid = "b614723c-e261-4605-066e-79daab4c00ff"

    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties)
    assert host_module._device("cuda:1", f"GPU-{Properties.uuid}") == torch.device("cuda", 1)
    assert host_module._device("cuda:0", "MIG-dc34c2fd") == torch.device("cuda", 0)
    with pytest.raises(InternalError, match="GPU-e52dfcc4"):
        host_module._device("cuda:1", "GPU-e52dfcc4-406d-a3d4-f787-4402b535877a")
    assert host_module._device("cpu", "") == torch.device("cpu")


def test_strict_isolation_serves_where_cuda_numbers_devices_in_another_order_than_the_agent(monkeypatch):
    """CUDA's two calls are stand-ins: the place of a worker is checked by nothing but the UUID that they tell."""

    def properties(device: torch.device) -> SimpleNamespace:
        seen = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(reversed(A100_UUIDS))).split(",")
        return SimpleNamespace(uuid=seen[device.index].removeprefix("GPU-"))

    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    monkeypatch.setattr(os, "environ", {})
    visible = usable(inventory_of("a100").devices)
    shared, strict = (place_on(visible[1], visible, True, isolation) for isolation in (False, True))
    gpus.bind(shared.environment, ())
    with pytest.raises(InternalError, match=r"Set cluster\.gpu_isolation to strict\."):
        host_module._device(shared.device, shared.uuid)
    gpus.bind(strict.environment, ())
    assert host_module._device(strict.device, strict.uuid) == torch.device("cuda", 0)


SEEN = """
import json, sys, torch
from hpcrl.agent.gpus import bind
bind(json.loads(sys.argv[1]), json.loads(sys.argv[3]))
import os
found = torch.cuda.get_device_properties(torch.device(sys.argv[2]))
print(json.dumps([torch.cuda.device_count(), str(found.uuid), sorted(os.sched_getaffinity(0))]))
"""


def seen_by(place: DeviceBinding, environ: dict[str, str]) -> list[Any]:
    """How many devices a process in this place sees, its own one's UUID, and where it runs."""
    clean = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    words = [json.dumps(dict(place.environment)), place.device, json.dumps(place.cpus)]
    done = subprocess.run([sys.executable, "-c", SEEN, *words], env=clean | environ, capture_output=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("isolation", ["shared", "strict"])
@pytest.mark.parametrize("spelling", ["unset", "numbers", "reversed", "uuids", "prefixes", "ignored rest", "slurm"])
def test_cuda_gives_a_worker_the_device_that_was_meant(isolation, spelling):
    there = usable(read_inventory().devices)
    whole = [device for device in there if device.mig is None]
    numbers, uuids = [str(device.index) for device in whole], [device.uuid for device in whole]
    environ = {
        "unset": {},
        "numbers": {"CUDA_VISIBLE_DEVICES": ",".join(numbers)},
        "reversed": {"CUDA_VISIBLE_DEVICES": ",".join(reversed(numbers)), "CUDA_DEVICE_ORDER": "FASTEST_FIRST"},
        "uuids": {"CUDA_VISIBLE_DEVICES": ",".join(reversed(uuids))},
        "prefixes": {"CUDA_VISIBLE_DEVICES": ",".join(uuid[:16] for uuid in uuids)},
        "ignored rest": {"CUDA_VISIBLE_DEVICES": f"{numbers[-1]}, -1, {numbers[0]}"},
        "slurm": {"SLURM_STEP_GPUS": numbers[-1]},
    }[spelling]
    count = len(gpus.visible_devices(environ, there))
    given = bindings(cluster(workers_per_node=count, gpu_isolation=isolation), 0, environ)
    for place in given:
        number, uuid, cpus = seen_by(place, environ)
        assert number == (1 if isolation == "strict" else count)
        assert place.uuid.startswith("MIG-") or f"GPU-{uuid}" == place.uuid
        assert tuple(cpus) == place.cpus


def test_a_cpu_worker_has_the_slot_after_those_of_the_gpus_and_sees_none_of_them():
    starter = object.__new__(Starter)
    object.__setattr__(starter, "bindings", (DeviceBinding("cuda:0", "a"), DeviceBinding("cuda:1", "b")))
    assert [starter._binding(slot).device for slot in range(3)] == ["cuda:0", "cuda:1", "cpu"]
    assert dict(starter._binding(2).environment) == {"CUDA_VISIBLE_DEVICES": ""} and starter.devices == ("a", "b")
