"""The GPUs of a node and how they reach each other."""

from hpcrl.agent.nvml import NO_LIBRARY, Inventory, read_inventory
from hpcrl.doctor.measurements import GpuMeasurements

TIMEOUT_S = 20.0


def measure_gpus() -> GpuMeasurements:
    return gpus_of(read_inventory(connections=True, timeout_s=TIMEOUT_S))


def gpus_of(inventory: Inventory) -> GpuMeasurements:
    """Instances are their GPU's."""
    names = tuple(device.name for device in inventory.devices if device.mig is None)
    links = {
        f"{there.first}-{there.second}": f"NV{there.nvlinks}" if there.nvlinks else there.path
        for there in inventory.connections
    }
    complaints = inventory.complaints if inventory.has_library else (NO_LIBRARY,)
    return GpuMeasurements(names, links, "; ".join(complaints))
