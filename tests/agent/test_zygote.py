"""The parent of a node's workers: what it shares with them, and when it is looked below."""

import gc
import os
import time
from pathlib import Path

import pytest
from support.chaos import create_run, finish, outputs, rows_of, toy_experiment
from support.faults import Looks

from hpcrl.agent.zygote import Work, Zygote
from hpcrl.wire.address import LOOPBACK_ONLY
from hpcrl.wire.zygote import WorkerArgs


def tell_what_is_frozen(_args: WorkerArgs) -> int:
    os.write(1, str(gc.get_freeze_count()).encode())  # not to what captures sys.stdout
    return 0


def test_no_collection_in_a_worker_touches_what_its_parent_has_imported(tmp_path: Path) -> None:
    zygote = Zygote(("hpcrl.workers.reward_host:RewardHost",), Work(tell_what_is_frozen, lambda _args, _channel: 1))
    try:
        out = tmp_path / "out"
        zygote.fork(WorkerArgs(str(tmp_path), 0, 0, "", LOOPBACK_ONLY, str(out), str(tmp_path / "err")))
        deadline = time.monotonic() + 120
        while not zygote.exits() and time.monotonic() < deadline:
            time.sleep(0.01)
    finally:
        zygote.close()
    assert int(out.read_text()) > 10_000


def test_nobody_looks_below_proc_once_the_workers_are_ready(tmp_path: Path) -> None:
    run = create_run(tmp_path / "run", toy_experiment(steps=5, delay_s=0.1, heartbeat_s=0.05, lost_after_s=60.0))
    assert finish(run, Looks(tmp_path)) == [0], outputs(run)
    [ready] = [row["time"] for row in rows_of(run.events(0)) if row["event"] == "ready"]
    [ended] = [row["time"] for row in rows_of(run.events(0)) if row["event"] == "ending"]
    looks = {path.stem: [float(line) for line in path.read_text().split()] for path in tmp_path.glob("*.looks")}
    assert looks["agent"], "it speaks for workers that are not there yet"
    assert ended - ready > 1.0, "twenty beats"
    late = {name: [when - ready for when in times if when > ready] for name, times in looks.items()}
    assert all(len(times) <= 1 for times in late.values()), f"more than the beat that was under way: {late}"


def test_what_is_imported_before_the_fork_asks_the_driver_for_gpus_and_not_cuda(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that has asked CUDA can fork none that may use it, and libraries ask as they are imported."""
    asks = "from torch.cuda import _nvml_based_avail\nHOST = _nvml_based_avail()\nassert HOST, 'asks CUDA'\n"
    (tmp_path / "asking_library.py").write_text(asks)
    monkeypatch.syspath_prepend(tmp_path)
    zygote = Zygote(("asking_library:HOST",), lambda _: 0)
    try:
        zygote.fork(WorkerArgs(str(tmp_path), 0, 0, "", LOOPBACK_ONLY, str(tmp_path / "out"), str(tmp_path / "err")))
        deadline = time.monotonic() + 120
        while not zygote.exits():
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        zygote.close()
