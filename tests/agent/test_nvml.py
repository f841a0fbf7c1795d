"""What is read of a node's GPUs, on an NVML that answers as real ones do."""

import inspect
import subprocess
import sys
import time

import pynvml
import pytest
from support.gpus import FakeGpu, FakeNode, FakeNvml, inventory_of

from hpcrl.agent.nvml import Device, Inventory


def test_the_fake_is_called_as_pynvml_is():
    calls = [name for name in vars(FakeNvml) if name.startswith("nvml")]
    assert len(calls) > 10
    for name in calls:
        theirs = inspect.signature(getattr(pynvml, name))
        assert list(inspect.signature(getattr(FakeNvml(FakeNode()), name)).parameters) == list(theirs.parameters), name


def test_a_gpu_has_index_uuid_name_and_address():
    found = inventory_of("a100")
    first, *others = found.devices
    assert first == Device(
        0, "GPU-b614723c-e261-4605-066e-79daab4c00ff", "NVIDIA A100-SXM4-80GB", "0000:07:00.0", capability=(8, 0)
    )
    assert [gpu.index for gpu in others] == [1, 2, 3]
    assert found.complaints == () and found.has_library


def test_an_address_is_as_the_kernel_writes_it_and_a_gpu_may_know_no_mig():
    found = inventory_of("h100").devices
    assert [(gpu.pci, gpu.split) for gpu in found] == [("0000:19:00.0", False), ("0001:3b:00.0", False)]


def test_instances_follow_their_gpu_and_have_its_address_and_cpus():
    near = tuple(range(8, 16))
    assert [(device.index, device.uuid[:12], device.split, device.cpus) for device in inventory_of("mig").devices] == [
        (0, "GPU-b614723c", True, ()),
        (0, "MIG-dc34c2fd", False, ()),
        (1, "GPU-e52dfcc4", True, near),
        (1, "MIG-ec4c3916", False, near),
        (1, "MIG-676485be", False, near),
        (2, "GPU-2812eb50", True, ()),
        (3, "GPU-c78d556a", False, ()),
    ]
    gpu, part = inventory_of("mig").devices[:2]
    assert part.mig == gpu.uuid and part.pci == gpu.pci and part.name == "NVIDIA A100-SXM4-80GB MIG 7g.80gb"


def test_instances_of_the_first_drivers_are_read_too():
    gpu, *parts = inventory_of("mig of the first drivers").devices
    assert [part.uuid for part in parts] == [f"MIG-{gpu.uuid}/{number}/0" for number in (2, 3, 9)]
    assert {part.mig for part in parts} == {gpu.uuid}


@pytest.mark.parametrize(
    ("node", "said"),
    [
        ("none", "no devices were found"),
        ("no driver", "NVML: Driver Not Loaded"),
        ("mismatch", "NVML: RM has detected an NVML/RM version mismatch."),
    ],
)
def test_a_driver_that_does_not_answer_has_no_devices_and_says_why(node, said):
    found = inventory_of(node)
    assert (found.devices, found.complaints) == ((), (said,))


@pytest.mark.parametrize(("node", "said"), [("fallen", "GPU 2: Unknown Error"), ("lost", "GPU 2: GPU is lost")])
def test_a_gpu_that_fell_off_its_bus_is_complained_of_and_the_others_keep_their_numbers(node, said):
    found = inventory_of(node, connections=True)
    assert [gpu.index for gpu in found.devices] == [0, 1, 3]
    assert found.complaints == (said,)


def test_what_a_cgroup_hides_is_neither_counted_nor_complained_of():
    found = inventory_of("in a cgroup")
    assert [(gpu.index, gpu.uuid[:12]) for gpu in found.devices] == [(0, "GPU-2812eb50"), (1, "GPU-c78d556a")]
    assert found.complaints == ()
    assert inventory_of(FakeNode((FakeGpu("GPU-a", "A", 1, error=pynvml.NVML_ERROR_NO_PERMISSION),))).complaints == (
        "no devices were found",
    )


def test_a_node_without_the_library_has_no_gpus():
    assert inventory_of("no library") == Inventory(has_library=False)


def test_a_driver_that_hangs_is_a_complaint():
    started = time.monotonic()
    found = inventory_of(FakeNode(hangs_s=60.0), timeout_s=0.2)
    assert found == Inventory(complaints=("NVML did not answer within 0.2 s",))
    assert time.monotonic() - started < 30


def test_what_is_wrong_with_the_reader_is_raised_and_is_no_complaint():
    with pytest.raises(AttributeError):
        inventory_of(FakeNode((None,)))  # type: ignore[arg-type]


def test_a_cpu_beyond_the_first_words_is_named():
    gpu = FakeGpu("GPU-a", "A", 1, cpus="0-1,63-64,255,8191")
    assert inventory_of(FakeNode((gpu,))).devices[0].cpus == (0, 1, 63, 64, 255, 8191)


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        ("dgx", {(0, 1): ("SYS", 18), (0, 2): ("SYS", 18), (2, 3): ("SYS", 18)}),
        ("bridges", {(0, 1): ("NODE", 4), (0, 2): ("NODE", 0), (2, 3): ("NODE", 4)}),
        ("pcie", {(0, 1): ("PIX", 0), (0, 2): ("SYS", 0), (2, 3): ("PIX", 0)}),
        ("a100", {}),
        ("none", {}),
    ],
)
def test_connections_are_paths_and_nvlinks(node, expected):
    found = {
        (one.first, one.second): (one.path, one.nvlinks) for one in inventory_of(node, connections=True).connections
    }
    assert len(found) == (6 if expected else 0)
    assert {pair: found[pair] for pair in expected} == expected
    assert inventory_of(node).connections == ()


def test_pynvml_is_imported_by_who_asks_and_not_by_who_imports():
    words = "import sys, hpcrl.agent.agent, hpcrl.doctor.probe; assert 'pynvml' not in sys.modules"
    subprocess.run([sys.executable, "-c", words], check=True)
