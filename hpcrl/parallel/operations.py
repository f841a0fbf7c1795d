"""What several ranks do together, one thing after another, and whom an error in it tells of."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from hpcrl.errors import PeerLostError
from hpcrl.workers.meter import Meter

OWN_ERRORS = (MemoryError, torch.OutOfMemoryError, torch.AcceleratorError)
"""What a collective may raise of this process itself: its memory has run out, or its device has failed before."""


class Operations:
    """Of one group, counted since the unit of work began, so that its replay counts alike. Every call of
    torch.distributed is made inside one."""

    def __init__(self, ranks: Sequence[int], rank: int, meter: Meter | None = None) -> None:
        """`meter` is told how long they take, and what is sent."""
        self._ranks = tuple(ranks)
        self._rank = rank
        self._meter = meter or Meter()
        self._number = 0

    def count_anew(self) -> None:
        """Another unit of work begins."""
        self._number = 0

    @contextmanager
    def __call__(self, name: str, sent: int = 0) -> Iterator[None]:
        """The next one, in which this rank gives others so many bytes. Raises PeerLostError: gloo, NCCL and the store
        all tell of a peer by a RuntimeError."""
        self._number += 1
        number = self._number
        self._meter.count("sent", sent)
        try:
            with self._meter.together(self._ranks, name, number):
                yield
        except OWN_ERRORS:
            raise
        except RuntimeError as error:
            raise PeerLostError(self._ranks, name, number, self._rank, error) from error
