"""Nodes whose clocks are an hour off: what happened is told in the order in which it did, as far as that is known."""

import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.chaos import begin, create_run, outputs, rows_of, toy_experiment, wait_until
from support.faults import Strike, Strikes
from support.made_run import BEGAN, MadeRun
from support.shifted import AfterSetting, ShiftedNode
from support.slurm_made import made_on_slurm

from hpcrl.durable.rundir import RunDirectory
from hpcrl.event_log import Entry, encode
from hpcrl.events import AttemptEnded, CallFailed, Event
from hpcrl.inspect.clocks import read_clocks
from hpcrl.inspect.log_lines import LogLine
from hpcrl.inspect.logs import LogFilter, Logs, merged, shown_together
from hpcrl.inspect.reader import RunReader
from hpcrl.inspect.views.timeline import timeline
from hpcrl.inspect.views.why import cause_of
from hpcrl.launch.slurm.requeue import Cause as JobCause
from hpcrl.launch.slurm.requeue import Ended
from hpcrl.member_events import ClockMeasured, MasterConnected, MasterLost, RolesLoaded, WorkersForked

HOUR_S = 3600.0


class Node:
    """Writes lines of a made run by clocks of its own."""

    def __init__(self, made: MadeRun, node: int, ranks: tuple[int, ...], ahead_s: float) -> None:
        self.made = made
        self.name = f"agent-{node}"
        self.ahead_s = ahead_s
        self.booted_s = 1000.0 * (node + 1)
        self.write(MasterConnected("tcp://x"))
        self.write(ClockMeasured(self.booted_s, 0.005, ahead_s))
        self.write(WorkersForked(made.attempt, ranks, [], []))

    def write(self, event: Event, process: str = "", after_s: float = 0.01) -> float:
        """When it did, by the master's clock."""
        self.made.time += after_s
        at = self.made.time
        entry = Entry(at + self.ahead_s, event, at - BEGAN + self.booted_s)
        path = self.made.run.worker_log(self.made.attempt, process or self.name)
        with open(path, "ab") as file:
            file.write(encode(entry))
        return at


@pytest.fixture
def made(tmp_path: Path) -> MadeRun:
    made = MadeRun(tmp_path / "run")
    made.begin()
    return made


@pytest.mark.parametrize("ahead_s", [HOUR_S, -HOUR_S])
def test_logs_have_the_masters_time_and_each_file_keeps_its_order(made: MadeRun, ahead_s: float) -> None:
    near, far = Node(made, 0, (0,), 0.0), Node(made, 1, (1,), ahead_s)
    at = [far.write(RolesLoaded({}, 1.0), "worker-1"), near.write(RolesLoaded({}, 1.0), "worker-0")]
    far.ahead_s = -ahead_s  # it is set
    at.append(far.write(CallFailed(1, "step 1 actor_gen", "boom", "Traceback\n  x"), "worker-1"))
    made.write(AttemptEnded("failed", "boom"))
    lines = list(merged(made.run))
    assert [(line.process, line.text.split()[0]) for line in lines[-4:]] == [
        ("worker-1", "loaded"),
        ("worker-0", "loaded"),
        ("worker-1", "failed"),
        ("master", "ending"),
    ]
    assert [line.time for line in lines[-4:-1]] == pytest.approx(at, abs=1e-4)
    assert [line[-30:] for line in b"".join(shown_together(made.run)).splitlines()] == [
        line[-30:] for line in "\n".join(map(str, lines)).encode().splitlines()
    ]
    window = LogFilter(since=at[1] - 0.001, until=at[2] + 0.001)
    assert [line.process for line in merged(made.run, window)] == ["worker-0", "worker-1"]
    flat = LogFilter(frozenset({"worker-1"}), step=1)  # in the other way of reading lines
    assert [line.time for line in merged(made.run, flat)] == pytest.approx(at[2:], abs=1e-4)


def test_who_follows_has_the_masters_time_once_it_is_known(made: MadeRun) -> None:
    logs = Logs(made.run, LogFilter(frozenset({"agent-1"})))
    before = len(list(logs.read()))
    far = Node(made, 1, (1,), HOUR_S)
    at = far.write(MasterLost(3.0))
    lines = list(logs.read())
    assert before == 0 and lines[-1].time == pytest.approx(at, abs=1e-4)


def test_a_clock_that_drifts_is_corrected_by_what_counted_then(made: MadeRun) -> None:
    node = Node(made, 1, (1,), 0.0)
    first = node.write(RolesLoaded({}, 1.0), "worker-1")
    node.booted_s += 0.5
    node.write(ClockMeasured(node.booted_s, 0.005, 0.0))
    second = node.write(RolesLoaded({}, 2.0), "worker-1")
    lines = merged(made.run, LogFilter(frozenset({"worker-1"})))
    assert [line.time for line in lines] == pytest.approx([first, second], abs=1e-4)


