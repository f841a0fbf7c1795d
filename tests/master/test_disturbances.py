"""What befalls a run besides being killed: full disks, damaged files, frozen processes, rivals, code that raises."""

import itertools
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.chaos import (
    Remains,
    begin,
    create_run,
    finish,
    outputs,
    patient_experiment,
    remains,
    rows_of,
    started_twice,
    toy_experiment,
    wait_until,
    waking,
)
from support.cluster import alive_of, children_of, is_alive, no_fault
from support.covering import covering
from support.faults import EventsLost, Ordering, Strike
from support.forged import flip as flip_bit
from support.made_parts import made_in
from support.mishaps import Rot

from hpcrl.durable.history import checkpoint_lines, read_history
from hpcrl.durable.journal import Checkpointed, Closed, Damaged, Opened, Pruned
from hpcrl.durable.records import Command
from hpcrl.durable.recovery import plan_next_attempt
from hpcrl.errors import ExitCode
from hpcrl.placement.plan import plan_for
from hpcrl.recipes.algorithm import experiment_from

FULL = [
    ("worker-0", "spill.write", 3),
    ("worker-1", "spill.write", 8),
    ("worker-0", "shard.write", 1),
    ("worker-1", "shard.write", 2),
    ("worker-0", "export.write", 1),
    ("master", "claim.write", 1),
    ("master", "plan.write", 1),
    ("master", "adopted.write", 1),
    ("master", "journal.before", 1),
    ("master", "journal.before", 7),
    ("master", "journal.before", 15),
    ("master", "metrics.before", 2),
    ("master", "manifest.write", 1),
    ("housekeeper-0", "compact.write", 2),
]


@pytest.mark.parametrize(("role", "point", "nth"), covering(FULL, lambda case: case[0].partition("-")[0]))
def test_a_full_disk_ends_the_run_naming_file_and_bytes_and_nothing_is_lost(
    folder: Path, undisturbed: Remains, role: str, point: str, nth: int
) -> None:
    run = create_run(folder / "run", patient_experiment())
    strike = Strike(folder, "full", role, point, "FULL", nth=nth)
    jobs = begin(run, "first", strike)
    assert jobs.wait_for("master", 90) == ExitCode.INTERNAL, outputs(run)
    jobs.kill_all()
    assert strike.marker.exists()
    said = outputs(run)
    assert "no room for" in said and "bytes" in said and str(run.root) in said
    finish(run)
    assert remains(run) == undisturbed
    assert started_twice(run) == []


def test_a_disk_that_is_full_when_an_attempt_closes_does_not_hide_why_it_ended(folder: Path) -> None:
    run = create_run(folder / "run", patient_experiment())
    jobs = begin(run, "first", Strike(folder, "full", "master", "closed.write", "FULL"))
    assert jobs.wait_for("master", 90) == ExitCode.DONE, outputs(run)
    jobs.kill_all()
    verdict = run.read_verdict(0)
    assert verdict is not None and verdict.state == "done"
    assert "attempt 0 was not closed" in outputs(run)


def flip(path: Path) -> None:
    """A bit in its middle; of a journal, in the line of a finished part there."""
    data = bytearray(path.read_bytes())
    at = len(data) // 2
    if path.name == "journal.jsonl":
        at = data.index(b'"type":"done"', at)
    data[at] ^= 0x10
    path.write_bytes(data)


def flip_closing(path: Path) -> None:
    """A bit in the line that closes the second step."""
    data = bytearray(path.read_bytes())
    data[data.index(b'"type":"closed","step":2')] ^= 0x10
    path.write_bytes(data)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def tear(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 3)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def remove(path: Path) -> None:
    path.unlink()


KINDS = {
    "spill": "spills/step-*/*.h5",
    "compacted": "spills/step-*.h5",
    "shard": "checkpoints/*/*.safetensors",
    "manifest": "checkpoints/*/MANIFEST.json",
    "journal": "attempts/*/journal.jsonl",
    "metrics": "attempts/*/metrics.jsonl",
    "events": "attempts/*/events.jsonl",
}


