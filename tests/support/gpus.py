"""Nodes with GPUs that there are not: what NVML says on each, through the calls that hpcrl makes of it."""

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import pynvml as real
import pytest

from hpcrl.agent.affinity import parse_cpulist
from hpcrl.agent.nvml import Inventory, read_inventory

A100_UUIDS = (
    "GPU-b614723c-e261-4605-066e-79daab4c00ff",
    "GPU-e52dfcc4-406d-a3d4-f787-4402b535877a",
    "GPU-2812eb50-852a-8049-1257-d447ce043b27",
    "GPU-c78d556a-38ea-a307-20b5-e0548e6169d1",
)
A100_BUSES = (0x07, 0x0B, 0x48, 0x4C)
SWITCH = "switch"


@dataclass(frozen=True)
class FakeGpu:
    uuid: str
    name: str
    bus: int
    domain: int = 0
    split: bool | None = False
    """None where the GPU knows no MIG."""
    instances: tuple[tuple[str, str] | None, ...] = ()
    """UUID and name; None is a place without an instance."""
    cpus: str = ""
    memory: int | None = None
    """Bytes; None where it does not say."""
    used: int = 0
    capability: tuple[int, int] | None = (8, 0)
    nvlinks: tuple[int | str, ...] = ()
    """At the other end of each: a switch, or a GPU of this node by its number."""
    error: int = 0
    """What is said to whoever asks for it."""
    later: int = 0
    """What is said of everything that it is asked."""


@dataclass(frozen=True)
class FakeNode:
    gpus: tuple[FakeGpu, ...] = ()
    error: int = 0
    """What is said to whoever starts NVML."""
    levels: Mapping[tuple[int, int], int] = field(default_factory=dict)
    hangs_s: float = 0.0
    driver: str = "550.54.15"
    cuda: int | None = 12040
    """As NVML writes it; None where it does not know."""


