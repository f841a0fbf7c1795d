import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from support.made_run import MadeRun, ended_run

from hpcrl.durable.rundir import Claim
from hpcrl.errors import ConfigurationError
from hpcrl.inspect.status import is_over, read_status


def reclaim(made: MadeRun, **changes: object) -> None:
    """Replace who claimed the newest attempt."""
    path = made.run.claim(made.attempt)
    claim = msgspec.structs.replace(msgspec.json.decode(path.read_bytes(), type=Claim), **changes)
    path.unlink()
    path.write_bytes(msgspec.json.encode(claim))


def test_a_run_that_nobody_has_begun_is_submitted(tmp_path: Path) -> None:
    status = read_status(MadeRun(tmp_path / "run").run.root)
    assert (status.state, status.attempt, status.step) == ("submitted", None, 0)


def test_a_living_master_is_running_with_what_each_worker_does(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "run")
    made.begin(ready=False)
    assert read_status(made.run.root).state == "starting"
    made.event("ready", workers=2)
    made.steps(0, 3)
    made.send(4, "actor_gen", 1, [1])
    status = read_status(made.run.root)
    assert (status.state, status.attempt, status.step, status.steps) == ("running", 0, 3, 60)
    assert [worker.doing for worker in status.workers] == ["idle", "actor_gen, step 4"]
    assert status.metrics["eval_rew/accuracy"] == 0.4
    made.event("order", command="pause", nonce="x")
    assert read_status(made.run.root).state == "paused"
    made.event("draining", in_flight=[])
    assert read_status(made.run.root).state == "draining"


def test_a_master_that_is_gone_without_a_verdict_was_killed(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "run")
    made.begin()
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    reclaim(made, pid=ended.pid)
    status = read_status(made.run.root)
    assert status.state == "killed"
    assert f"process {ended.pid}" in status.why
    assert f"hpcrl resume {made.run.root}" in status.hint
    assert status.workers == []


def test_another_process_with_the_same_pid_or_another_boot_is_not_the_master(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "run")
    made.begin()
    assert read_status(made.run.root).state == "running"
    reclaim(made, pid_started=1)
    assert read_status(made.run.root).state == "killed"
    made.begin()
    reclaim(made, boot_id="another")
    assert read_status(made.run.root).state == "killed"


def test_a_master_on_another_host_is_not_guessed_about(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "run")
    made.begin()
    reclaim(made, host="elsewhere")
    status = read_status(made.run.root)
    assert status.state == "unknown"
    assert "elsewhere" in status.why
    assert status.last_event_s_ago is not None


@pytest.mark.parametrize(
    ("state", "code", "hint"),
    [("done", 0, ""), ("stopped", 93, "resume"), ("preempted", 75, "resume"), ("failed", 66, "logs")],
)
def test_a_verdict_is_believed(tmp_path: Path, state: str, code: int, hint: str) -> None:
    made = MadeRun(tmp_path / "run")
    made.begin()
    made.event("failed", rank=1, what="step 1 rew_inf, part 0", error="boom", traceback="Traceback\n")
    made.verdict(state, code, "the reason")
    status = read_status(made.run.root)
    assert (status.state, status.exit_code, status.why) == (state, code, "the reason")
    assert hint in status.hint
    assert (status.failure is not None) == (state == "failed")
    if status.failure is not None:
        assert "worker-1 in step 1 rew_inf, part 0: boom" in status.render()


def test_a_run_is_over_when_it_has_a_verdict_or_its_master_is_gone(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "run")
    assert not is_over(made.run)
    made.begin()
    assert not is_over(made.run)
    reclaim(made, host="elsewhere")
    assert not is_over(made.run)
    made.begin()
    reclaim(made, pid_started=1)
    assert is_over(made.run)
    made.begin()
    made.verdict("done", 0, "step 60 was the last")
    assert is_over(made.run)


def test_what_is_rendered_is_short_and_complete(tmp_path: Path) -> None:
    made = ended_run(tmp_path / "run")
    text = read_status(made.run.root).render()
    assert "state    done, attempt 1, exit code 0" in text
    assert "progress step 60 of 60" in text
    assert "reward 0.870, accuracy 0.875, KL 0.0190" in text
    assert len(text.splitlines()) < 8


def test_a_status_is_json(tmp_path: Path) -> None:
    made = ended_run(tmp_path / "run")
    values = json.loads(msgspec.json.encode(read_status(made.run.root)))
    assert values["state"] == "done"


def test_what_is_no_run_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no run"):
        read_status(tmp_path)


def test_reading_changes_nothing_in_the_run_directory(tmp_path: Path) -> None:
    made = ended_run(tmp_path / "run")

    def snapshot() -> dict[str, int]:
        found = [Path(folder) / name for folder, _, names in os.walk(made.run.root) for name in names]
        return {str(path): path.stat().st_mtime_ns for path in found}

    before = snapshot()
    read_status(made.run.root)
    assert snapshot() == before
