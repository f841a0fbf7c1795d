"""The GPUs of a node and how they reach each other."""

from hpcrl.agent.nvml import NO_LIBRARY, Inventory, read_inventory
from hpcrl.agent.torch_build import TorchBuild, measure_build
from hpcrl.doctor.measurements import GpuMeasurements

TIMEOUT_S = 20.0


def measure_gpus() -> GpuMeasurements:
    inventory = read_inventory(connections=True, timeout_s=TIMEOUT_S)
    return gpus_of(inventory, measure_build() if inventory.devices else None)


def gpus_of(inventory: Inventory, torch: TorchBuild | None = None) -> GpuMeasurements:
    """Instances are their GPU's."""
    whole = [device for device in inventory.devices if device.mig is None]
    names, capabilities = (tuple(getattr(device, what) for device in whole) for what in ("name", "capability"))
    links = {
        f"{there.first}-{there.second}": f"NV{there.nvlinks}" if there.nvlinks else there.path
        for there in inventory.connections
    }
    complaints = inventory.complaints if inventory.has_library else (NO_LIBRARY,)
    said = "; ".join(complaints)
    return GpuMeasurements(names, links, said, capabilities, inventory.driver, inventory.cuda, torch)
