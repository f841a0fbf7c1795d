from pathlib import Path

from hpcrl.event_log import Entry, encode
from hpcrl.events import WorkersReady
from hpcrl.inspect.entries import EntryTail, entries_of

READY = Entry(1.5, WorkersReady(2))


def test_events_are_read_as_they_come_and_what_is_none_is_skipped_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    tail = EntryTail(path)
    assert (tail.read(), tail.skipped) == ([], 0)
    path.write_bytes(encode(READY) + b'{"time":1.0,"event":"brand new"}\nnonsense\n' + encode(READY)[:-3])
    assert (tail.read(), tail.skipped) == ([READY], 2)
    with open(path, "ab") as file:
        file.write(encode(READY)[-3:] + b"\xff\n")
    assert (tail.read(), tail.skipped) == ([READY], 3)
    assert (tail.read(), tail.skipped) == ([], 3)


def test_a_line_without_a_time_is_no_event() -> None:
    assert entries_of(['{"event":"ready","workers":2}', encode(READY).decode()]) == [READY]