LINES = ("journal", "metrics", "events")
DAMAGED = covering(
    itertools.product(KINDS, [flip, truncate, tear, empty, remove]),
    lambda case: case[0],
    lambda case: (case[0] in LINES, case[1]),
)
"""Fast: each kind of file; each damage of lines and of others."""


@pytest.mark.parametrize(("kind", "damage"), DAMAGED)
def test_a_damaged_file_is_treated_as_absent(
    folder: Path, undisturbed: Remains, kind: str, damage: Callable[[Path], None]
) -> None:
    run = create_run(folder / "run", toy_experiment())
    # The first spills of a step are there before it closes; the second checkpoint is named before the first pruning.
    role, point, nth = ("worker-1", "spill.published", 9) if kind == "spill" else ("master", "prune.unlink", 1)
    jobs = begin(run, "first", Strike(folder, "kill", role, point, "KILL", "all", nth=nth))
    jobs.wait_for("master", 90)
    jobs.kill_all()
    victims = sorted(path for path in run.root.glob(KINDS[kind]) if path.is_file())
    assert victims, f"no {kind} to damage"
    damage(victims[-1])
    finish(run)
    after = remains(run, damaged=True)
    assert after == undisturbed, outputs(run)


def test_a_row_of_metrics_whose_line_is_damaged_is_not_lost(folder: Path, undisturbed: Remains) -> None:
    run = create_run(folder / "run", toy_experiment())
    jobs = begin(run, "first", Strike(folder, "kill", "master", "prune.unlink", "KILL", "all", nth=1))
    jobs.wait_for("master", 90)
    jobs.kill_all()
    flip_closing(run.journal(0))
    finish(run)
    assert remains(run, damaged=True) == undisturbed, outputs(run)
    begun = next(row for row in rows_of(run.events(run.newest_attempt())) if row["event"] == "attempt")
    assert "its row of step 2 is taken from metrics.jsonl" in begun["recovered"]


@pytest.mark.parametrize(("at", "found"), [(-1, " with digest "), (20, "is no shard any more: ")])
def test_a_checkpoint_that_is_another_than_was_saved_is_found_by_who_loads_it_and_not_tried_again(
    folder: Path, undisturbed: Remains, at: int, found: str
) -> None:
    """In its arrays, or in the header before them."""
    run = create_run(folder / "run", toy_experiment())
    jobs = begin(run, "first", Strike(folder, "kill", "master", "prune.unlink", "KILL", "all", nth=1))
    jobs.wait_for("master", 90)
    jobs.kill_all()
    changes = plan_for(experiment_from(run.configuration()), 1).changes
    newest = plan_next_attempt(run, changes).checkpoint  # there may be shards of one that is not whole yet
    assert newest is not None
    flip_bit(run.root / max(shard.name for shards in newest.roles.values() for shard in shards), at)
    before = plan_next_attempt(run, changes)
    assert not before.damage and before.checkpoint is not None, "nothing shows it before it is loaded"
    finish(run)
    assert remains(run, damaged=True) == undisturbed, outputs(run)
    [line] = [line.event for line in read_history(run).lines if isinstance(line.event, Damaged)]
    assert line.step == before.checkpoint.step
    assert found in line.what
    begun = [
        row["recovered"] for number in run.numbers() for row in rows_of(run.events(number)) if row["event"] == "attempt"
    ]
    assert [f"checkpoint of step {line.step}," in text for text in begun[1:3]] == [True, False]
    assert f"damaged: the checkpoint of step {line.step}: {line.what}" in begun[2]


