"""Answers peers that ask for rows of this worker's memory. Knows no sockets: a question in, an answer out."""

import numpy as np

from hpcrl.data.totals import total_of
from hpcrl.wire.peer_messages import Fetch, Rows
from hpcrl.workers.sample_store import SampleStore


class RowServer:
    """Reads one store."""

    def __init__(self, store: SampleStore) -> None:
        self._store = store

    def serve(self, fetch: Fetch) -> tuple[Rows, list[memoryview]]:
        """The answer and its raw frames: an array per key, or none and their total, or what is missing."""
        try:
            sample = self._store.take(fetch.step, fetch.call, fetch.ids, fetch.keys)
        except KeyError as error:
            return Rows(fetch.token, None, str(error)), []
        if fetch.sum:
            return Rows(fetch.token, None, total=total_of(sample)), []
        return Rows(fetch.token, sample.meta), [_bytes_of(sample.data[key]) for key in sample.keys]


def _bytes_of(array: np.ndarray) -> memoryview:
    """Not copied: nobody writes into rows that are held."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
