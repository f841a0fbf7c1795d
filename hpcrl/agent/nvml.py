"""What NVML, the driver's library, says of a node's GPUs. The only file that imports pynvml; all others get its values.

NVML is started, asked and shut down in one call, so that no process holds it when it forks or begins to compute.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import combinations
from threading import Thread
from types import ModuleType
from typing import Any, TypeVar

T = TypeVar("T")
ANSWER_S = 60.0
"""Without persistence mode the first call wakes every GPU of the node."""
NO_LIBRARY = "the driver's library, libnvidia-ml.so.1, cannot be loaded"
CPU_WORDS = 128
"""64 CPUs each; together as many as a Linux kernel can know."""
SWITCH = "switch"


@dataclass(frozen=True)
class Device:
    """A GPU, or an instance of a GPU that is split by MIG."""

    index: int
    """nvidia-smi's number of the GPU; within a job's cgroup it counts only what the job sees."""
    uuid: str
    name: str
    pci: str = ""
    """PCI address as the kernel writes it, e.g. 0000:3b:00.0."""
    mig: str | None = None
    """UUID of the GPU that this is an instance of; None for a whole GPU."""
    split: bool = False
    """Whether MIG is on: nothing computes on such a GPU itself, only on its instances."""
    memory: int | None = None
    """Bytes; None where the driver does not say, and of an instance."""
    cpus: tuple[int, ...] = ()
    """CPUs next to it; none where the driver does not say."""
    capability: tuple[int, int] | None = None
    """CUDA's compute capability, e.g. (9, 0) of an H100; None where the driver does not say."""


@dataclass(frozen=True)
class Connection:
    """How two GPUs, by index, reach each other."""

    first: int
    second: int
    path: str
    """What their PCIe traffic passes, in the words of `nvidia-smi topo -m`: PIX, PXB, PHB, NODE, SYS."""
    nvlinks: int
    """How many NVLinks join them, directly or through switches."""


@dataclass(frozen=True)
class Inventory:
    """The GPUs of a node, each before its instances, and what is wrong with them."""

    devices: tuple[Device, ...] = ()
    complaints: tuple[str, ...] = ()
    has_library: bool = True
    connections: tuple[Connection, ...] = ()
    driver: str = ""
    """The driver's version, e.g. 535.129.03."""
    cuda: tuple[int, int] | None = None
    """The newest CUDA that the driver knows; None where it does not say."""


def read_inventory(*, connections: bool = False, timeout_s: float = ANSWER_S) -> Inventory:
    """Ask NVML; a driver that does not answer in time is a complaint. `connections` are read only where asked for."""
    try:
        return _in_time(lambda: _read(connections), timeout_s)
    except TimeoutError:
        return Inventory(complaints=(f"NVML did not answer within {timeout_s:g} s",))


def free_memory(uuid: str, timeout_s: float = ANSWER_S) -> int | None:
    """Bytes of a device that nobody has; None where the driver does not say it in time."""
    try:
        return _in_time(lambda: next((total - used for _, used, total, _ in read_use([uuid])), None), timeout_s)
    except TimeoutError:
        return None


def _in_time(ask: Callable[[], T], timeout_s: float) -> T:
    """What a driver answers. Raises TimeoutError."""
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:
            answer.set_exception(error)

    # Nothing else ends a call that hangs in a broken driver.
    Thread(target=run, name="hpcrl-nvml", daemon=True).start()
    return answer.result(timeout_s)


