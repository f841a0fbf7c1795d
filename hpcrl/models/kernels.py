"""Kernels that give the same bits every time, and which operation has none. Knows no model and no group."""

import os
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

from hpcrl.errors import InternalError

T = TypeVar("T")

UNNAMED = "one that torch does not name"

_NO_VARIANT = re.compile(r"(\S+) does not have a deterministic implementation")
_CUBLAS = re.compile(r"not deterministic because it uses (CuBLAS)")


class Kernels:
    """What is asked of torch's kernels in this process; one for all engines, as torch has one mode.

    `gradients` takes deterministic kernels alone, `generating` any. All else only warns of one that has no such
    variant.
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

    def gradients(
        self, role: str, compute: Callable[[], T], bits: Callable[[], int], anyone: Callable[[bool], bool] | None = None
    ) -> T:
        """What `compute` gives, which may be called twice, and leaves a gradient of these bits.

        With `warn`, flash attention's backward would take its faster kernel, whose sums differ from call to call: only
        with `error` does torch take the deterministic one. Where an operation has none, or a role's first gradient
        comes out differently when it is computed again, `lacking` says so, and from then on this process computes
        gradients as the rest. Ranks that compute a gradient together do all of this together: `anyone` says whether
        something is so on one of them, and they first compute one with `warn`, which stops nobody half-way. Raises
        InternalError where such a rank still meets an operation that has none.
        """
        if not self._deterministic or self._known(anyone):
            return compute()
        if anyone is not None and role not in self._compared:
            made = self._watched(compute)
            if self._known(anyone):
                return made
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
            if anyone is not None:
                raise InternalError(
                    f"{role}: {self.lacking} has no deterministic variant. The first gradient did without it, and "
                    "workers that compute a gradient together cannot begin it anew.",
                    "`hpcrl resume RUN --deterministic false` continues with whatever kernels there are.",
                ) from error
        finally:
            torch.set_deterministic_debug_mode("warn")
        return compute()

    @contextmanager
    def generating(self) -> Iterator[None]:
        """For what computes no gradient and writes to no place twice, whose bits any kernels keep: the deterministic
        ones that write would sort their places first, for each token of each block."""
        before = torch.get_deterministic_debug_mode()
        torch.set_deterministic_debug_mode("default")
        try:
            yield
        finally:
            torch.set_deterministic_debug_mode(before)

    def _known(self, anyone: Callable[[bool], bool] | None) -> bool:
        """Whether an operation without a deterministic variant is known, here or on a rank beside this one."""
        return bool(self.lacking) if anyone is None else anyone(bool(self.lacking))

    def _watched(self, compute: Callable[[], T]) -> T:
        """The same; `lacking` is the first operation without a variant of which torch warns."""
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            made = compute()
        for warning in said:
            if name := lacking_in(str(warning.message)):
                self.lacking = self.lacking or name
            else:
                warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
        return made


def lacking_in(message: str) -> str:
    """The operation that torch refuses because it has no deterministic variant; "" if it says something else."""
    found = _NO_VARIANT.search(message) or _CUBLAS.search(message)
    return "" if found is None else found[1]
