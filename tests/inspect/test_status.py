import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from rich.console import Console
from support.made_run import BEGAN, MadeRun, ended_run, ppo_row
from support.slurm_made import made_on_slurm, reclaim, seen

from hpcrl.config.changes import with_settings
from hpcrl.errors import ConfigurationError
from hpcrl.events import AgentConnected, CallFailed, CommandHeard, DrainBegun, NodesMissing, RowsLeftOut, WorkersReady
from hpcrl.inspect.listing import list_runs
from hpcrl.inspect.nodes import lines_of, nodes_now
from hpcrl.inspect.queue import Queue
from hpcrl.inspect.reader import RunReader
from hpcrl.inspect.status_text import status_text
from hpcrl.inspect.terminal import show
from hpcrl.inspect.views.status import is_over, read_status
from hpcrl.inspect.views.summary import summary
from hpcrl.launch.queues import LauncherQueues


def test_a_run_that_nobody_has_begun_is_submitted(tmp_path: Path) -> None:
    status = read_status(MadeRun(tmp_path / "run").run.root)
    assert (status.state, status.attempt, status.step) == ("submitted", None, 0)


def test_a_living_master_is_running_with_what_each_worker_does(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "run")
    made.begin(ready=False)
    assert read_status(made.run.root).state == "starting"
    made.write(WorkersReady(2))
    made.steps(0, 3)
    made.send(4, "actor_gen", 1, [1])
    status = read_status(made.run.root)
    assert (status.state, status.attempt, status.step, status.steps) == ("running", 0, 3, 60)
    assert [worker.doing for worker in status.workers] == ["idle", "actor_gen, step 4"]
    assert status.metrics["eval_rew/accuracy"] == 0.4
    made.write(CommandHeard("pause", "x"))
    assert read_status(made.run.root).state == "paused"
    made.write(DrainBegun([]))
    assert read_status(made.run.root).state == "draining"


def test_a_run_that_was_resumed_has_the_length_of_its_newest_settings_before_its_new_master_begins(
    tmp_path: Path,
) -> None:
    made = MadeRun(tmp_path / "run")
    made.run.record_submission("submission", {"group": 1})
    made.begin()
    made.steps(0, 60)
    made.verdict("done", 0, "60 steps")
    assert (read_status(made.run.root).state, read_status(made.run.root).steps) == ("done", 60)
    extend(made, {"control.steps": 90})
    status = read_status(made.run.root)
    assert (status.state, status.step, status.steps, status.exit_code) == ("submitted", 60, 90, None)
    out = Console(file=io.StringIO(), width=200)
    show(summary(RunReader(made.run)), out)
    assert "60 of 90" in cast(io.StringIO, out.file).getvalue()
    (line,) = list_runs([made.run.root], LauncherQueues())
    assert (line.state, line.steps) == ("submitted", 90)


def test_more_epochs_have_no_length_until_a_master_has_counted_them(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "run", steps=None)
    extend(made, {"control.epochs": 2}, "submission")
    made.begin(steps=50)
    assert read_status(made.run.root).steps == 50
    extend(made, {"control.epochs": 4})
    assert read_status(made.run.root).steps is None
    made.begin(steps=100, submission="longer")
    assert read_status(made.run.root).steps == 100


def extend(made: MadeRun, settings: dict[str, Any], nonce: str = "longer") -> None:
    """As `resume` does, up to the begin of its master."""
    run = made.run
    run.submit_settings(nonce, run.add_settings(with_settings(run.read_run().experiment, settings)))
    run.record_submission(nonce, {"group": 1})


def test_lines_that_cannot_be_read_are_skipped_and_counted(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "run")
    made.begin()
    made.steps(0, 2)
    before = read_status(made.run.root)
    assert before.skipped.events == 0 and "skipped" not in status_text(before)
    with open(made.run.events(0), "ab") as file:
        file.write(b'{"time":1.0,"event":"brand new"}\n{"time":2.0,"event":"sent","step":1}\n\xff\n{"time":3.0')
    status = read_status(made.run.root)
    assert status.skipped.events == 3
    assert "skipped  3 event lines that are damaged, or of another hpcrl" in status_text(status)
    assert (status.state, status.step, status.workers) == (before.state, before.step, before.workers)


