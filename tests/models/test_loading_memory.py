"""How much memory loading takes beside the model itself, in a process of its own."""

import os
import subprocess
import sys

import pytest
from support.tiny_models import tiny_config

from hpcrl.models.pretrained import write_random_pretrained

LOADED = """
import sys, threading, time, torch
from hpcrl.engines.flat import new_model


def of_status(name):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith(name))


def watch():
    while not done:
        peaks.append(of_status("VmRSS"))
        time.sleep(0.002)


new_model(sys.argv[1])
base, peaks, done = of_status("VmRSS"), [0], []
watching = threading.Thread(target=watch)
watching.start()
model = new_model(sys.argv[2], dtype=getattr(torch, sys.argv[3]), trainable=False)
done.append(True)
watching.join()
print(max(peaks) - base, model.memory.data.nbytes)
"""
GIVES_BACK = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}
"""glibc gives the kernel back what is freed. Left to itself it keeps some MiB, how many differs from run to run."""


@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.slow), "bfloat16"])
def test_loading_takes_little_beside_what_stays(models, dtype):
    """A tensor at a time, and what the kernel has read of its file: 1/40 of the model each, twice as much in bf16."""
    command = [sys.executable, "-c", LOADED, *map(str, models), dtype]
    loaded = subprocess.run(command, env=os.environ | GIVES_BACK, capture_output=True, text=True, check=True)
    peak, stays = map(int, loaded.stdout.split())
    assert peak < 1.15 * stays, (peak, stays)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A small one, so that all code is in memory, and one of 126 MiB in float32."""
    folder = tmp_path_factory.mktemp("models")
    for name, blocks in (("small", 1), ("large", 40)):
        config = tiny_config(blocks=blocks, hidden_size=256, intermediate_size=704, head_dim=64)
        write_random_pretrained(folder / name, config, seed=1)
    return folder / "small", folder / "large"
