"""How long a pipeline lasts, compiled; `hpcrl.placement.pipeline_time` plays it in Python to the same bits.

Shapes: S stages, M micro-batches.
"""

import ctypes

import numpy as np

from hpcrl.ops.library import compiled


def pipeline(forward_SM: np.ndarray, backward_SM: np.ndarray | None, sent_M: np.ndarray) -> float | None:
    """From the begin of the first stage to the end of the last, of at least two stages; None where nothing is compiled.

    A training pipeline is 1F1B (Narayanan et al. 2021); `backward_SM` is None where nothing is trained. What each
    exchange has to carry is on its way for `sent_M`.
    """
    library = compiled()
    if library is None:
        return None
    function = library.hpcrl_pipeline
    function.restype = ctypes.c_double
    given = [None if it is None else np.ascontiguousarray(it, np.float64) for it in (forward_SM, backward_SM, sent_M)]
    addresses = [ctypes.c_void_p(None if it is None else it.ctypes.data) for it in given]
    return float(function(*addresses, *map(ctypes.c_int64, forward_SM.shape)))
