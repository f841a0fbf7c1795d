"""What several ranks do together, one thing after another, and whom an error in it tells of."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from hpcrl.errors import PeerLostError

OWN_ERRORS = (MemoryError, torch.OutOfMemoryError, torch.AcceleratorError)
"""What a collective may raise of this process itself: its memory has run out, or its device has failed before."""


class Operations:
    """Of one group, counted since the unit of work began, so that its replay counts alike. Every call of
    torch.distributed is made inside one."""

    def __init__(self, ranks: Sequence[int], rank: int) -> None:
        self._ranks = tuple(ranks)
        self._rank = rank
        self._number = 0

    def count_anew(self) -> None:
        """Another unit of work begins."""
        self._number = 0

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """The next one. Raises PeerLostError: gloo, NCCL and the store all tell of a peer by a RuntimeError."""
        self._number += 1
        try:
            yield
        except OWN_ERRORS:
            raise
        except RuntimeError as error:
            raise PeerLostError(self._ranks, name, self._number, self._rank, error) from error
