"""What a device can do, read from curves and surfaces; and what data sheets say."""

import math

import numpy as np
import pytest
from msgspec import structs

from hpcrl.placement.data_sheets import CPU_CORE, SHEETS, SOURCE, is_named, rates_of_gpu
from hpcrl.placement.peak_flops import GPUS, peak_of
from hpcrl.placement.rates import Curve, Link, Measured, Piece, Rates, Surface, rates_from_json

LENGTHS = np.array([1.0, 7, 30, 64, 100, 500, 2000, 9000])


def test_a_surface_is_exact_for_what_costs_so_much_a_token_and_a_pair_of_tokens() -> None:
    def cost(tokens: float, length: float) -> float:
        return 5000 + 700 * tokens + 0.3 * tokens * (length + 1) / 2

    surface = Surface.of([(x, y, cost(x, y)) for x in (64, 256, 1024) for y in (16, 128)])
    for tokens, length in ((64, 16), (100, 77), (500, 128), (3000, 400), (70, 16)):
        found = surface.at(np.array([tokens]), np.array([length]))[0]
        assert math.isclose(found, cost(tokens, length), rel_tol=1e-9)


def test_a_surface_of_noisy_points_never_falls_nor_goes_below_nothing() -> None:
    draw = np.random.default_rng(0)
    noisy = Surface.of([(x, y, float(draw.uniform(1, 100))) for x in (1, 10, 100) for y in (1, 20, 30)])
    x, y = np.meshgrid(np.linspace(0, 300, 60), np.linspace(0, 90, 60), indexing="ij")
    found = noisy.at(x, y)
    assert (found >= 0).all() and (np.diff(found, axis=0) >= -1e-9).all() and (np.diff(found, axis=1) >= -1e-9).all()


def test_points_that_are_no_grid_are_refused() -> None:
    with pytest.raises(ValueError, match="3 points are no grid of 2 by 2"):
        Surface.of([(1, 1, 5.0), (1, 2, 6.0), (2, 1, 7.0)])


def test_more_work_never_takes_less_time_by_a_curve() -> None:
    curve = Curve(((1, 2.0), (10, 20.0), (100, 50.0)))
    assert np.allclose(curve.at(np.array([0.5, 1, 10, 100, 1000])), [2, 2, 20, 50, 50])
    assert (np.diff(LENGTHS / curve.at(LENGTHS)) >= -1e-9).all()
    with pytest.raises(ValueError, match="not faster than sizes"):
        Curve(((1, 2.0), (10, 21.0)))


def test_a_link_takes_a_latency_a_message_and_bytes_by_its_bandwidth() -> None:
    assert Link(1000, 2e9).nanoseconds(4e9, messages=3) == 3000 + 2e9


def test_every_gpu_of_which_the_peak_is_known_has_a_sheet() -> None:
    for device in (*GPUS, *SHEETS):
        rates = rates_of_gpu(f"NVIDIA {device}")
        assert rates is not None and rates.source == SOURCE
        for dtype, curve in rates.products.items():
            peak = peak_of(f"NVIDIA {device}", dtype)
            assert peak is None or curve.points[-1][1] < peak
        assert rates.far.exchange.bytes_per_s <= rates.near.exchange.bytes_per_s
    assert rates_of_gpu("AMD EPYC") is None


@pytest.mark.parametrize(
    ("name", "sheet", "gib"),
    [
        ("NVIDIA A100-SXM4-40GB", "A100 40GB", 40),
        ("NVIDIA A100-SXM4-80GB", "A100", 80),
        ("NVIDIA A100-PCIE-40GB", "A100 PCIe 40GB", 40),
        ("A100 80GB PCIe", "A100 PCIe", 80),
        ("a100_80gb_pcie", "A100 PCIe", 80),
        ("A100-SXM-40GB", "A100 40GB", 40),
        ("a100_40gb", "A100 40GB", 40),
        ("a100-40g", "A100 40GB", 40),
        ("a100", "A100", 80),
        ("H100 PCIe", "H100 PCIe", 80),
        ("h100-pcie", "H100 PCIe", 80),
        ("v100-sxm2-16gb", "V100", 16),
        ("Tesla V100-PCIE-32GB", "V100 PCIe", 32),
        ("NVIDIA GH200 480GB", "GH200", 96),
    ],
)
def test_a_gpu_has_the_sheet_and_the_memory_that_its_name_says_in_any_case(name: str, sheet: str, gib: int) -> None:
    found, whole = rates_of_gpu(name), rates_of_gpu(sheet)
    assert found is not None and whole is not None and found.memory == gib * 2**30
    assert structs.replace(found, device="", memory=0) == structs.replace(whole, device="", memory=0)


def test_the_links_of_gpus_without_nvlink_are_those_of_pcie() -> None:
    pcie, nvlink = rates_of_gpu("A100 80GB PCIe"), rates_of_gpu("A100-SXM4-80GB")
    assert pcie is not None and nvlink is not None
    assert pcie.near.exchange.bytes_per_s == 32 / 300 * nvlink.near.exchange.bytes_per_s


@pytest.mark.parametrize("name", ["a100_3g.20gb", "NVIDIA A100-SXM4-40GB MIG 3g.20gb", "1g.10gb", "h100-mig"])
def test_a_part_of_a_gpu_has_neither_a_sheet_nor_a_peak(name: str) -> None:
    assert rates_of_gpu(name) is None and peak_of(name, "bf16") is None


@pytest.mark.parametrize(
    ("device", "name", "fits"),
    [
        ("NVIDIA H100 80GB HBM3", "h100", True),
        ("NVIDIA H100 PCIe", "H100", True),
        ("NVIDIA H100 80GB HBM3", "H100 PCIe", False),
        ("NVIDIA H100 80GB HBM3", "a100", False),
        ("NVIDIA A100-SXM4-40GB", "a100", True),
        ("NVIDIA A100-SXM4-40GB", "a100_80gb", False),
        ("NVIDIA A100-SXM4-40GB", "a100_40gb", True),
        ("NVIDIA GH200 480GB", "gh200_96gb", True),
        ("NVIDIA H100 NVL", "h100-94gb", True),
        ("NVIDIA H100 NVL", "h100-80gb", False),
        ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", "a100_3g.20gb", True),
        ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", "a100_1g.5gb", False),
        ("NVIDIA A100-SXM4-40GB", "a100_3g.20gb", False),
        ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", "mig", True),
        ("NVIDIA GeForce RTX 5090", "h100", False),
        ("NVIDIA GeForce RTX 5090", "rtx5090", True),
        ("cpu", "v100", False),
    ],
)
def test_a_shorter_name_may_mean_a_device_but_not_one_that_says_something_else(
    device: str, name: str, fits: bool
) -> None:
    assert is_named(device, name) is fits


def test_rates_are_a_value_that_json_holds() -> None:
    piece = Piece("block", "backward", "h64", "zero1", tp=2)
    measured = Measured(piece, Surface.of([(1, 1, 10.0), (2, 1, 20.0)]))
    rates = Rates(**{name: getattr(CPU_CORE, name) for name in CPU_CORE.__struct_fields__} | {"measured": (measured,)})
    again = rates_from_json(rates.to_json())
    assert again == rates and again.pieces[piece].at(np.array([1.5]), np.array([1]))[0] == 15