def test_where_all_checkpoints_are_damaged_each_is_tried_once_and_the_run_begins_anew(
    folder: Path, undisturbed: Remains
) -> None:
    run = create_run(folder / "run", toy_experiment())
    jobs = begin(run, "first", Strike(folder, "kill", "master", "prune.unlink", "KILL", "all", nth=1))
    jobs.wait_for("master", 90)
    jobs.kill_all()
    named = [line.step for line in checkpoint_lines(read_history(run))]
    for shard in run.root.glob("checkpoints/*/actor.r001.safetensors"):
        flip_bit(shard)
    finish(run)
    assert remains(run, damaged=True) == undisturbed, outputs(run)
    assert [line.event.step for line in read_history(run).lines if isinstance(line.event, Damaged)] == named


def test_a_checkpoint_that_is_read_back_damaged_lets_nothing_go_that_is_older(
    folder: Path, undisturbed: Remains
) -> None:
    """That of step 4: both that are kept have to be whole before spills of steps before the older one go."""
    run = create_run(folder / "run", patient_experiment())
    jobs = begin(run, "first", Rot(folder, "rot", "worker-0", "verify.begin", "ROT", nth=2))
    assert jobs.wait_for("master", 90) == ExitCode.DONE, outputs(run)
    jobs.wait(60)
    lines = [line.event for line in read_history(run).lines]
    [damaged] = [event for event in lines if isinstance(event, Damaged)]
    assert damaged.step == 4 and "has CRC" in damaged.what
    pruned = [event.before_step for event in lines if isinstance(event, Pruned)]
    assert pruned == [2], "once that of step 5 was read back"
    [told] = [row for row in rows_of(run.events(0)) if row["event"] == "damaged"]
    assert (told["step"], told["what"]) == (4, damaged.what)
    assert remains(run, damaged=True) == undisturbed


@pytest.mark.slow
def test_two_resumes_at_once_do_no_harm(folder: Path, undisturbed: Remains) -> None:
    for race in range(3):
        run = create_run(folder / f"run{race}", toy_experiment())
        jobs = begin(run, "first", Strike(folder, f"kill{race}", "master", "journal.after", "KILL", "all", nth=9))
        jobs.wait_for("master", 90)
        rivals = [begin(run, name) for name in ("left", "right")]
        codes = [rival.wait(90)["master"] for rival in rivals]
        assert set(codes) <= {ExitCode.DONE, ExitCode.NEVER_REQUEUE}, outputs(run)
        finish(run)
        assert remains(run) == undisturbed
        jobs.kill_all()


@pytest.mark.parametrize(
    ("point", "nth", "alone"),
    [("journal.before", 9, False), ("journal.after", 14, False), ("journal.after", 14, True)],
)
def test_a_master_that_slept_while_another_finished_changes_nothing(
    folder: Path, undisturbed: Remains, point: str, nth: int, alone: bool
) -> None:
    """Also where the first that it notices is that its own agent has gone."""
    run = create_run(folder / "run", toy_experiment())
    strike = Strike(folder, "sleep", "master", point, "STOP", nth=nth)
    old = begin(run, "old", strike)
    wait_until(strike.marker.exists, 90, "the strike")
    finish(run, no_fault)
    if alone:
        old.wait_for("agent-0", 90)
    before = remains(run)
    os.kill(old.pid("master"), signal.SIGCONT)
    codes = old.wait(90)
    assert 999 not in codes.values(), codes
    assert codes["master"] == ExitCode.NEVER_REQUEUE, outputs(run)
    assert before == remains(run) == undisturbed
    assert alive_of(run.root) == []


def test_a_node_that_slept_while_the_run_went_on_elsewhere_changes_nothing(folder: Path, undisturbed: Remains) -> None:
    run = create_run(folder / "run", toy_experiment(delay_s=0.1))
    strike = Strike(folder, "sleep", "master", "journal.after", "STOP", "agent-0", nth=9)
    old = begin(run, "old", strike)
    assert old.wait_for("master", 90) == ExitCode.REQUEUE
    finish(run)
    os.kill(old.pid("agent-0"), signal.SIGCONT)
    assert 999 not in old.wait(90).values()
    assert remains(run) == undisturbed
    assert alive_of(run.root) == []