def test_rows_that_are_left_out_are_counted_before_and_after_a_new_attempt_has_counted_them(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "run")
    made.begin(ready=False)
    assert read_status(made.run.root).skipped.rows == {}
    made.write(RowsLeftOut("3 of 20 rows …", "train", 3, 20))
    made.write(RowsLeftOut("1 of 4 rows …", "eval", 1, 4))
    made.begin(submission="again")
    status = read_status(made.run.root)
    assert msgspec.to_builtins(status)["skipped"]["rows"] == {
        "train": {"rows": 3, "of": 20},
        "eval": {"rows": 1, "of": 4},
    }
    assert "left out 3 of 20 rows to train on, which are too long\nleft out 1 of 4 rows to eval" in status_text(status)
    made.write(RowsLeftOut("5 of 20 rows …", "train", 5, 20))
    assert read_status(made.run.root).skipped.rows["train"].rows == 5


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
    made.write(CallFailed(1, "step 1 rew_inf, part 0", "boom", "Traceback\n"))
    made.verdict(state, code, "the reason")
    status = read_status(made.run.root)
    assert (status.state, status.exit_code, status.why) == (state, code, "the reason")
    assert hint in status.hint
    assert (status.cause is not None) == (state == "failed")
    if status.cause is not None:
        assert "user's code (certain): worker-1 in step 1 rew_inf, part 0\n" in status_text(status)


@pytest.mark.parametrize("code", [66, 70])
def test_an_error_is_told_once_without_the_lines_of_hpcrl_and_where_it_stands(tmp_path: Path, code: int) -> None:
    made = MadeRun(tmp_path / str(code))
    made.begin()
    made.write(CallFailed(1, "step 1 rew_inf, part 0", "KeyError: 'label'", "Traceback\n  deep\n"), process="worker-1")
    made.verdict("failed", code, "worker-1, step 1 rew_inf, part 0: KeyError: 'label'")
    text = status_text(read_status(made.run.root))
    assert text.count("KeyError") == 1 and "Traceback" not in text
    assert "evidence attempts/000/logs/worker-1.jsonl:1  failed" in text


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


def test_a_run_that_was_resumed_is_not_over_before_the_resumed_one_is(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "run")
    made.begin()
    made.verdict("stopped", 0, "asked to")
    assert is_over(made.run)
    made.run.record_submission("resumed", {"master": 1})
    assert not is_over(made.run)


def test_what_is_rendered_is_short_and_complete(tmp_path: Path) -> None:
    made = ended_run(tmp_path / "run")
    text = status_text(read_status(made.run.root))
    assert "state    done, attempt 1, exit code 0" in text
    assert "progress step 60 of 60" in text
    assert "reward: 0.870, held-out share with reward ≥ 1: 0.875, KL: 0.0190" in text
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


def test_a_master_on_another_host_with_fresh_events_runs(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "run")
    made.time = time.time() - 30
    made.begin()
    reclaim(made, host="elsewhere")
    status = read_status(made.run.root)
    assert status.state == "running"
    assert "elsewhere" in status.why


def test_a_slow_step_is_no_silence(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "run")
    made.time = time.time() - 5000
    made.begin()
    for step, end in ((0, 4000), (1, 2500), (2, 1000)):
        made.time = time.time() - end
        made.close(step, ppo_row(step))
    reclaim(made, host="elsewhere")
    assert read_status(made.run.root).state == "running"


WORKERS = tuple(seen("workers", "running", element=number) for number in range(3))
WAITING = seen("workers", "pending", element=3, reason="Resources")


def test_the_queue_is_told_in_a_sentence() -> None:
    queue = Queue((seen("master", "running"), *WORKERS, WAITING))
    assert queue.describe() == "master 123 running on n1; workers 124: 3 running, 1 pending (Resources)"
    assert Queue((seen("master", "ended", word="cancelled"),)).describe() == "master 123 ended (cancelled)"
    assert Queue(missing="there is no squeue in PATH").describe() == "cannot be asked here: there is no squeue in PATH"
    assert Queue().describe() == "knows none of its jobs any more"