@dataclass
class FakeNvml:
    """Stands for the module pynvml on one node. Refuses every call between shutdown and start, as NVML does."""

    node: FakeNode
    started: int = 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("nvml"):
            raise AttributeError(f"this fake knows no {name}")
        return getattr(real, name)

    def nvmlInit(self) -> None:
        time.sleep(self.node.hangs_s)
        if self.node.error:
            raise real.NVMLError(self.node.error)
        self.started += 1

    def nvmlShutdown(self) -> None:
        self._unless(0)
        self.started -= 1

    def nvmlDeviceGetCount(self) -> int:
        self._unless(0)
        return len(self.node.gpus)

    def nvmlSystemGetDriverVersion(self) -> str:
        self._unless(0)
        return self.node.driver

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        self._unless(0 if self.node.cuda else real.NVML_ERROR_LIBRARY_NOT_FOUND)
        return self.node.cuda or 0

    def nvmlDeviceGetCudaComputeCapability(self, handle: FakeGpu) -> list[int]:
        self._unless(0 if self._of(handle).capability else real.NVML_ERROR_NOT_SUPPORTED)
        return list(handle.capability or ())

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:
        self._unless(self.node.gpus[index].error)
        return self.node.gpus[index]

    def nvmlDeviceGetMemoryInfo(self, handle: FakeGpu, version: int | None = None) -> SimpleNamespace:
        self._unless(0 if self._of(handle).memory else real.NVML_ERROR_NOT_SUPPORTED)
        return SimpleNamespace(total=handle.memory, used=handle.used)

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> FakeGpu:
        found = [gpu for gpu in self.node.gpus if gpu.uuid == uuid]
        self._unless(0 if found else real.NVML_ERROR_NOT_FOUND)
        return found[0]

    def nvmlDeviceGetUtilizationRates(self, handle: FakeGpu) -> SimpleNamespace:
        self._unless(real.NVML_ERROR_NOT_SUPPORTED)
        return SimpleNamespace(gpu=0)

    def nvmlDeviceGetUUID(self, handle: Any) -> str:
        return handle[0] if isinstance(handle, tuple) else self._of(handle).uuid

    def nvmlDeviceGetName(self, handle: Any) -> str:
        return handle[1] if isinstance(handle, tuple) else self._of(handle).name

    def nvmlDeviceGetPciInfo(self, handle: FakeGpu) -> SimpleNamespace:
        gpu = self._of(handle)
        return SimpleNamespace(domain=gpu.domain, bus=gpu.bus, device=0)

    def nvmlDeviceGetCpuAffinity(self, handle: FakeGpu, cpuSetSize: int) -> Sequence[int]:
        self._unless(0 if self._of(handle).cpus else real.NVML_ERROR_NOT_SUPPORTED)
        words = [0] * cpuSetSize
        for cpu in parse_cpulist(handle.cpus):
            words[cpu // 64] |= 1 << cpu % 64
        return words

    def nvmlDeviceGetMigMode(self, device: FakeGpu) -> list[int]:
        self._unless(real.NVML_ERROR_NOT_SUPPORTED if self._of(device).split is None else 0)
        return [int(bool(device.split))] * 2

    def nvmlDeviceGetMaxMigDeviceCount(self, device: FakeGpu) -> int:
        return len(self._of(device).instances)

    def nvmlDeviceGetMigDeviceHandleByIndex(self, device: FakeGpu, index: int) -> tuple[str, str]:
        instance = self._of(device).instances[index]
        self._unless(real.NVML_ERROR_NOT_FOUND if instance is None else 0)
        assert instance is not None
        return instance

    def nvmlDeviceGetTopologyCommonAncestor(self, device1: FakeGpu, device2: FakeGpu) -> int:
        pair = self.node.gpus.index(device1), self.node.gpus.index(device2)
        self._unless(0 if self.node.levels else real.NVML_ERROR_NOT_SUPPORTED)
        return self.node.levels[pair]

    def nvmlDeviceGetNvLinkState(self, device: FakeGpu, link: int) -> int:
        self._unless(0 if device.nvlinks else real.NVML_ERROR_NOT_SUPPORTED)
        return int(link < len(device.nvlinks))

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: FakeGpu, link: int) -> int:
        switch = self._of(handle).nvlinks[link] == SWITCH
        return real.NVML_NVLINK_DEVICE_TYPE_SWITCH if switch else real.NVML_NVLINK_DEVICE_TYPE_GPU

    def nvmlDeviceGetNvLinkRemotePciInfo(self, device: FakeGpu, link: int) -> SimpleNamespace:
        end = self._of(device).nvlinks[link]
        self._unless(real.NVML_ERROR_NOT_SUPPORTED if end == SWITCH else 0)
        return self.nvmlDeviceGetPciInfo(self.node.gpus[int(end)])

    def _of(self, gpu: FakeGpu) -> FakeGpu:
        self._unless(gpu.later)
        return gpu

    def _unless(self, error: int) -> None:
        if error or not self.started:
            raise real.NVMLError(error or real.NVML_ERROR_UNINITIALIZED)


def a100s(*uuids: str, **of_all: Any) -> tuple[FakeGpu, ...]:
    return tuple(
        FakeGpu(uuid, "NVIDIA A100-SXM4-80GB", bus, **of_all)
        for uuid, bus in zip(uuids or A100_UUIDS, A100_BUSES, strict=False)
    )


def _among(far: int, near: int, *of_a_switch: tuple[int, int]) -> dict[tuple[int, int], int]:
    """The levels of four GPUs: some pairs are near each other, the others far."""
    return {pair: near if pair in of_a_switch else far for pair in combinations(range(4), 2)}


def _with(gpus: tuple[FakeGpu, ...], number: int, **changed: Any) -> tuple[FakeGpu, ...]:
    return (*gpus[:number], replace(gpus[number], **changed), *gpus[number + 1 :])


