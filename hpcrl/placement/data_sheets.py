"""Rates of devices that nobody has measured: what their makers' data sheets say, and how much of that is reached.

Numbers are those of NVIDIA's data sheets of the products named; a link's are of one direction. Shares are usual ones,
not bounds: a profile replaces all of this.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from hpcrl.placement.peak_flops import known_name, memory_in, named_in, part_of, peak_of, words_of
from hpcrl.placement.rates import Curve, Fixed, Link, Links, Rates

SOURCE = "data sheets"
GIGA, GIB = 1e9, 2**30
PRODUCTS = ((1, 1 / 256), (64, 0.2), (256, 0.5), (1024, 0.65), (8192, 0.7))
"""By rows, the share of a device's peak that products of matrices reach; reading the matrices counts besides."""
ATTENTION = ((32, 0.02), (256, 0.1), (1024, 0.3), (8192, 0.5))
"""By length, that of attention in training and prefill."""
MEMORY, LINK = 0.8, 0.75
"""Shares of bandwidths."""
BETWEEN_NODES = 25 * GIGA
"""Bytes a second of each worker, where nobody says more: a network card of 200 Gb/s for each GPU."""
FIXED = Fixed(block_ns=120_000, pass_ns=2_000_000, round_ns=400_000, call_ns=5_000_000)
"""A block is a dozen launches of 10 µs."""
DISK = Link(1_000_000, 1 * GIGA)


class Sheet(NamedTuple):
    """`memory` in GiB, the most that is sold under its name; all else in GB/s."""

    memory: int
    bandwidth: float
    peers: float
    """To the other GPUs of a node; PCIe's where there is no NVLink."""
    host: float


PCIE_3, PCIE_4, PCIE_5 = 16, 32, 64

SHEETS: Mapping[str, Sheet] = MappingProxyType(
    {
        "B200": Sheet(180, 7700, 900, PCIE_5),
        "GH200": Sheet(96, 4000, 450, 450),
        "H200 NVL": Sheet(141, 4800, 450, PCIE_5),
        "H200": Sheet(141, 4800, 450, PCIE_5),
        "H100 NVL": Sheet(94, 3900, 300, PCIE_5),
        "H100 PCIe": Sheet(80, 2000, 300, PCIE_5),
        "H100": Sheet(80, 3350, 450, PCIE_5),
        "H800": Sheet(80, 3350, 200, PCIE_5),
        "H20": Sheet(96, 4000, 450, PCIE_5),
        "A100 PCIe 40GB": Sheet(40, 1555, PCIE_4, PCIE_4),
        "A100 PCIe": Sheet(80, 1935, PCIE_4, PCIE_4),
        "A100 40GB": Sheet(40, 1555, 300, PCIE_4),
        "A100": Sheet(80, 2039, 300, PCIE_4),
        "A800": Sheet(80, 2039, 200, PCIE_4),
        "A30": Sheet(24, 933, PCIE_4, PCIE_4),
        "A40": Sheet(48, 696, PCIE_4, PCIE_4),
        "A10G": Sheet(24, 600, PCIE_4, PCIE_4),
        "A10": Sheet(24, 600, PCIE_4, PCIE_4),
        "A6000": Sheet(48, 768, PCIE_4, PCIE_4),
        "L40S": Sheet(48, 864, PCIE_4, PCIE_4),
        "L40": Sheet(48, 864, PCIE_4, PCIE_4),
        "L4": Sheet(24, 300, PCIE_4, PCIE_4),
        "RTX 6000 Ada": Sheet(48, 960, PCIE_4, PCIE_4),
        "RTX 4090": Sheet(24, 1008, PCIE_4, PCIE_4),
        "RTX 3090": Sheet(24, 936, PCIE_4, PCIE_4),
        "V100 PCIe": Sheet(32, 900, PCIE_3, PCIE_3),
        "V100": Sheet(32, 900, 150, PCIE_3),
        "T4": Sheet(16, 320, PCIE_3, PCIE_3),
    }
)
"""As `GPUS`: the first whose words are in a device's name decides."""