@pytest.mark.parametrize(
    ("master", "verdict", "state", "why"),
    [
        ("running", None, "running", "last event"),
        ("pending", None, "waiting for Slurm", "master's job 123 pending (BeginTime)"),
        ("pending", ("preempted", 75), "waiting for Slurm", "the last attempt was preempted: the reason"),
        ("requeued", ("preempted", 75), "waiting for Slurm", "requeued"),
        ("held", ("preempted", 75), "waiting for Slurm", "held"),
        ("suspended", None, "waiting for Slurm", "suspended"),
        ("ending", ("preempted", 75), "starting", "ending"),
        ("running", ("preempted", 75), "starting", "has not begun an attempt"),
        ("ended", ("preempted", 75), "preempted", "the reason"),
        ("ended", None, "killed", "left no verdict"),
        ("running", ("done", 0), "done", "the reason"),
        ("ended", ("failed", 66), "failed", "the reason"),
        (None, None, "killed", "Slurm knows its master's job no more"),
    ],
)
def test_a_run_on_slurm_is_judged_by_its_verdict_and_its_masters_job(
    tmp_path: Path, master: Any, verdict: tuple[str, int] | None, state: str, why: str
) -> None:
    made = made_on_slurm(tmp_path / "run")
    made.begin()
    if verdict is not None:
        made.verdict(*verdict, "the reason")
    jobs = [] if master is None else [seen("master", master, reason="BeginTime" if master == "pending" else "")]
    status = read_status(made.run.root, Queue((*jobs, *WORKERS)))
    assert status.state == state
    assert why in status.why
    assert bool(status.workers) == (state == "running")


def test_an_older_submissions_verdict_says_nothing_of_a_resumed_run(tmp_path: Path) -> None:
    made = made_on_slurm(tmp_path / "run")
    made.begin()
    made.verdict("stopped", 93, "asked to")
    assert read_status(made.run.root, Queue()).state == "stopped"
    made.run.record_submission("resumed", {"master": "130", "workers": "131"})
    assert read_status(made.run.root, Queue((seen("master", "pending"),))).state == "waiting for Slurm"
    assert read_status(made.run.root, Queue(sent_s_ago=1.0)).state == "submitted"
    assert read_status(made.run.root, Queue(missing="x")).state == "submitted"


def test_without_squeue_only_the_directory_speaks(tmp_path: Path) -> None:
    made = made_on_slurm(tmp_path / "run")
    made.time = time.time() - 10
    unasked = Queue(missing="there is no squeue in PATH")
    assert read_status(made.run.root, unasked).state == "submitted"
    made.begin()
    reclaim(made, host="elsewhere")
    assert read_status(made.run.root, unasked).state == "running"
    made.verdict("preempted", 75, "node 1 is to go")
    status = read_status(made.run.root, unasked)
    assert status.state == "preempted" and "cannot be seen here: there is no squeue" in status.why
    assert "ask on a login node" in status.hint and status.hint.endswith(f"hpcrl resume {made.run.root}")


@pytest.mark.parametrize(
    ("state", "code", "others"), [("done", 0, ()), ("queued", 75, ("node 2 has not come: pending",))]
)
def test_nodes_that_have_not_come_are_told_of_while_somebody_waits_for_them(
    tmp_path: Path, state: str, code: int, others: tuple[str, ...]
) -> None:
    made = MadeRun(tmp_path / "run")
    made.begin()
    made.write(NodesMissing({2: "pending"}))
    waiting = nodes_now(RunReader(made.run), "1-3")
    assert waiting is not None and waiting.others == ("node 2 has not come: pending",)
    made.verdict(state, code, "x")
    over = nodes_now(RunReader(made.run), "1-3")
    assert over is not None and over.others == others
    own = "on 2 of 1-3 nodes" if state == "done" else "1-3 are asked for; the newest attempt had 2"
    assert next(lines_of(msgspec.structs.replace(over, nodes=2))) == f"nodes    {own}"


def test_a_run_that_waits_for_a_node_says_for_which_and_until_when(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "run")
    made.begin(ready=False)
    made.write(NodesMissing({0: "job 7_0 is running", 1: "job 7_1 is pending (Priority)"}, until=BEGAN + 900))
    made.write(AgentConnected(0, "host", 7, True))
    waiting = nodes_now(RunReader(made.run), 2)
    assert waiting is not None and [*lines_of(waiting)] == [
        f"nodes    2 are asked for; those that are missing are waited for until {at(BEGAN + 900)} UTC",
        "         node 1 has not come: job 7_1 is pending (Priority)",
    ]
    made.write(AgentConnected(1, "host", 8, True))
    assert nodes_now(RunReader(made.run), 2) is None, "it waits for nobody any more"
    made.write(NodesMissing({1: "job 7_1 is pending"}))
    assert nodes_now(RunReader(made.run), 2) is None, "it does without it"


def at(time_s: float) -> str:
    return time.strftime("%H:%M:%S", time.gmtime(time_s))
