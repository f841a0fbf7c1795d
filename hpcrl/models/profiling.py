"""torch.profiler around a call, and its trace in the run directory: JSON that chrome://tracing and Perfetto show."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from hpcrl.durable.rundir import RunDirectory


@contextmanager
def profiled(device: torch.device, run: RunDirectory, path: Path) -> Iterator[None]:
    """Record what is done within it, and publish the trace as `path`, packed. It changes no number.

    A trace that finds no room is left out, and said to be: it is no reason to end a run.
    """
    from torch.profiler import ProfilerActivity, profile

    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    with profile(activities=kinds) as found:
        yield
    try:
        with TemporaryDirectory() as folder:
            trace = Path(folder) / "trace.json.gz"
            found.export_chrome_trace(str(trace))
            run.files.publish(path, trace.read_bytes(), "trace")
    except OSError as error:
        print(f"no trace was written to {path.name}: {error}", file=sys.stderr, flush=True)