_A100, _SPLIT = a100s(), a100s(split=True)
_A40 = tuple(FakeGpu(f"GPU-{number}", "NVIDIA A40", 0x10 + number) for number in range(4))
_SOCKETS = {0: "0-9,20-29", 1: "0-9,20-29", 2: "10-19,30-39", 3: "10-19,30-39"}

NODES = {
    "a100": FakeNode(_A100),
    "h100": FakeNode(
        (
            FakeGpu("GPU-81495ec7-da36-8ea5-9f7d-5804aa3fef20", "NVIDIA H100 80GB HBM3", 0x19),
            FakeGpu("GPU-81495f01-0b5c-11ee-be56-0242ac120002", "NVIDIA H100 80GB HBM3", 0x3B, 1, split=None),
        )
    ),
    "mig": FakeNode(
        (
            replace(
                _SPLIT[0],
                instances=(("MIG-dc34c2fd-4bd7-52ad-a6d0-645dcd1794e4", "NVIDIA A100-SXM4-80GB MIG 7g.80gb"),),
            ),
            replace(
                _SPLIT[1],
                cpus="8-15",
                instances=(
                    ("MIG-ec4c3916-65fa-5948-b9b5-9f21a2ddfcc0", "NVIDIA A100-SXM4-80GB MIG 2g.20gb"),
                    None,
                    ("MIG-676485be-683e-5129-83a5-f856e2ed922e", "NVIDIA A100-SXM4-80GB MIG 2g.20gb"),
                    None,
                ),
            ),
            replace(_SPLIT[2], instances=(None,) * 7),
            _A100[3],
        )
    ),
    "mig of the first drivers": FakeNode(
        (
            FakeGpu(
                "GPU-9de3d0e8-33f5-10dc-0c79-2c88a7ab0a23",
                "A100-PCIE-40GB",
                0x07,
                split=True,
                instances=tuple(
                    (f"MIG-GPU-9de3d0e8-33f5-10dc-0c79-2c88a7ab0a23/{number}/0", f"A100-PCIE-40GB MIG {profile}")
                    for number, profile in ((2, "4g.20gb"), (3, "2g.10gb"), (9, "1g.5gb"))
                ),
            ),
        )
    ),
    "fallen": FakeNode(_with(_A100, 2, error=real.NVML_ERROR_UNKNOWN)),
    "lost": FakeNode(_with(_A100, 2, later=real.NVML_ERROR_GPU_IS_LOST)),
    "in a cgroup": FakeNode(tuple(replace(gpu, error=real.NVML_ERROR_NO_PERMISSION) for gpu in _A100[:2]) + _A100[2:]),
    "none": FakeNode(),
    "no driver": FakeNode(error=real.NVML_ERROR_DRIVER_NOT_LOADED),
    "mismatch": FakeNode(error=real.NVML_ERROR_LIB_RM_VERSION_MISMATCH),
    "no library": FakeNode(error=real.NVML_ERROR_LIBRARY_NOT_FOUND),
    "dgx": FakeNode(
        tuple(replace(gpu, nvlinks=(SWITCH,) * 18) for gpu in _A40), levels=_among(real.NVML_TOPOLOGY_SYSTEM, 0)
    ),
    "bridges": FakeNode(
        tuple(replace(gpu, nvlinks=(number ^ 1,) * 4) for number, gpu in enumerate(_A40)),
        levels=_among(real.NVML_TOPOLOGY_NODE, 0),
    ),
    "pcie": FakeNode(
        tuple(replace(gpu, cpus=_SOCKETS[number]) for number, gpu in enumerate(_A40)),
        levels=_among(real.NVML_TOPOLOGY_SYSTEM, real.NVML_TOPOLOGY_SINGLE, (0, 1), (2, 3)),
    ),
}


def inventory_of(name: str | FakeNode, **options: Any) -> Inventory:
    """What is read on a node, through pynvml's calls; whoever reads leaves NVML as it was."""
    fake = FakeNvml(NODES[name] if isinstance(name, str) else name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "pynvml", fake)
        found = read_inventory(**options)
    assert fake.started == 0
    return found
