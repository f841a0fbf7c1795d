"""Which GPUs a job may use and which worker gets which: pure functions of the environment and of what NVML says.

A device is known by its UUID. Its index means something only together with CUDA_VISIBLE_DEVICES, the order of CUDA and
what the job's cgroup hides. Knows neither processes nor files: `nvml` reads the node, `claims` keeps others away.
"""

from collections.abc import Iterable, Mapping, Sequence

from hpcrl.agent.nvml import Device
from hpcrl.errors import ConfigurationError

MASK = "CUDA_VISIBLE_DEVICES"
HINTS = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")
"""Slurm's own numbers of what it gave: the hardware's, whatever the cgroup makes of them."""


def usable(devices: Iterable[Device]) -> tuple[Device, ...]:
    """What can be computed on, in CUDA's order (by PCI address): whole GPUs, and instances in place of a split one."""
    return tuple(sorted((device for device in devices if not device.split), key=lambda device: device.pci))


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
                f"{len(visible)}: {there}. {describe(environ)}{'; ' if said else ''}{said}."
            ],
            "Lower cluster.workers_per_node, ask for more GPUs (cluster.slurm.gpus), or set cluster.device to cpu.",
        )
    return tuple(visible[first : first + slots])
