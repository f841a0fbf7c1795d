import os
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcrl.durable import checksums
from hpcrl.durable.checksums import crc32_of, joined
from hpcrl.durable.files import Files


@given(st.binary(max_size=50), st.binary(max_size=300))
def test_checksum_of_two_contents_follows_from_theirs(first: bytes, second: bytes) -> None:
    assert joined(crc32(first), crc32(second), len(second)) == crc32(first + second)


@pytest.mark.parametrize("size", [0, 1, 99, 100, 101, 399, 400, 1001])
def test_pieces_read_side_by_side_have_the_checksum_of_the_whole(
    root: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checksums, "LEAST_BYTES", 100)
    data = os.urandom(1001)
    (root / "x").write_bytes(data)
    assert crc32_of(Files(root), root / "x", size) == crc32(data[:size])
    assert crc32_of(Files(root), root / "x", 1002) is None
