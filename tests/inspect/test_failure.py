from pathlib import Path

from support.made_run import MadeRun

from hpcrl.inspect.failure import first_failure


def test_the_first_by_time_is_named_with_call_traceback_and_log(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "run")
    made.begin()
    made.worker_event("worker-1", "failed", what="step 3 actor_gen, part 1", error="ValueError('bad')")
    made.event("failed", rank=1, what="step 3 actor_gen, part 1", error="bad", traceback="Traceback\n  deep\n")
    made.event("failed", rank=0, what="step 3 actor_train, part 0", error="peer is gone", traceback="Traceback\n")
    made.event("worker ended", rank=0, how="exit code 1", log="attempts/000/logs/worker-0.err")
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
    made.worker_event("worker-1", "failed", what="starting", error="OSError('full')")
    failure = first_failure(made.run)
    assert failure is not None
    assert (failure.process, failure.error) == ("worker-1", "OSError('full')")


def test_an_agent_that_saw_a_death_before_the_master_comes_first(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "run")
    made.begin()
    made.worker_event("agent-0", "worker ended", rank=1, attempt=0, how="killed by SIGKILL")
    made.event("failed", rank=0, what="step 1 actor_train, part 0", error="connection reset", traceback="")
    failure = first_failure(made.run)
    assert failure is not None
    assert (failure.process, failure.error) == ("worker-1", "killed by SIGKILL")


def test_of_several_attempts_the_newest_that_failed_counts_unless_one_is_named(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "run")
    for error in ("first", "second"):
        made.begin()
        made.event("failed", rank=0, what="x", error=error, traceback="")
    made.begin()
    newest, named = first_failure(made.run), first_failure(made.run, 0)
    assert newest is not None
    assert named is not None
    assert (newest.error, named.error) == ("second", "first")
    assert first_failure(made.run, 2) is None


def test_a_run_without_a_failure_has_none(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "run")
    assert first_failure(made.run) is None
