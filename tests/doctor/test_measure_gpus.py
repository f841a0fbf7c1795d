"""A node's GPUs and links, in the words of `nvidia-smi topo -m`."""

from support.gpus import inventory_of

from hpcrl.agent.nvml import NO_LIBRARY
from hpcrl.doctor.measure_gpus import gpus_of
from hpcrl.doctor.measurements import GpuMeasurements


def measured(node: str) -> GpuMeasurements:
    return gpus_of(inventory_of(node, connections=True))


def test_gpus_are_named_and_their_parts_are_not():
    assert measured("mig").names == ("NVIDIA A100-SXM4-80GB",) * 4


def test_gpus_on_a_switch_are_linked_by_nvlink():
    assert measured("dgx").links == dict.fromkeys(["0-1", "0-2", "0-3", "1-2", "1-3", "2-3"], "NV18")


def test_gpus_on_two_sockets():
    assert measured("pcie").links == {
        "0-1": "PIX", "2-3": "PIX", "0-2": "SYS", "0-3": "SYS", "1-2": "SYS", "1-3": "SYS"
    }  # fmt: skip


def test_bridges_join_some_and_not_others():
    assert measured("bridges").links == {
        "0-1": "NV4", "2-3": "NV4", "0-2": "NODE", "0-3": "NODE", "1-2": "NODE", "1-3": "NODE"
    }  # fmt: skip


def test_a_lost_gpu_is_left_out_and_said():
    found = measured("lost")
    assert len(found.names) == 3 and found.complaint == "GPU 2: GPU is lost"


def test_a_node_without_gpus_says_why():
    assert measured("no library") == GpuMeasurements(complaint=NO_LIBRARY)
    assert measured("no driver") == GpuMeasurements(complaint="NVML: Driver Not Loaded")
    assert (measured("none").names, measured("none").complaint) == ((), "no devices were found")