def rates_of_gpu(device: str, between_nodes: float = BETWEEN_NODES) -> Rates | None:
    """Of a whole GPU, as its driver or Slurm names it; None of one that is not here. `between_nodes`: bytes a second of
    a worker."""
    name = known_name(device, SHEETS)
    if name is None:
        return None
    sheet = SHEETS[name]
    peaks = {dtype: peak for dtype in ("bf16", "fp32", "fp16") if (peak := peak_of(device, dtype))}
    peaks["fp64"] = peaks["fp32"] / 2
    near = LINK * sheet.peers * GIGA
    far = LINK * min(between_nodes, sheet.host * GIGA)
    return Rates(
        source=SOURCE,
        device=device,
        products={dtype: _curve(PRODUCTS, peak) for dtype, peak in peaks.items()},
        attention={dtype: _curve(ATTENTION, peak) for dtype, peak in peaks.items()},
        bytes_per_s=MEMORY * sheet.bandwidth * GIGA,
        memory=_memory(device, sheet) * GIB,
        fixed=FIXED,
        near=Links(Link(20_000, near), Link(15_000, near)),
        far=Links(Link(40_000, far), Link(30_000, far)),
        host=Link(20_000, LINK * sheet.host * GIGA),
        disk=DISK,
    )


def is_named(device: str, name: str) -> bool:
    """Whether a name, such as Slurm's, may mean a device, as its driver names it: it may say less (H100, of an H100
    PCIe), but nothing else. A name that nobody here knows may mean any GPU."""
    part, sheet = part_of(name), named_in(name, SHEETS)
    if part and (not part_of(device) or part not in (part_of(device), "mig")):
        return False
    if sheet is None:
        return True
    own = named_in(device, SHEETS)
    if own is None or not words_of(sheet) <= words_of(device):
        return False
    there = _memory(device, SHEETS[own])
    most = max(SHEETS[sheet].memory, SHEETS[own].memory)
    return min(memory_in(name) or there, most) == there


def _memory(device: str, sheet: Sheet) -> int:
    """In GiB. A name may have that of a host in it (GH200 480GB)."""
    return min(sheet.memory, memory_in(device) or sheet.memory)


def _curve(shares: tuple[tuple[float, float], ...], peak: float) -> Curve:
    return Curve(tuple((size, share * peak) for size, share in shares))


CPU_CORE = Rates(
    source="measured on one thread of an AMD EPYC with AVX-512, torch 2",
    device="cpu",
    products={
        "fp32": Curve(((1, 20e9), (4, 24e9), (16, 49e9), (64, 75e9), (256, 87e9), (1024, 90e9))),
        "bf16": Curve(((1, 14e9), (4, 56e9), (16, 124e9), (64, 165e9), (256, 183e9), (1024, 197e9))),
        "fp64": Curve(((1, 6e9), (16, 21e9), (64, 33e9), (256, 42e9), (1024, 44e9))),
    },
    attention={
        "fp32": Curve(((32, 24e9), (128, 30e9), (512, 38e9))),
        "bf16": Curve(((32, 24e9), (128, 30e9), (512, 38e9))),
        "fp64": Curve(((32, 12e9), (128, 15e9), (512, 19e9))),
    },
    bytes_per_s=23 * GIGA,
    copied_per_s=8 * GIGA,
    memory=8 * GIB,
    fixed=Fixed(block_ns=250_000, pass_ns=700_000, round_ns=300_000, call_ns=8_000_000),
    near=Links(Link(120_000, 1.5 * GIGA), Link(80_000, 1.5 * GIGA)),
    far=Links(Link(300_000, 1 * GIGA), Link(200_000, 1 * GIGA)),
    host=Link(1_000, 8 * GIGA),
    disk=Link(3_000_000, 0.5 * GIGA),
)
"""A quick table, for want of a profile: right in its order of magnitude."""
