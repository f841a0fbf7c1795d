from pathlib import Path

from support.made_run import MadeRun

from hpcrl.events import CallFailed, WorkerEnded
from hpcrl.inspect.failure import first_failure


def test_the_first_by_time_is_named_with_call_traceback_and_log(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "run")
    made.begin()
    made.write(CallFailed(1, "step 3 actor_gen, part 1", "ValueError('bad')"), process="worker-1")
    made.write(CallFailed(1, "step 3 actor_gen, part 1", "bad", "Traceback\n  deep\n"))
    made.write(CallFailed(0, "step 3 actor_train, part 0", "peer is gone", "Traceback\n"))
    made.write(WorkerEnded(0, 0, "exit code 1", "attempts/000/logs/worker-0.err"))
    failure = first_failure(made.run)
    assert failure is not None
    assert (failure.process, failure.call) == ("worker-1", "step 3 actor_gen, part 1")
    assert failure.traceback == "Traceback\n  deep\n"
    assert failure.log == str(made.run.root / "attempts/000/logs/worker-1.err")
    text = failure.render()
    assert text.startswith("worker-1 in step 3 actor_gen, part 1: bad\nTraceback\n  deep\nlog: ")


def test_what_a_worker_wrote_down_is_found_without_its_master(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "run")
    made.begin()
    made.write(CallFailed(1, "starting", "OSError('full')"), process="worker-1")
    failure = first_failure(made.run)
    assert failure is not None
    assert (failure.process, failure.error) == ("worker-1", "OSError('full')")


def test_an_agent_that_saw_a_death_before_the_master_comes_first(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "run")
    made.begin()
    made.write(WorkerEnded(1, 0, "killed by SIGKILL"), process="agent-0")
    made.write(CallFailed(0, "step 1 actor_train, part 0", "connection reset", ""))
    failure = first_failure(made.run)
    assert failure is not None
    assert (failure.process, failure.error) == ("worker-1", "killed by SIGKILL")


def test_of_several_attempts_the_newest_that_failed_counts_unless_one_is_named(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "run")
    for error in ("first", "second"):
        made.begin()
        made.write(CallFailed(0, "x", error, ""))
    made.begin()
    newest, named = first_failure(made.run), first_failure(made.run, 0)
    assert newest is not None
    assert named is not None
    assert (newest.error, named.error) == ("second", "first")
    assert first_failure(made.run, 2) is None


def test_a_run_without_a_failure_has_none(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "run")
    assert first_failure(made.run) is None


def test_what_tells_of_a_peer_counts_only_where_nobody_tells_of_itself(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "run")
    made.begin()
    made.write(CallFailed(0, "step 1 actor_train, part 0", "connection reset", "", of_peer=True))
    made.write(WorkerEnded(0, 0, "killed by SIGKILL"), process="agent-0")
    failure = first_failure(made.run)
    assert failure is not None and failure.error == "connection reset"
    made.write(WorkerEnded(1, 0, "exit code 1", "attempts/000/logs/worker-1.err"))
    failure = first_failure(made.run)
    assert failure is not None and (failure.process, failure.error) == ("worker-1", "exit code 1")