@pytest.mark.parametrize("who", ["agent-1", "master"])
def test_who_was_silent_for_a_while_is_in_the_next_attempt_of_the_same_jobs(
    folder: Path, undisturbed: Remains, who: str
) -> None:
    """Where nobody starts a lost node again: its agent is alive, and comes back."""
    here = {"nodes": 2, "workers_per_node": 1, "lost_after_s": 2.0, "orphan_timeout_s": 30.0, "start_timeout_s": 60.0}
    run = create_run(folder / "run", toy_experiment(delay_s=0.05, **here))
    strike = Strike(folder, "sleep", "master", "journal.after", "STOP", who if who != "master" else "self", nth=9)
    jobs = begin(run, "first", strike, nodes=2)
    with waking(run, lambda: [jobs.pid(who)] if strike.marker.exists() else []):
        assert jobs.wait(90) == {"master": 0, "agent-0": 0, "agent-1": 0}, outputs(run)
    assert len(run.numbers()) >= 2, "nobody was missed: the test tests nothing"
    assert remains(run) == undisturbed


def test_a_frozen_worker_is_replaced_within_the_job(folder: Path, undisturbed: Remains) -> None:
    run = create_run(folder / "run", toy_experiment())
    assert finish(run, Strike(folder, "freeze", "worker-1", "worker.call", "STOP", nth=9)) == [0], outputs(run)
    assert len(run.numbers()) >= 2
    assert remains(run) == undisturbed
    assert alive_of(run.root) == []


def test_a_killed_worker_is_noticed_long_before_it_is_missed_and_named(folder: Path) -> None:
    run = create_run(folder / "run", patient_experiment(heartbeat_s=1.0))
    strike = Strike(folder, "kill", "worker-1", "worker.executed", "KILL", nth=5)
    assert finish(run, strike) == [0]
    struck = strike.marker.stat().st_mtime
    [noticed] = [row for row in rows_of(run.events(0)) if row["event"] == "worker ended"]
    assert noticed["rank"] == 1 and noticed["how"] == "killed by SIGKILL" and noticed["log"].endswith("worker-1.err")
    assert noticed["time"] - struck < 30
    [ending] = [row for row in rows_of(run.events(0)) if row["event"] == "ending"]
    assert "worker-1" in ending["reason"] and "SIGKILL" in ending["reason"]


def test_a_killed_agent_is_noticed_by_its_silence(folder: Path) -> None:
    run = create_run(folder / "run", toy_experiment(lost_after_s=3.0, start_timeout_s=60.0, steps=500))
    strike = Strike(folder, "kill", "master", "journal.after", "KILL", "agent-0", nth=9)
    jobs = begin(run, "first", strike)
    assert jobs.wait_for("master", 90) == ExitCode.REQUEUE
    [ending] = [row for row in rows_of(run.events(0)) if row["event"] == "ending"]
    assert 2.0 < ending["time"] - strike.marker.stat().st_mtime < 30.0
    jobs.kill_all()


def test_code_that_raises_ends_the_run_and_the_first_failure_is_named(folder: Path) -> None:
    run = create_run(folder / "run", patient_experiment())
    jobs = begin(run, "first", Strike(folder, "raise", "worker-1", "worker.call", "RAISE", nth=6))
    codes = jobs.wait(90)
    assert codes == {"master": ExitCode.USER_CODE, "agent-0": ExitCode.USER_CODE}, outputs(run)
    verdict = run.read_verdict(0)
    assert verdict is not None
    assert verdict.state == "failed" and verdict.worker == "worker-1"
    assert verdict.call is not None and verdict.call.startswith("step ")
    assert "logs/worker-1.jsonl" in verdict.reason
    assert verdict.traceback is None and "divided by zero" in verdict.reason
    assert alive_of(run.root) == []


