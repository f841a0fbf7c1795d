"""Steps that a GPU replays as a CUDA graph: hundreds of kernels by one launch."""

from collections.abc import Callable
from typing import Any

import torch

from hpcrl.errors import InternalError
from hpcrl.models.decode_steps import Made


class CudaGraphs:
    """A `Recorder` for one device. Its recordings share their memory, so none may be replayed while another is, nor
    what one gave be read after another was replayed."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = None

    def record(self, function: Callable[[], Made]) -> Callable[[], Made]:
        """Raises InternalError where the device refuses."""
        try:
            graph, made = self._recorded(function)
        except RuntimeError as error:
            what = f"{self._device} cannot record a step of generation as a CUDA graph: {error}."
            raise InternalError(what, "Set generation.cuda_graphs: off.") from error
        self._pool = graph.pool()

        def replay() -> Made:
            graph.replay()
            return made

        return replay

    def _recorded(self, function: Callable[[], Made]) -> tuple[torch.cuda.CUDAGraph, Made]:
        graph = torch.cuda.CUDAGraph()
        # Other threads of a worker may call CUDA meanwhile; with "global" that would spoil the recording.
        recording = torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local")
        with torch.cuda.device(self._device), recording:
            return graph, function()
