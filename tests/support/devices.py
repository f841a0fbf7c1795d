"""Where a test runs: on the CPU, and on a GPU where there is one."""

import pytest
import torch

ON_A_GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
DEVICES = ["cpu", pytest.param("cuda", marks=ON_A_GPU)]
