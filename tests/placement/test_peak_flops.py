import pytest

from hpcrl.placement.peak_flops import peak_of


@pytest.mark.parametrize(
    ("device", "dtype", "tflops"),
    [
        ("NVIDIA H100 80GB HBM3", "bf16", 989.4),
        ("NVIDIA H100 PCIe", "bf16", 756),
        ("NVIDIA H200", "tf32", 494.7),
        ("NVIDIA A100-SXM4-80GB", "fp16", 312),
        ("NVIDIA A10G", "bf16", 70),
        ("NVIDIA L40S", "fp32", 91.6),
        ("NVIDIA L4", "bf16", 121),
        ("Tesla V100-PCIE-16GB", "fp16", 112),
        ("Tesla V100-SXM2-32GB", "bf16", None),
        ("NVIDIA A100-SXM4-80GB", "fp64", None),
        ("AMD EPYC 7763 64-Core Processor", "fp32", None),
    ],
)
def test_a_gpu_is_known_by_the_words_of_its_name(device: str, dtype: str, tflops: float | None) -> None:
    assert peak_of(device, dtype) == (None if tflops is None else pytest.approx(tflops * 1e12))
