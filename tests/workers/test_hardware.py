"""The names of what workers compute on, from the kernel's texts."""

import pytest

from hpcrl.workers.hardware import CPUS, cpu_model, gpu_model, hardware_of

CPUINFO = """processor\t: 0
vendor_id\t: GenuineIntel
model name\t: Intel(R) Xeon(R) Platinum 8480+
processor\t: 1
model name\t: another
"""
INFORMATION = """Model: \t\t NVIDIA H100 80GB HBM3
IRQ:   \t\t 18
GPU UUID: \t GPU-{uuid}
Bus Type: \t PCIe
"""


def test_a_cpu_is_known_by_the_model_of_the_first_processor():
    assert cpu_model(CPUINFO) == "Intel(R) Xeon(R) Platinum 8480+"
    assert cpu_model("processor : 0\nBogoMIPS : 50\n") == ""


@pytest.mark.parametrize(
    ("uuid", "model"),
    [("GPU-b", "NVIDIA A100"), ("GPU-a", "NVIDIA H100 80GB HBM3"), ("GPU-", ""), ("MIG-a", ""), ("", "")],
)
def test_a_gpu_is_known_by_its_uuid(uuid, model):
    texts = [INFORMATION.format(uuid="a"), "", INFORMATION.format(uuid="b").replace("H100 80GB HBM3", "A100")]
    assert gpu_model(texts, uuid) == model


def test_where_the_kernel_does_not_tell_the_kind_of_device_is_its_name():
    assert hardware_of("cuda:1", "GPU-of-nobody") == "cuda"
    assert hardware_of("cpu", "") == (cpu_model(CPUS.read_text()) or "cpu")