def read_use(uuids: Sequence[str]) -> list[tuple[str, int, int, int]]:
    """(UUID, bytes in use, bytes in all, per cent of the time that it computed) of these devices, as far as the driver
    says it. For a thread that may hang."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    found = []
    try:
        for uuid in uuids:
            with suppress(pynvml.NVMLError):
                handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
                memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
                rates = _unless_unsupported(pynvml, pynvml.nvmlDeviceGetUtilizationRates, handle)
                found.append((uuid, int(memory.used), int(memory.total), 0 if rates is None else int(rates.gpu)))
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()
    return found


def _read(connections: bool) -> Inventory:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError_LibraryNotFound:
        return Inventory(has_library=False)
    except pynvml.NVMLError as error:
        return Inventory(complaints=(f"NVML: {error}",))
    try:
        return _inventory(pynvml, connections)
    except pynvml.NVMLError as error:
        return Inventory(complaints=(f"NVML: {error}",))
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _inventory(nvml: ModuleType, connections: bool) -> Inventory:
    devices: list[Device] = []
    gpus: list[tuple[Device, Any]] = []
    complaints: list[str] = []
    index = 0
    for number in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(number)
            gpu, *instances = _devices(nvml, handle, index)
            devices += [gpu, *instances]
            gpus.append((gpu, handle))
        except nvml.NVMLError_NoPermission:
            # A cgroup hides it. CUDA and nvidia-smi do not count it either.
            continue
        except nvml.NVMLError as error:
            complaints.append(f"GPU {index}: {error}")
        index += 1
    if not index:
        complaints.append("no devices were found")
    cuda = _unless_unsupported(nvml, nvml.nvmlSystemGetCudaDriverVersion_v2)
    return Inventory(
        tuple(devices),
        tuple(complaints),
        connections=_connections(nvml, gpus) if connections else (),
        driver=_unless_unsupported(nvml, nvml.nvmlSystemGetDriverVersion) or "",
        cuda=None if cuda is None else (cuda // 1000, cuda % 1000 // 10),
    )


def _devices(nvml: ModuleType, handle: Any, index: int) -> list[Device]:
    """A GPU and its instances."""
    uuid, name = nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetName(handle)
    pci = _address(nvml.nvmlDeviceGetPciInfo(handle))
    cpus = _cpus(_unless_unsupported(nvml, nvml.nvmlDeviceGetCpuAffinity, handle, CPU_WORDS) or ())
    mode = _unless_unsupported(nvml, nvml.nvmlDeviceGetMigMode, handle)
    split = mode is not None and mode[0] == nvml.NVML_DEVICE_MIG_ENABLE
    able = _unless_unsupported(nvml, nvml.nvmlDeviceGetCudaComputeCapability, handle)
    memory = _unless_unsupported(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    gpu = Device(
        index,
        uuid,
        name,
        pci,
        split=split,
        cpus=cpus,
        memory=None if memory is None else memory.total,
        capability=None if able is None else (able[0], able[1]),
    )
    found = [gpu]
    for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle) if split else 0):
        try:
            part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
        except (nvml.NVMLError_NotFound, nvml.NVMLError_NoPermission):
            continue
        part_uuid, part_name = nvml.nvmlDeviceGetUUID(part), nvml.nvmlDeviceGetName(part)
        found.append(replace(gpu, uuid=part_uuid, name=part_name, mig=uuid, split=False))
    return found


def _connections(nvml: ModuleType, gpus: Sequence[tuple[Device, Any]]) -> tuple[Connection, ...]:
    paths = {
        nvml.NVML_TOPOLOGY_INTERNAL: "PIX",
        nvml.NVML_TOPOLOGY_SINGLE: "PIX",
        nvml.NVML_TOPOLOGY_MULTIPLE: "PXB",
        nvml.NVML_TOPOLOGY_HOSTBRIDGE: "PHB",
        nvml.NVML_TOPOLOGY_NODE: "NODE",
        nvml.NVML_TOPOLOGY_SYSTEM: "SYS",
    }
    ends = {gpu.index: _nvlink_ends(nvml, handle) for gpu, handle in gpus}
    found = []
    for (first, one), (second, other) in combinations(gpus, 2):
        level = _unless_unsupported(nvml, nvml.nvmlDeviceGetTopologyCommonAncestor, one, other)
        nvlinks = ends[first.index].count(second.pci)
        nvlinks = nvlinks or min(ends[first.index].count(SWITCH), ends[second.index].count(SWITCH))
        if level is not None or nvlinks:
            found.append(Connection(first.index, second.index, paths.get(level, ""), nvlinks))
    return tuple(found)


def _nvlink_ends(nvml: ModuleType, handle: Any) -> list[str]:
    """What is at the other end of each NVLink that is up: a switch, or a device by its PCI address."""
    ends = []
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        if _unless_unsupported(nvml, nvml.nvmlDeviceGetNvLinkState, handle, link):
            kind = _unless_unsupported(nvml, nvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link)
            other = _unless_unsupported(nvml, nvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
            ends.append(SWITCH if kind == nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH else _address(other) if other else "")
    return ends


def _unless_unsupported(nvml: ModuleType, call: Callable[..., Any], *arguments: Any) -> Any:
    """What a GPU or driver may be unable to tell; None where it is."""
    try:
        return call(*arguments)
    except nvml.NVMLError_GpuIsLost:
        raise
    except nvml.NVMLError:
        return None


def _address(pci: Any) -> str:
    return f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0"


def _cpus(words: Sequence[int]) -> tuple[int, ...]:
    return tuple(64 * place + bit for place, word in enumerate(words) for bit in range(64) if word >> bit & 1)