def test_code_that_exits_has_failed_and_its_worker_begins_no_other_call(folder: Path) -> None:
    run = create_run(folder / "run", patient_experiment())
    jobs = begin(run, "first", Strike(folder, "exit", "worker-1", "worker.call", "EXIT", nth=6))
    assert jobs.wait(90)["master"] == ExitCode.INTERNAL, outputs(run)
    verdict = run.read_verdict(0)
    assert verdict is not None and (verdict.state, verdict.worker) == ("failed", "worker-1")
    assert "SystemExit: the user's code wants to end the process" in verdict.reason
    assert run.numbers() == [0]
    [*_, last] = rows_of(run.worker_log(0, "worker-1"))
    assert last["event"] == "failed"


@pytest.mark.parametrize("worker", ["worker-0", "worker-1"])
def test_a_worker_that_cannot_make_its_host_ends_the_run_and_is_named_with_its_traceback(
    folder: Path, worker: str
) -> None:
    run = create_run(folder / "run", patient_experiment())
    codes = begin(run, "first", Strike(folder, "broken", worker, "worker.start", "FULL")).wait(90)
    assert codes == {"master": ExitCode.INTERNAL, "agent-0": ExitCode.INTERNAL}, outputs(run)
    verdict = run.read_verdict(0)
    assert verdict is not None
    assert (verdict.state, verdict.worker, verdict.call) == ("failed", worker, "starting"), outputs(run)
    assert verdict.traceback is not None and "OSError" in verdict.traceback
    assert run.numbers() == [0]
    assert alive_of(run.root) == []


def test_three_attempts_without_progress_are_the_last(folder: Path) -> None:
    run = create_run(folder / "run", patient_experiment())
    strike = Strike(folder, "kill", "worker-*", "worker.call", "KILL", always=True)
    codes = begin(run, "first", strike).wait(90)
    assert codes["master"] == ExitCode.NEVER_REQUEUE, outputs(run)
    verdict = run.read_verdict(2)
    assert verdict is not None and "3 attempts in a row finished no call" in verdict.reason
    assert run.numbers() == [0, 1, 2]


@pytest.mark.parametrize("command", ["drain", "stop"])
def test_a_run_that_is_asked_to_stop_is_not_requeued_and_goes_on_when_resumed(
    folder: Path, undisturbed: Remains, command: str
) -> None:
    run = create_run(folder / "run", patient_experiment())
    strike = Strike(folder, "order", "master", "journal.after", "ORDER", nth=2)
    jobs = begin(run, "first", Ordering(run, strike, Command(command, "first")))  # type: ignore[arg-type]
    assert jobs.wait_for("master", 90) == ExitCode.NEVER_REQUEUE, outputs(run)
    verdict = run.read_verdict(0)
    assert verdict is not None and verdict.state == "stopped"
    # An agent that meets its master no more does not wait for it until that is lost.
    assert jobs.wait(40) == {"master": ExitCode.NEVER_REQUEUE, "agent-0": ExitCode.NEVER_REQUEUE}
    finish(run)
    assert remains(run) == undisturbed


def test_a_run_that_is_asked_to_finish_opens_no_step_closes_the_open_ones_and_saves_the_last(
    folder: Path, undisturbed: Remains
) -> None:
    run = create_run(folder / "run", patient_experiment(delay_s=0.1))
    strike = Strike(folder, "order", "master", "journal.after", "ORDER", nth=6)
    jobs = begin(run, "first", Ordering(run, strike, Command("finish", "first")))  # type: ignore[arg-type]
    assert jobs.wait_for("master", 60) == ExitCode.NEVER_REQUEUE, outputs(run)
    jobs.wait(60)
    verdict = run.read_verdict(0)
    assert verdict is not None and (verdict.state, verdict.reason) == ("stopped", "asked to by `hpcrl stop` or Ctrl-C")
    lines = [line.event for line in read_history(run).lines]
    opened = [line.step for line in lines if isinstance(line, Opened)]
    assert opened == [line.step for line in lines if isinstance(line, Closed)]
    assert max(opened) < 5, "it came too late to be seen"
    assert [line.step for line in lines if isinstance(line, Checkpointed)][-1] == max(opened)
    finish(run)
    assert made_in(run, 1) and not any(it.span.replay for it in made_in(run, 1))
    assert remains(run) == undisturbed


