"""Kernels that give the same bits every time, and which operation has none. Knows no model and no group."""

import os
import re
from collections.abc import Callable
from typing import TypeVar

import torch

T = TypeVar("T")

UNNAMED = "one that torch does not name"

_NO_VARIANT = re.compile(r"(\S+) does not have a deterministic implementation")
_CUBLAS = re.compile(r"not deterministic because it uses (CuBLAS)")


class Kernels:
    """What is asked of torch's kernels in this process; one for all engines, as torch has one mode.

    `gradients` takes deterministic kernels alone. All else only warns of one that has no such variant (a running sum on
    CUDA, in sampling): what was sampled is read in a replay, never drawn again.
    """

    def __init__(self, deterministic: bool = True) -> None:
        self.lacking = ""
        """The first operation of a gradient that has no deterministic variant."""
        self._deterministic = deterministic
        self._compared: set[str] = set()
        if deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            # Not use_deterministic_algorithms, which imports the compiler: a second in every worker, at every start.
            torch.set_deterministic_debug_mode("warn")
            # Nothing reads memory before it was written; torch would fill all of it with NaN, 3 % of a PPO step.
            torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]

    def gradients(self, role: str, compute: Callable[[], T], bits: Callable[[], int]) -> T:
        """What `compute` gives, which talks to no other rank, may be called twice, and leaves a gradient of these bits.

        With `warn`, flash attention's backward would take its faster kernel, whose sums differ from call to call: only
        with `error` does torch take the deterministic one. Where an operation has none, or a role's first gradient
        comes out differently when it is computed again, `lacking` says so, and from then on this process computes
        gradients as the rest.
        """
        if not self._deterministic or self.lacking:
            return compute()
        torch.set_deterministic_debug_mode("error")
        try:
            made = compute()
            if role not in self._compared:
                self._compared.add(role)
                first, made = bits(), compute()
                self.lacking = "" if bits() == first else UNNAMED
            return made
        except RuntimeError as error:
            self.lacking = lacking_in(str(error))
            if not self.lacking:
                raise
        finally:
            torch.set_deterministic_debug_mode("warn")
        return compute()


def lacking_in(message: str) -> str:
    """The operation that torch refuses because it has no deterministic variant; "" if it says something else."""
    found = _NO_VARIANT.search(message) or _CUBLAS.search(message)
    return "" if found is None else found[1]
