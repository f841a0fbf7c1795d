"""A shard that is not what was saved, though it has its size: only those who load it can find that."""

from pathlib import Path

from hpcrl.durable.shards import open_shard


def flip(path: Path, at: int = -1) -> None:
    """Flip the lowest bit of a byte, the last one if not told otherwise."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def last_element(path: Path) -> int:
    """The last byte of a shard that is an element of a parameter: what lies behind it only fills the buffer up."""
    shard = open_shard(path)
    array = max(shard.arrays, key=lambda name: shard.arrays[name]["data_offsets"])
    size, stop = shard.dtype(array).itemsize, max(span.stop for span in shard.spans)
    return shard.begins + shard.arrays[array]["data_offsets"][0] + size * stop - 1
