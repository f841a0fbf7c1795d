"""Claims on devices between processes of one node."""

import json
import multiprocessing
import os
import stat
import time
from pathlib import Path

import pytest
from support.claims import GPUS, hold

from hpcrl.agent import claims as module
from hpcrl.agent.claims import Claims, Holder, claims_folder
from hpcrl.errors import ConfigurationError, InternalError

SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAVE_S", 0.3)


def claims(folder: Path, node: int = 0, run: str = "/runs/b", submission: str = "s", ending_s: float = 0.0) -> Claims:
    return Claims(Holder(run, submission, node, os.getpid()), ending_s, (folder,))


@pytest.fixture
def other(tmp_path: Path):
    """Starts a process that holds both devices for a run."""
    started = []

    def start(run: str, node: int = 0) -> multiprocessing.process.BaseProcess:
        ours, theirs = SPAWN.Pipe()
        process = SPAWN.Process(target=hold, args=(tmp_path, run, node, theirs))
        process.start()
        started.append((process, ours))
        assert ours.recv() == "held"
        return process

    yield start
    for process, _ in started:
        process.kill()
        process.join()


def test_a_device_is_held_by_one_process_and_an_error_names_it(tmp_path, other):
    process = other("/runs/a", node=3)
    with pytest.raises(ConfigurationError) as refused:
        claims(tmp_path).take(GPUS[1:])
    for part in (GPUS[1], str(process.pid), "node 3", "/runs/a", "hpcrl stop"):
        assert part in str(refused.value)


def test_the_kernel_lets_go_what_a_killed_process_held(tmp_path, other):
    process = other("/runs/a")
    process.kill()
    process.join()
    ours = claims(tmp_path)
    ours.take(GPUS)
    written = json.loads(next(tmp_path.rglob("GPU-1.lock")).read_text())
    assert written == {"run": "/runs/b", "submission": "s", "node": 0, "pid": os.getpid()}
    ours.release()


def test_an_agent_that_is_ending_is_waited_for(tmp_path, other, monkeypatch):
    monkeypatch.setattr(module, "LEAVE_S", 20.0)
    process = other("/runs/a")
    ours = claims(tmp_path)
    asked = []

    def kill_at_the_second_look() -> bool:
        asked.append(None)
        if len(asked) == 2:
            process.kill()
        return False

    ours.take(GPUS, kill_at_the_second_look)
    assert len(asked) >= 3
    ours.release()


def test_another_node_of_the_same_submission_is_not_waited_for(tmp_path, other, monkeypatch):
    monkeypatch.setattr(module, "LEAVE_S", 60.0)
    other("/runs/b", node=1)
    began = time.monotonic()
    with pytest.raises(ConfigurationError, match="node 1"):
        claims(tmp_path).take(GPUS)
    assert time.monotonic() - began < 30


def test_waiting_ends_when_it_is_given_up(tmp_path, other, monkeypatch):
    monkeypatch.setattr(module, "LEAVE_S", 60.0)
    other("/runs/a")
    began = time.monotonic()
    claims(tmp_path).take(GPUS, lambda: True)
    assert time.monotonic() - began < 30


def test_who_cannot_have_all_holds_none(tmp_path, other):
    other("/runs/a")
    ours = claims(tmp_path)
    with pytest.raises(ConfigurationError):
        ours.take(("GPU-9", *GPUS))
    again = claims(tmp_path)
    again.take(("GPU-9",))
    again.release()


def test_nothing_is_made_for_workers_without_a_device(tmp_path):
    claims(tmp_path).take(())
    assert list(tmp_path.iterdir()) == []


def test_claims_are_in_a_folder_of_this_user_alone(tmp_path):
    folder = claims_folder((tmp_path,))
    assert folder == tmp_path / f"hpcrl-{os.getuid()}"
    folder.chmod(0o777)
    assert stat.S_IMODE(claims_folder((tmp_path,)).stat().st_mode) == 0o700


def test_a_folder_that_somebody_else_prepared_is_not_used(tmp_path):
    first, second, elsewhere = (tmp_path / name for name in ("first", "second", "elsewhere"))
    for folder in (first, second, elsewhere):
        folder.mkdir()
    (first / f"hpcrl-{os.getuid()}").symlink_to(elsewhere)
    assert claims_folder((first, second)).parent == second
    with pytest.raises(InternalError, match=r"first.* Remove it, or set cluster\.device to cpu\."):
        claims_folder((first, tmp_path / "missing"))
    claims(first).take(())  # of workers on CPUs
    (first / f"hpcrl-{os.getuid()}").unlink()
    assert claims_folder((first, tmp_path / "missing")).parent == first
