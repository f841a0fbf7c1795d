"""What GPUs can do, by the names that their driver gives them: dense products of matrices, without sparsity.

Numbers are those of the makers' data sheets at the usual clock; accumulation in fp32.
"""

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

TERA = 1e12


class Peak(NamedTuple):
    """TFLOP/s by type of numbers; 0 where a device has no units for it."""

    fp16: float
    tf32: float
    fp32: float
    bf16: float

    def of(self, dtype: str) -> float | None:
        """Operations a second in a type, as settings name it; None of one that is not here."""
        return self._asdict().get(dtype, 0.0) * TERA or None


def _since_ampere(half: float, tf32: float, fp32: float) -> Peak:
    return Peak(half, tf32, fp32, half)


GPUS: Mapping[str, Peak] = MappingProxyType(
    {
        "B200": _since_ampere(2250, 1100, 75),
        "GH200": _since_ampere(989.4, 494.7, 66.9),
        "H200 NVL": _since_ampere(835.5, 417.5, 60),
        "H200": _since_ampere(989.4, 494.7, 66.9),
        "H100 NVL": _since_ampere(835.5, 417.5, 60),
        "H100 PCIe": _since_ampere(756, 378, 51.2),
        "H100": _since_ampere(989.4, 494.7, 66.9),
        "H800": _since_ampere(989.4, 494.7, 66.9),
        "H20": _since_ampere(148, 74, 44),
        "A100": _since_ampere(312, 156, 19.5),
        "A800": _since_ampere(312, 156, 19.5),
        "A30": _since_ampere(165, 82.5, 10.3),
        "A40": _since_ampere(149.7, 74.8, 37.4),
        "A10G": _since_ampere(70, 35, 31.2),
        "A10": _since_ampere(125, 62.5, 31.2),
        "A6000": _since_ampere(154.8, 77.4, 38.7),
        "L40S": _since_ampere(362, 183, 91.6),
        "L40": _since_ampere(181, 90.5, 90.5),
        "L4": _since_ampere(121, 60, 30.3),
        "RTX 6000 Ada": _since_ampere(364.2, 182.1, 91.1),
        "RTX 4090": _since_ampere(165.2, 82.6, 82.6),
        "RTX 3090": _since_ampere(71, 35.6, 35.6),
        "V100 PCIe": Peak(112, 0, 14, 0),
        "V100": Peak(125, 0, 15.7, 0),
        "T4": Peak(65, 0, 8.1, 0),
    }
)
"""The first of these whose words are in a device's name decides."""

_PART = re.compile(r"\d+g\.\d+gb", re.IGNORECASE)
"""How a part of a GPU (MIG) is named: 3g.20gb."""


def peak_of(device: str, dtype: str) -> float | None:
    """Operations a second of a GPU, as the driver names it, in a type; None where nobody has written them down."""
    name = known_name(device, GPUS)
    return None if name is None else GPUS[name].of(dtype)


def known_name(device: str, names: Iterable[str]) -> str | None:
    """The first of these names of which all words are in that of a whole GPU, by its driver or by Slurm; None of a part
    of one."""
    return None if part_of(device) else named_in(device, names)


def named_in(device: str, names: Iterable[str]) -> str | None:
    """The same, whether the device is a whole GPU or a part of it."""
    words = words_of(device)
    return next((name for name in names if words_of(name) <= words), None)


def words_of(name: str) -> frozenset[str]:
    """In lower case; of memory as in 40gb."""
    return frozenset(re.sub(r"^(\d+)gi?b?$", r"\1gb", word) for word in re.split(r"[\s_-]+", name.lower()))


def part_of(name: str) -> str:
    """Which part of a GPU (MIG) a name is of, as in 3g.20gb, or mig where it does not say; empty: of a whole one."""
    found = _PART.search(name)
    if found is not None:
        return found[0].lower()
    return "mig" if "mig" in words_of(name) else ""


def memory_in(name: str) -> int | None:
    """The memory that a GPU's name says, as in A100-SXM4-40GB, in GiB."""
    sizes = (re.fullmatch(r"(\d+)gb", word) for word in words_of(name))
    return next((int(size[1]) for size in sizes if size is not None), None)
