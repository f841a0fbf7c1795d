import random
from pathlib import Path

import pytest
from support.miniature import make_run

from hpcrl.durable import journals
from hpcrl.durable.journals import JournalPart, lines_backwards, size_of


def forwards(data: bytes) -> list[tuple[int, bytes]]:
    found, start = [], 0
    while end := data.find(b"\n", start) + 1:
        found.append((end, data[start:end]))
        start = end
    return found


def test_lines_from_the_end_are_those_from_the_beginning(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, chance = make_run(root / "run"), random.Random(0)
    path = run.journal(run.claim_attempt("s"))
    assert size_of(run, 0) == 0 and not [*lines_backwards(run, 0)]
    for _ in range(300):
        monkeypatch.setattr(journals, "PIECE_BYTES", chance.randint(1, 9))
        data = bytes(chance.choice(b"ab\n") for _ in range(chance.randint(0, 30)))
        path.write_bytes(data)
        assert [*lines_backwards(run, 0)] == forwards(data)[::-1]
        size = chance.randint(0, len(data))
        assert [*lines_backwards(run, 0, size)] == forwards(data[:size])[::-1]


def test_part_of_a_journal_knows_the_checksums_of_its_beginnings() -> None:
    whole = JournalPart(b"0123456789")
    part = JournalPart(b"456789", 4, whole.until(4))
    assert [part.until(end) for end in (4, 7, 10)] == [whole.until(end) for end in (4, 7, 10)] and part.size == 10