def test_a_node_that_was_started_again_has_the_newer_clock(made: MadeRun) -> None:
    Node(made, 1, (1,), 0.0).booted_s = 0.0
    again = Node(made, 1, (1,), 0.0)
    again.booted_s -= 1500.0
    again.write(ClockMeasured(again.booted_s, 0.005, 0.0))
    at = again.write(RolesLoaded({}, 1.0), "worker-1")
    lines = merged(made.run, LogFilter(frozenset({"worker-1"})))
    assert [line.time for line in lines] == pytest.approx([at], abs=1e-4)
    assert "agent-1" not in read_clocks(made.run, 0).of, "its lines are of two hosts"


def test_a_run_in_which_nobody_measured_keeps_the_times_of_its_lines(made: MadeRun) -> None:
    made.write(RolesLoaded({}, 1.0), process="worker-1")
    made.run.worker_log(0, "agent-1").write_bytes(b'{"time":1.0,"event":"clock","offset_s":"x"}\n\xff\n')
    assert read_clocks(made.run, 0).of == {}
    assert [line.time for line in merged(made.run, LogFilter(frozenset({"worker-1"})))] == [made.time]


# ── why ───────────────────────────────────────────────────────────────────────────────────────────────────────────────
def reclaim(made: MadeRun, **fields: Any) -> None:
    claim = made.run.read_claim(made.attempt)
    assert claim is not None
    path = made.run.claim(made.attempt)
    path.chmod(0o600)
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(claim, **fields)))


def killed_master(made: MadeRun) -> None:
    reclaim(made, pid_started=1)


@pytest.mark.parametrize("ahead_s", [HOUR_S, -HOUR_S])
def test_of_a_master_that_left_no_word_the_first_to_raise_began_it(made: MadeRun, ahead_s: float) -> None:
    near, far = Node(made, 0, (0,), 0.0), Node(made, 1, (1,), ahead_s)
    at = far.write(CallFailed(1, "step 3", "OSError: full", nature="disk"), "worker-1")
    near.write(CallFailed(0, "step 3", "KeyError: 3", exit_code=1), "worker-0", after_s=0.5)
    near.write(MasterLost(3.0), after_s=5.0)
    far.write(CallFailed(1, "step 4", "late"), "worker-1")
    killed_master(made)
    cause = cause_of(made.run, 0)
    assert cause is not None
    assert (cause.who, cause.verdict, cause.said) == ("worker-1", "disk", "OSError: full")
    assert cause.time == pytest.approx(at, abs=1e-3)


@pytest.mark.parametrize("first", [0, 1])
def test_what_lies_within_the_clocks_error_is_not_put_into_an_order(made: MadeRun, first: int) -> None:
    nodes = Node(made, 0, (0,), 0.0), Node(made, 1, (1,), HOUR_S)
    for rank in (first, 1 - first):
        nodes[rank].write(CallFailed(rank, "step 3", "KeyError: 3"), f"worker-{rank}", after_s=0.004)
    killed_master(made)
    cause = cause_of(made.run, 0)
    assert cause is not None and cause.confidence == "likely"
    other = f"worker-{1 - first}"
    assert cause.said.splitlines()[1:] == [
        f"Which was first is not known: {other} raised an error of its own within the clocks' error, 10 ms."
    ]


def test_an_error_of_a_peer_is_no_beginning_however_early_it_seems(made: MadeRun) -> None:
    nodes = Node(made, 0, (0,), 0.0), Node(made, 1, (1,), 0.0)
    nodes[0].write(CallFailed(0, "step 3", "worker-1 is lost", of_peer=True), "worker-0", after_s=0.001)
    nodes[1].write(CallFailed(1, "step 3", "KeyError: 3"), "worker-1", after_s=0.001)
    killed_master(made)
    cause = cause_of(made.run, 0)
    assert cause is not None and (cause.who, cause.said) == ("worker-1", "KeyError: 3")


def test_of_a_node_that_nobody_compared_it_says_so(made: MadeRun) -> None:
    Node(made, 0, (0,), 0.0).write(CallFailed(0, "step 3", "KeyError: 0"), "worker-0")
    made.write(CallFailed(1, "step 3", "KeyError: 1"), process="worker-1", after_s=30)
    killed_master(made)
    cause = cause_of(made.run, 0)
    assert cause is not None and cause.who == "worker-0"
    assert cause.said.endswith(
        "worker-1 raised an error of its own, and nobody has compared the clocks of these nodes."
    )


