"""Which GPUs a job may use and which worker gets which: pure functions of the environment and of nvidia-smi's texts.

A device is known by its UUID. Its index means something only together with CUDA_VISIBLE_DEVICES, the order of CUDA and
what the job's cgroup hides. Knows neither processes nor files: `gpus` reads the node, `claims` keeps others away.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hpcrl.errors import ConfigurationError

QUERY = ("--query-gpu=index,uuid,pci.bus_id,name,memory.total,mig.mode.current", "--format=csv,noheader")
"""Arguments of the nvidia-smi whose output `parse_nvidia_smi` reads."""
LIST = ("-L",)
"""Arguments of the nvidia-smi whose output `parse_nvidia_smi_list` reads: the only one with MIG instances."""

MASK = "CUDA_VISIBLE_DEVICES"
HINTS = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")
"""Slurm's own numbers of what it gave: the hardware's, whatever the cgroup makes of them."""

_GPU_LINE = re.compile(r"GPU (?P<index>\d+): (?P<name>.+?) \(UUID: (?P<uuid>GPU-[^)]+)\)")
_MIG_LINE = re.compile(r"MIG (?P<profile>\S+)\s+Device\s+\d+: \(UUID: (?P<uuid>MIG-[^)]+)\)")
_MIG_MEMORY = re.compile(r"(\d+)gb")


@dataclass(frozen=True)
class Device:
    """A GPU, or an instance of a GPU that is split by MIG."""

    index: int
    """nvidia-smi's number of the GPU; within a job's cgroup it counts only what the job sees."""
    uuid: str
    name: str
    pci: str = ""
    """PCI address as the kernel writes it, e.g. 0000:3b:00.0."""
    memory_mib: int | None = None
    mig: str | None = None
    """UUID of the GPU that this is an instance of; None for a whole GPU."""
    split: bool = False
    """Whether MIG is on: nothing computes on such a GPU itself, only on its instances."""
    numa: int | None = None
    cpus: tuple[int, ...] = ()
    """CPUs next to it; none where the kernel does not say."""


# ── what nvidia-smi says ──────────────────────────────────────────────────────────────────────────────────────────────
def parse_nvidia_smi(text: str) -> tuple[Device, ...]:
    """The GPUs of `nvidia-smi QUERY`, in its order. Lines that are none (a driver's complaints) are left out."""
    found = (_gpu_of(line) for line in text.splitlines())
    return tuple(device for device in found if device is not None)


def parse_nvidia_smi_list(text: str) -> tuple[Device, ...]:
    """The GPUs and MIG instances of `nvidia-smi -L`, in its order, each instance after its GPU."""
    found: list[Device] = []
    parent: Device | None = None
    for line in text.splitlines():
        if gpu := _GPU_LINE.fullmatch(line.strip()):
            parent = Device(int(gpu["index"]), gpu["uuid"], gpu["name"])
            found.append(parent)
        elif (instance := _MIG_LINE.fullmatch(line.strip())) and parent is not None:
            memory = _MIG_MEMORY.search(instance["profile"])
            found.append(
                Device(
                    parent.index,
                    instance["uuid"],
                    f"{parent.name} MIG {instance['profile']}",
                    memory_mib=1024 * int(memory[1]) if memory else None,
                    mig=parent.uuid,
                )
            )
    return tuple(found)


def complaints(text: str) -> tuple[str, ...]:
    """What nvidia-smi says besides naming devices: no driver, a GPU that has fallen off its bus."""
    lines = (line.strip() for line in text.splitlines())
    return tuple(
        line
        for line in lines
        if line and _gpu_of(line) is None and not _GPU_LINE.fullmatch(line) and not _MIG_LINE.fullmatch(line)
    )


def usable(gpus: Iterable[Device], listed: Iterable[Device]) -> tuple[Device, ...]:
    """What can be computed on, in CUDA's order (by PCI address): whole GPUs, and instances in place of a split one."""
    instances: dict[str, list[Device]] = {}
    for device in listed:
        if device.mig is not None:
            instances.setdefault(device.mig, []).append(device)
    found: list[Device] = []
    for gpu in sorted(gpus, key=lambda gpu: gpu.pci):
        parts = instances.get(gpu.uuid, [])
        found += [_placed(part, gpu) for part in parts]
        if not parts and not gpu.split:
            found.append(gpu)
    return tuple(found)


def _gpu_of(line: str) -> Device | None:
    fields = [field.strip() for field in line.split(",")]
    if len(fields) not in (5, 6) or not fields[0].isdecimal() or not fields[1].startswith("GPU-"):
        return None
    index, uuid, pci, name, memory, *mig_mode = fields
    number = memory.removesuffix("MiB").strip()
    return Device(
        int(index),
        uuid,
        name,
        _kernel_address(pci),
        memory_mib=int(number) if number.isdecimal() else None,
        split=mig_mode == ["Enabled"],
    )


def _kernel_address(pci: str) -> str:
    """nvidia-smi writes the PCI domain with eight digits in capitals, the kernel with four in small ones."""
    domain, _, rest = pci.lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def _placed(part: Device, gpu: Device) -> Device:
    return Device(part.index, part.uuid, part.name, gpu.pci, part.memory_mib, part.mig, numa=gpu.numa, cpus=gpu.cpus)


# ── what the job may use ──────────────────────────────────────────────────────────────────────────────────────────────
def visible_devices(environ: Mapping[str, str], devices: Sequence[Device]) -> tuple[Device, ...]:
    """The devices that this job may use, in the order in which CUDA numbers them.

    CUDA_VISIBLE_DEVICES as CUDA reads it: nvidia-smi's numbers, or UUIDs and unambiguous beginnings of them; the first
    entry that names nothing ends the list, and a device that is named twice empties it. Where it is not set, Slurm's
    numbers narrow what is there, unless a cgroup has done so already.
    """
    mask = environ.get(MASK)
    if mask is None:
        return _hinted(environ, devices)
    entries = [entry.strip() for entry in mask.split(",")]
    chosen: list[Device] = []
    for entry in entries:
        device = _named(entry, devices) if _kind(entry) == _kind(entries[0]) else None
        if device is None:
            break
        if device in chosen:
            return ()
        chosen.append(device)
    return tuple(chosen)


def hides_all(environ: Mapping[str, str]) -> bool:
    """Whether CUDA_VISIBLE_DEVICES says that there is to be no GPU: empty, -1, or Slurm's NoDevFiles."""
    mask = environ.get(MASK)
    return mask is not None and mask.partition(",")[0].strip() in ("", "-1", "NoDevFiles")


def promised(environ: Mapping[str, str]) -> bool:
    """Whether somebody says that this job has GPUs."""
    return not hides_all(environ) and any(environ.get(name) for name in (MASK, *HINTS))


def describe(environ: Mapping[str, str]) -> str:
    """The variables that decide about devices, as they are."""
    names = (MASK, "CUDA_DEVICE_ORDER", *HINTS)
    return ", ".join(f"{name}={environ[name]}" if name in environ else f"{name} unset" for name in names)


def names_exactly(environ: Mapping[str, str], visible: Sequence[Device], devices: Sequence[Device]) -> bool:
    """Whether CUDA, left to itself, would number exactly these devices in this order.

    Not where Slurm's numbers narrowed the list, entries were ignored, or a GPU that does not answer leaves a gap in
    nvidia-smi's numbers, which CUDA may or may not have too.
    """
    mask = environ.get(MASK)
    if [device.index for device in devices] != list(range(len(devices))):
        return False
    return len(visible) == len(devices) if mask is None else mask.count(",") + 1 == len(visible) and " " not in mask


def _named(entry: str, devices: Sequence[Device]) -> Device | None:
    if entry.isdecimal():
        # Of a split GPU, CUDA takes the first instance.
        return next((device for device in devices if device.index == int(entry)), None)
    matching = [device for device in devices if device.uuid.startswith(entry)]
    return matching[0] if entry.startswith(("GPU-", "MIG-")) and len(matching) == 1 else None


def _kind(entry: str) -> str:
    """CUDA takes a list of numbers, of GPUs' UUIDs or of MIG instances' UUIDs, and no mixture of them."""
    return "number" if entry.isdecimal() else entry[:4]


def _hinted(environ: Mapping[str, str], devices: Sequence[Device]) -> tuple[Device, ...]:
    for name in HINTS:
        numbers = [entry.strip() for entry in environ.get(name, "").split(",")]
        # Slurm counts instances, nvidia-smi GPUs: with MIG its numbers say nothing here.
        if not all(number.isdecimal() for number in numbers) or any(device.mig for device in devices):
            continue
        hinted = tuple(device for device in devices if device.index in map(int, numbers))
        if len(hinted) == len(numbers):
            return hinted
    return tuple(devices)


# ── who gets which ────────────────────────────────────────────────────────────────────────────────────────────────────
def assign(
    visible: Sequence[Device], slots: int, environ: Mapping[str, str], *, first: int = 0, said: str = ""
) -> tuple[Device, ...]:
    """The device of each slot, from the `first` visible one on; `said` is what else the user should know.

    Raises:
        ConfigurationError: there are fewer devices than workers.
    """
    if len(visible) < first + slots:
        others = f" after the {first} of the agents before it" if first else ""
        there = ", ".join(f"{device.uuid} ({device.name})" for device in visible) or "none"
        raise ConfigurationError(
            [
                f"cluster.workers_per_node = {slots} needs {slots} GPUs on this node{others}, but this job may use "
                f"{len(visible)}: {there}. {describe(environ)}{'; ' if said else ''}{said}. Lower "
                "cluster.workers_per_node, ask for more GPUs (cluster.slurm.gpus), or set cluster.device to cpu."
            ]
        )
    return tuple(visible[first : first + slots])
