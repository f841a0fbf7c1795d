from pathlib import Path

from hpcrl.event_log import decode
from hpcrl.member_events import MemoryHeld
from hpcrl.workers.worker_log import WorkerLog


def test_what_a_call_holds_is_written_where_it_is_another_than_before(tmp_path: Path) -> None:
    log = WorkerLog(tmp_path / "worker-0.jsonl")
    few, many = {"actor.parameters": (0, 8, 0)}, {"actor.parameters": (0, 16, 0)}
    for step, call, held in [(1, "gen", few), (1, "train", many), (2, "gen", few), (2, "train", {}), (3, "gen", many)]:
        log.held(step, call, 0, held, 0.5)
    log.close()
    written = [decode(line).event for line in (tmp_path / "worker-0.jsonl").read_text().splitlines()]
    assert written == [
        MemoryHeld(1, "gen", 0, few, 0.5),
        MemoryHeld(1, "train", 0, many, 0.5),
        MemoryHeld(3, "gen", 0, many, 0.5),
    ]