def test_a_run_that_is_asked_to_finish_during_its_last_step_is_done(folder: Path) -> None:
    run = create_run(folder / "run", patient_experiment(steps=1))
    strike = Strike(folder, "order", "master", "journal.after", "ORDER", nth=4)
    jobs = begin(run, "first", Ordering(run, strike, Command("finish", "first")))  # type: ignore[arg-type]
    assert jobs.wait_for("master", 60) == ExitCode.DONE, outputs(run)
    assert strike.marker.exists() and len(run.numbers()) == 1
    verdict = run.read_verdict(0)
    assert verdict is not None and verdict.reason == "step 1 was the last"


def test_a_paused_run_sends_nothing_until_it_is_told_to_continue(folder: Path, undisturbed: Remains) -> None:
    run = create_run(folder / "run", patient_experiment())
    run.publish_command(Command("pause", "first"))
    jobs = begin(run, "first")
    wait_until(lambda: any(row["event"] == "ready" for row in rows_of(run.events(0))), 90, "ready")
    time.sleep(0.5)
    run.publish_command(Command("continue", "first"))
    assert jobs.wait_for("master", 90) == 0
    first, *rows = rows_of(run.events(0))
    (went_on,) = [row["mono"] - first["mono"] for row in rows if row.get("command") == "continue"]
    assert min(it.span.sent_s for it in made_in(run)) > went_on - 0.01
    assert remains(run) == undisturbed


def test_a_run_whose_events_find_no_room_is_paused_continued_and_ends_the_same(
    folder: Path, undisturbed: Remains
) -> None:
    run = create_run(folder / "run", patient_experiment())
    pause = run.publish_command(Command("pause", "first"))
    jobs = begin(run, "first", EventsLost(run.root))
    wait_until(lambda: run.read_answer(pause) is not None, 90, "an answer")
    run.publish_command(Command("continue", "first"))
    assert jobs.wait_for("master", 90) == 0, outputs(run)
    assert remains(run) == undisturbed


@pytest.mark.parametrize("target", ["self", "agent-0"])
def test_a_run_that_gets_sigterm_finishes_its_calls_and_asks_to_be_requeued(
    folder: Path, undisturbed: Remains, target: str
) -> None:
    run = create_run(folder / "run", patient_experiment(delay_s=0.02))
    jobs = begin(run, "first", Strike(folder, "term", "master", "journal.after", "TERM", target, nth=6))
    codes = jobs.wait(90)
    agents = ExitCode.PREEMPTED if target == "agent-0" else ExitCode.REQUEUE
    assert codes == {"master": ExitCode.REQUEUE, "agent-0": agents}, outputs(run)
    verdict = run.read_verdict(0)
    assert verdict is not None and verdict.state == "preempted" and "SIGTERM" in verdict.reason
    assert alive_of(run.root) == []
    finish(run)
    assert remains(run) == undisturbed
    assert started_twice(run) == []


@pytest.mark.parametrize("victim", ["agent", "parent of the workers"])
def test_killing_what_holds_the_workers_leaves_none_of_them_behind(
    folder: Path, undisturbed: Remains, victim: str
) -> None:
    run = create_run(folder / "run", toy_experiment(delay_s=0.3))
    jobs = begin(run, "first")
    wait_until(lambda: any(row["event"] == "closed" for row in rows_of(run.events(0))), 90, "the first step")
    [zygote] = children_of(jobs.pid("agent-0"))
    workers = children_of(zygote)
    assert len(workers) in (2, 3), "two workers, and a housekeeper while it has something to do"
    os.kill(jobs.pid("agent-0") if victim == "agent" else zygote, signal.SIGKILL)
    assert jobs.wait_for("master", 90) == ExitCode.REQUEUE, outputs(run)
    jobs.wait(90)
    assert not [pid for pid in (zygote, *workers) if is_alive(pid)]
    finish(run)
    assert remains(run) == undisturbed
