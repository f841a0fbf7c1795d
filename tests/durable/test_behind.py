from pathlib import Path

import numpy as np
import pytest

from hpcrl.durable import behind
from hpcrl.durable.behind import WrittenBehind


def test_pieces_are_in_the_file_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(behind, "FLUSHED_BYTES", 1000)
    pieces = [np.full(count, count, np.float32) for count in (1, 70_000, 3, 0, 500, 12)]
    with WrittenBehind(tmp_path / "file") as file:
        for piece in pieces:
            file.write(piece)
    assert (tmp_path / "file").read_bytes() == b"".join(piece.tobytes() for piece in pieces)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600


def test_a_full_disk_is_told_of(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left"), WrittenBehind(Path("/dev/full")) as file:
        file.write(np.zeros(10))


def test_what_raises_inside_is_what_is_told(tmp_path: Path) -> None:
    with pytest.raises(KeyError), WrittenBehind(tmp_path / "file") as file:
        file.write(np.zeros(10))
        raise KeyError("of the maker")
