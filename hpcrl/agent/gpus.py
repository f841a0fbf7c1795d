"""What an agent's workers compute on: reads this node's GPUs, gives every worker its own, and says how to bind it.

Never calls CUDA: the workers do, after they have taken their place. The decisions are in `devices` and `affinity`.
"""

import contextlib
import glob
import os
import shutil
import subprocess
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hpcrl.agent.affinity import parse_cpulist, share_cpus
from hpcrl.agent.devices import (
    LIST,
    MASK,
    QUERY,
    Device,
    assign,
    complaints,
    describe,
    hides_all,
    names_exactly,
    parse_nvidia_smi,
    parse_nvidia_smi_list,
    promised,
    usable,
    visible_devices,
)
from hpcrl.config.cluster import ClusterConfig
from hpcrl.errors import ConfigurationError, StoppedError

NVIDIA_SMI_S = 60.0
"""Without persistence mode the first call wakes every GPU of the node."""
DEVICE_FILES = "/dev/nvidia[0-9]*"
PCI = Path("/sys/bus/pci/devices")
CPUS = Path("/sys/devices/system/cpu")


@dataclass(frozen=True)
class Inventory:
    """What nvidia-smi told of a node, and what it complained of."""

    devices: tuple[Device, ...] = ()
    complaints: tuple[str, ...] = ()
    asked: bool = True
    """Whether there is an nvidia-smi."""


@dataclass(frozen=True)
class DeviceBinding:
    """Where one worker computes. `bind` makes it so, in the worker."""

    device: str = "cpu"
    """As torch names it, relative to what the worker will see."""
    uuid: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    cpus: tuple[int, ...] = ()
    """Where it runs; empty is where its agent may run."""


def bindings(cluster: ClusterConfig, first: int, environ: Mapping[str, str]) -> tuple[DeviceBinding, ...]:
    """The place of each slot of an agent, which takes the visible GPUs from the `first` on.

    Raises:
        ConfigurationError: there are fewer GPUs than workers.
        StoppedError: the job was given GPUs, but the driver does not answer for them.
    """
    if cluster.device == "cpu" or (cluster.device == "auto" and hides_all(environ)):
        return (DeviceBinding(),) * cluster.workers_per_node
    inventory = read_inventory()
    given = choose(cluster, first, environ, inventory)
    if not given:
        return (DeviceBinding(),) * cluster.workers_per_node
    visible = visible_devices(environ, inventory.devices)
    exact = names_exactly(environ, visible, inventory.devices)
    bound = [place_on(device, visible, exact, cluster.gpu_isolation == "strict") for device in given]
    if not cluster.bind_cpus:
        return tuple(bound)
    shares = share_cpus([device.cpus for device in given], os.sched_getaffinity(0), read_cores())
    return tuple(replace(place, cpus=cpus) for place, cpus in zip(bound, shares, strict=True))


def choose(cluster: ClusterConfig, first: int, environ: Mapping[str, str], inventory: Inventory) -> tuple[Device, ...]:
    """The device of each slot; none for CPU workers. Raises as `bindings`."""
    said = "; ".join(inventory.complaints)
    if not inventory.asked:
        said = "nvidia-smi is not on the PATH"
        if cluster.device == "auto" and glob.glob(DEVICE_FILES):
            raise ConfigurationError(
                [f"this node has {DEVICE_FILES}, but {said}. Add it to the PATH, or set cluster.device to cpu."]
            )
    visible = visible_devices(environ, inventory.devices)
    short = len(visible) < first + cluster.workers_per_node
    if short and inventory.complaints and promised(environ):
        raise StoppedError(f"this job was given GPUs ({describe(environ)}), but nvidia-smi says: {said}")
    if cluster.device == "auto" and not inventory.devices:
        return ()
    return assign(visible, cluster.workers_per_node, environ, first=first, said=said)


def place_on(device: Device, visible: tuple[Device, ...], exact: bool, strict: bool) -> DeviceBinding:
    """A worker's place on its device; `exact` is whether CUDA would number the visible devices so by itself.

    A process sees only one MIG instance, so for instances there is nothing but strict.
    """
    order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    if strict or device.mig is not None:
        return DeviceBinding("cuda:0", device.uuid, order | {MASK: device.uuid})
    named = {} if exact else {MASK: ",".join(other.uuid for other in visible if other.mig is None)}
    whole = [other for other in visible if other.mig is None] if named else visible
    return DeviceBinding(f"cuda:{whole.index(device)}", device.uuid, order | named)


def bind(environment: Mapping[str, str], cpus: Collection[int]) -> None:
    """In the worker, before its first call of CUDA: see what it should see, run where it should run."""
    os.environ.update(environment)
    if cpus:
        # The CPUs may have been taken from this job meanwhile; then it runs where it still may.
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, cpus)


# ── reading the node ──────────────────────────────────────────────────────────────────────────────────────────────────
def read_inventory() -> Inventory:
    """Ask nvidia-smi, and the kernel where each device is."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return Inventory(asked=False)
    query = _ask(program, QUERY)
    gpus = [_located(gpu) for gpu in parse_nvidia_smi(query)]
    listed = _ask(program, LIST) if any(gpu.split for gpu in gpus) else ""
    return Inventory(usable(gpus, parse_nvidia_smi_list(listed)), complaints(query) + complaints(listed))


def read_cores() -> list[frozenset[int]]:
    """The hardware threads of every core of this machine."""
    return [cpus for path in CPUS.glob("cpu[0-9]*/topology/thread_siblings_list") if (cpus := _cpus_in(path))]


def _ask(program: str, arguments: Iterable[str]) -> str:
    """Everything that nvidia-smi says; its exit code adds nothing to that."""
    options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    try:
        done = subprocess.run([program, *arguments], timeout=NVIDIA_SMI_S, check=False, **options)
    except subprocess.TimeoutExpired:
        return f"nvidia-smi did not answer within {NVIDIA_SMI_S:g} s"
    except OSError as error:
        return f"nvidia-smi could not be started: {error}"
    text = done.stdout.decode(errors="replace")
    return text if text.strip() else f"nvidia-smi said nothing and ended with {done.returncode}"


def _located(gpu: Device) -> Device:
    numa = None
    with contextlib.suppress(OSError, ValueError):
        numa = int((PCI / gpu.pci / "numa_node").read_text())
    cpus = _cpus_in(PCI / gpu.pci / "local_cpulist")
    return replace(gpu, numa=None if numa is None or numa < 0 else numa, cpus=tuple(sorted(cpus)))


def _cpus_in(path: Path) -> frozenset[int]:
    try:
        return parse_cpulist(path.read_text())
    except (OSError, ValueError):
        return frozenset()
