"""Numbers between the host and a device, on their way while both work on: nobody waits for what nobody reads yet."""

from typing import Any

import numpy as np
import torch
from torch import Tensor


def sent(numbers: Any, device: torch.device) -> Tensor:
    """A tensor, an array or nested lists of numbers, on the device: to a GPU out of pinned memory."""
    tensor = numbers if isinstance(numbers, Tensor) else torch.as_tensor(numbers)
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


class Reading:
    """A copy of a tensor as it is now, on its way to the host."""

    def __init__(self, tensor: Tensor) -> None:
        on_gpu = tensor.device.type == "cuda"
        self._copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=on_gpu)
        self._copy.copy_(tensor, non_blocking=True)
        self._event = torch.cuda.current_stream(tensor.device).record_event() if on_gpu else None

    def numbers(self) -> np.ndarray:
        """Waits until the copy is there."""
        if self._event is not None:
            self._event.synchronize()
        return self._copy.numpy()
