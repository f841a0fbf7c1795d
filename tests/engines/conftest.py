from collections.abc import Iterator

import pytest
import torch
from support.devices import DEVICES


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """With kernels that give the same bits every time, as a host has them."""
    before = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("warn")
    yield request.param
    torch.set_deterministic_debug_mode(before)
