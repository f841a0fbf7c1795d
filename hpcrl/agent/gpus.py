"""What an agent's workers compute on: gives every worker its own of this node's GPUs, and says how to bind it.

Never calls CUDA: the workers do, after they have taken their place. The decisions are in `devices` and `affinity`.
"""

import contextlib
import glob
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from hpcrl.agent.affinity import parse_cpulist, share_cpus
from hpcrl.agent.devices import (
    MASK,
    assign,
    describe,
    hides_all,
    names_exactly,
    promised,
    usable,
    visible_devices,
)
from hpcrl.agent.nvml import NO_LIBRARY, Device, Inventory, read_inventory
from hpcrl.agent.torch_build import TorchBuild, build_problems
from hpcrl.config.cluster import ClusterConfig
from hpcrl.errors import ConfigurationError, StoppedError

DEVICE_FILES = "/dev/nvidia[0-9]*"
CPUS = Path("/sys/devices/system/cpu")


@dataclass(frozen=True)
class DeviceBinding:
    """Where one worker computes. `bind` makes it so, in the worker."""

    device: str = "cpu"
    """As torch names it, relative to what the worker will see."""
    uuid: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    cpus: tuple[int, ...] = ()
    """Where it runs; empty is where its agent may run."""


CPU_WORKER = DeviceBinding(environment=MappingProxyType({MASK: ""}))
"""Where a CPU worker computes, whatever the model workers beside it have: it sees no GPU."""


def bindings(
    cluster: ClusterConfig, first: int, environ: Mapping[str, str], measure: Callable[[], TorchBuild] | None = None
) -> tuple[DeviceBinding, ...]:
    """The place of each slot of an agent, which takes the visible GPUs from the `first` on.

    `measure` tells of the torch that computes on them; None where none does.

    Raises:
        ConfigurationError: there are fewer GPUs than workers, or torch computes on none of them.
        StoppedError: the job was given GPUs, but the driver does not answer for them.
    """
    if cluster.device == "cpu" or (cluster.device == "auto" and hides_all(environ)):
        return (DeviceBinding(),) * cluster.workers_per_node
    inventory = read_inventory()
    given = choose(cluster, first, environ, inventory)
    if not given:
        return (DeviceBinding(),) * cluster.workers_per_node
    if measure is not None and (problems := [*build_problems(measure(), inventory, given)]):
        raise ConfigurationError(problems)
    there = usable(inventory.devices)
    visible = visible_devices(environ, there)
    exact = names_exactly(environ, visible, there)
    bound = [place_on(device, visible, exact, cluster.gpu_isolation == "strict") for device in given]
    if not cluster.bind_cpus:
        return tuple(bound)
    shares = share_cpus([device.cpus for device in given], os.sched_getaffinity(0), read_cores())
    return tuple(replace(place, cpus=cpus) for place, cpus in zip(bound, shares, strict=True))


def seen_devices(environ: Mapping[str, str]) -> tuple[Device, ...]:
    """What a process in this environment may compute on here, in the order in which CUDA numbers it."""
    return () if hides_all(environ) else visible_devices(environ, usable(read_inventory().devices))


def choose(cluster: ClusterConfig, first: int, environ: Mapping[str, str], inventory: Inventory) -> tuple[Device, ...]:
    """The device of each slot; none for CPU workers. Raises as `bindings`."""
    said = "; ".join(inventory.complaints)
    if not inventory.has_library:
        said = NO_LIBRARY
        if cluster.device == "auto" and glob.glob(DEVICE_FILES):
            raise ConfigurationError(
                [f"this node has {DEVICE_FILES}, but {said}."],
                "Add its folder to LD_LIBRARY_PATH (to a container: --nv), or set cluster.device to cpu.",
            )
    there = usable(inventory.devices)
    visible = visible_devices(environ, there)
    short = len(visible) < first + cluster.workers_per_node
    if short and inventory.complaints and promised(environ):
        raise StoppedError(f"this job was given GPUs ({describe(environ)}), but the driver does not answer: {said}")
    if cluster.device == "auto" and not there:
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


def read_cores() -> list[frozenset[int]]:
    """The hardware threads of every core of this machine."""
    return [cpus for path in CPUS.glob("cpu[0-9]*/topology/thread_siblings_list") if (cpus := _cpus_in(path))]


def _cpus_in(path: Path) -> frozenset[int]:
    try:
        return parse_cpulist(path.read_text())
    except (OSError, ValueError):
        return frozenset()
