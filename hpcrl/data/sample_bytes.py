"""A batch as one string of bytes, for whoever sends it whole: its metadata, then its arrays."""

import math

import msgspec
import numpy as np

from hpcrl.data.samples import SampleMeta, SequenceSample

ALIGNED = 64
"""Where an array begins is a multiple of it, in bytes."""


def to_bytes(sample: SequenceSample) -> bytes:
    meta = msgspec.msgpack.encode(sample.meta)
    whole = bytearray(len(meta).to_bytes(ALIGNED, "little") + meta)
    for key in sample.keys:
        whole += bytes(-len(whole) % ALIGNED)
        whole += np.ascontiguousarray(sample.data[key]).tobytes()
    return bytes(whole)


def from_bytes(data: bytes) -> SequenceSample:
    """The batch whose arrays are views of `data`."""
    begins = ALIGNED + int.from_bytes(data[:ALIGNED], "little")
    meta = msgspec.msgpack.decode(data[ALIGNED:begins], type=SampleMeta)
    arrays = {}
    for key, of in meta.keys.items():
        begins += -begins % ALIGNED
        dtype, count = np.dtype(of.dtype), sum(of.totals) * math.prod(of.trailing)
        arrays[key] = np.frombuffer(data, dtype, count, begins).reshape(-1, *of.trailing)
        begins += count * dtype.itemsize
    return SequenceSample(meta, arrays)
