"""A file that was changed such that its CRC did not: what only those who load it can find."""

import zlib
from pathlib import Path

from hpcrl.durable.shards import open_shard


def flip_unnoticed(path: Path, at: int = -1) -> None:
    """Flip the lowest bit of a byte, the last one, and of the 4 bytes before it what brings the CRC-32 back."""
    data = path.read_bytes()
    flipped = 8 * (at % len(data))
    wanted = _effect(data, flipped)
    rows: list[tuple[int, set[int]]] = []
    for bit in range(flipped - 32, flipped):
        effect, flips = _effect(data, bit), {bit}
        for other, those in rows:
            if effect ^ other < effect:
                effect, flips = effect ^ other, flips ^ those
        rows.append((effect, flips))
        rows.sort(reverse=True)
    chosen = {flipped}
    for effect, flips in rows:
        if wanted ^ effect < wanted:
            wanted, chosen = wanted ^ effect, chosen ^ flips
    changed = bytearray(data)
    for bit in chosen:
        changed[bit // 8] ^= 1 << bit % 8
    assert bytes(changed) != data and zlib.crc32(changed) == zlib.crc32(data)
    path.write_bytes(changed)


def last_element(path: Path) -> int:
    """The last byte of a shard that is an element of a parameter: what lies behind it only fills the buffer up."""
    shard = open_shard(path)
    array = max(shard.arrays, key=lambda name: shard.arrays[name]["data_offsets"])
    size, stop = shard.dtype(array).itemsize, max(span.stop for span in shard.spans)
    return shard.begins + shard.arrays[array]["data_offsets"][0] + size * stop - 1


def _effect(data: bytes, bit: int) -> int:
    """What flipping a bit does to the CRC."""
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return zlib.crc32(changed) ^ zlib.crc32(data)
