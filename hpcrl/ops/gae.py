"""Generalised advantage estimation over packed sequences: compiled, or in numpy with the same operations and bits.

Rows are host arrays when advantages are estimated, so there is no CUDA version.
Shape legend: N tokens of B sequences; `bounds_B1` [B + 1] are the sequences' bounds.
"""

import ctypes

import numpy as np

from hpcrl.ops.library import compiled

_DOUBLES = ctypes.POINTER(ctypes.c_double)
_LONGS = ctypes.POINTER(ctypes.c_int64)


def gae(
    rewards_N: np.ndarray, values_N: np.ndarray, bounds_B1: np.ndarray, discount: float, gae_lambda: float
) -> tuple[np.ndarray, np.ndarray]:
    """Advantages and returns, float64 [N] each, from float64 rewards and values and int64 bounds, all contiguous.

    A_t = δ_t + discount·λ·A_{t+1} with δ_t = (r_t + discount·V_{t+1}) - V_t, from the last token to the first, and
    R_t = A_t + V_t; behind the last token A and V are 0. Schulman et al. 2016, equation 16.

    Raises:
        ValueError: the arrays are not of these types, or the bounds do not fit them.
    """
    count = len(rewards_N)
    for name, array, dtype in (("rewards", rewards_N, "float64"), ("values", values_N, "float64")):
        if array.dtype != dtype or array.shape != (count,) or not array.flags.c_contiguous:
            raise ValueError(f"{name} are {array.dtype}{list(array.shape)}; contiguous {dtype} [{count}] is needed")
    if bounds_B1.dtype != np.int64 or not bounds_B1.flags.c_contiguous or bounds_B1.ndim != 1 or not len(bounds_B1):
        raise ValueError(f"bounds are {bounds_B1.dtype}{list(bounds_B1.shape)}; contiguous int64 [B + 1] is needed")
    if bounds_B1[0] != 0 or bounds_B1[-1] != count or (np.diff(bounds_B1) < 0).any():
        raise ValueError(f"bounds must rise from 0 to {count}, the number of tokens; they are {bounds_B1}")
    library = compiled()
    if library is None:
        return in_numpy(rewards_N, values_N, bounds_B1, discount, gae_lambda)
    advantages_N, returns_N = np.empty(count), np.empty(count)
    library.hpcrl_gae(
        rewards_N.ctypes.data_as(_DOUBLES),
        values_N.ctypes.data_as(_DOUBLES),
        bounds_B1.ctypes.data_as(_LONGS),
        ctypes.c_int64(len(bounds_B1) - 1),
        ctypes.c_double(discount),
        ctypes.c_double(discount * gae_lambda),
        advantages_N.ctypes.data_as(_DOUBLES),
        returns_N.ctypes.data_as(_DOUBLES),
    )
    return advantages_N, returns_N


def in_numpy(
    rewards_N: np.ndarray, values_N: np.ndarray, bounds_B1: np.ndarray, discount: float, gae_lambda: float
) -> tuple[np.ndarray, np.ndarray]:
    """The same operations in the same order: a token of every sequence at once, from the last to the first."""
    count, decay = len(rewards_N), discount * gae_lambda
    next_values_N = np.append(values_N[1:], 0.0)
    lengths_B = np.diff(bounds_B1)
    next_values_N[bounds_B1[1:][lengths_B > 0] - 1] = 0.0
    deltas_N = (rewards_N + discount * next_values_N) - values_N
    places_N, ends = _from_the_end(bounds_B1, lengths_B)
    sums_N = np.empty(count)
    sums_N[places_N] = deltas_N
    before, start = np.zeros(len(lengths_B)), 0
    for end in ends:
        now = sums_N[start:end]
        now += decay * before[: end - start]
        before, start = now, end
    advantages_N = sums_N[places_N]
    return advantages_N, advantages_N + values_N


def _from_the_end(bounds_B1: np.ndarray, lengths_B: np.ndarray) -> tuple[np.ndarray, list[int]]:
    """Where each token goes when all last tokens come first, then all last but one, and so on; and where each ends.

    Longer sequences come first, so that those that go on are always the first ones of those before.
    """
    ranks_B = np.empty_like(lengths_B)
    ranks_B[np.argsort(-lengths_B, kind="stable")] = np.arange(len(lengths_B))
    distance_N = np.repeat(bounds_B1[1:], lengths_B) - 1 - np.arange(bounds_B1[-1])
    longer_K = len(lengths_B) - np.cumsum(np.bincount(lengths_B))[:-1] if len(lengths_B) else lengths_B
    ends_K = np.cumsum(longer_K)
    return (ends_K - longer_K)[distance_N] + np.repeat(ranks_B, lengths_B), ends_K.tolist()