@pytest.mark.parametrize("ahead_s", [HOUR_S, -HOUR_S])
def test_the_job_of_a_node_ended_when_the_masters_clock_says_so(tmp_path: Path, ahead_s: float) -> None:
    made = made_on_slurm(tmp_path / "run")
    made.begin()
    Node(made, 1, (1,), ahead_s)
    reclaim(made, time=BEGAN)
    made.write(AttemptEnded("lost", "node 1 is to go: got SIGTERM", 75, asked=True))
    ended = Ended(JobCause.NODE_FAILURE, 75, made.time + 0.01 + ahead_s)
    made.begin()
    reclaim(made, time=made.time)
    exits = made.run.submitit_folder("submission") / "exits"
    exits.mkdir(parents=True)
    (exits / "workers-1.125.0.json").write_bytes(msgspec.json.encode(ended))
    cause = cause_of(made.run, 0)
    assert cause is not None and (cause.verdict, cause.who) == ("node failure", "agent-1")


# ── real processes ────────────────────────────────────────────────────────────────────────────────────────────────────
def first_of(lines: list[LogLine], is_it: Callable[[LogLine], bool]) -> float:
    return next(line.time for line in lines if is_it(line))


def in_order(run: RunDirectory) -> float:
    """What a node was told to do comes after that, and what it reports before the master knows it; returns the error
    up to which that was seen."""
    clocks, lines = read_clocks(run, 0), list(merged(run, LogFilter(attempt=0)))
    error_s = sum(clock.marks[-1].error_s for clock in clocks.of.values())
    assert set(clocks.of) == {"master", "agent-0", "agent-1", "worker-0", "worker-1", "worker-2", "worker-3"}
    assert error_s < 1
    for node, ranks in ((0, (0, 1)), (1, (2, 3))):
        agent, seen = f"agent-{node}", {"master": f"node node={node}", "forked": "forked"}
        times = [
            first_of(lines, lambda it, seen=seen: it.process == "master" and it.text.startswith(seen["master"])),
            first_of(lines, lambda it, agent=agent: it.process == agent and it.text.startswith("forked")),
            *(first_of(lines, lambda it, r=r: it.text.startswith(f"worker rank={r} ")) for r in ranks[:1]),
            first_of(lines, lambda it, r=ranks[0]: it.process == f"worker-{r}" and it.text.startswith("loaded")),
            first_of(lines, lambda it: it.text.startswith("ready")),
        ]
        assert all(later >= sooner - error_s for sooner, later in pairwise(times)), times
    return error_s


@pytest.mark.parametrize("ahead_s", [HOUR_S, -HOUR_S])
def test_a_run_of_processes_with_a_node_an_hour_off_is_told_rightly(tmp_path: Path, ahead_s: float) -> None:
    """The node's worker raises; its clock was set in the meantime."""
    run = create_run(tmp_path / "run", toy_experiment(100, 0.05, nodes=2, lost_after_s=20.0, start_timeout_s=60.0))
    was_set = tmp_path / "set"
    shifted = ShiftedNode(1, ahead_s, -ahead_s, was_set)
    raising = Strike(tmp_path, "raise", "worker-2", "worker.call", "RAISE")
    began = time.time()
    jobs = begin(run, "s0", Strikes((shifted, AfterSetting(was_set, raising))), nodes=2)
    try:
        wait_until(lambda: [r for r in rows_of(run.events(0)) if r["event"] == "closed"], 60, "a step")
        was_set.touch()
        jobs.wait_for("master", 60)
    finally:
        jobs.kill_all()
    ended = time.time()
    error_s = in_order(run)
    [first, *others] = [row for row in rows_of(run.worker_log(0, "agent-1")) if row["event"] == "clock"]
    assert first["ahead_s"] == pytest.approx(ahead_s, abs=1) and first["offset_s"] == pytest.approx(4321, abs=1)
    assert all(row["offset_s"] == pytest.approx(4321, abs=1) for row in others)

    cause = cause_of(run, 0)
    assert cause is not None, outputs(run)
    assert (cause.who, cause.verdict) == ("worker-2", "user's code")
    assert cause.time is not None and began < cause.time < ended
    lines = list(merged(run, LogFilter(attempt=0)))
    failed = {line.process: line.time for line in lines if line.text.startswith("failed")}
    assert all(failed["worker-2"] <= at + error_s for at in failed.values()), failed
    assert first_of(lines, lambda it: it.text.startswith("ending")) >= failed["worker-2"] - error_s
    [attempt] = timeline(RunReader(run)).attempts
    assert began < attempt.began < ended and 0 <= attempt.begin_s < attempt.end_s < ended - began
