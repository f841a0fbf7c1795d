"""The timeline: who did what when, what a step waited for, and the files that show it."""

import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from rich.console import Console
from support.chaos import toy_experiment
from support.lagging import lagging
from support.made_run import BEGAN, MadeRun, ended_run, ppo_row
from support.perfetto_traces import Drawn

from hpcrl.cli import inspect
from hpcrl.config.experiment import ExperimentConfig
from hpcrl.costs import decode, encode
from hpcrl.durable.resources import GpuUse, NodeUse, WorkerUse
from hpcrl.durable.resources import encode as encode_use
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ConfigurationError, MissingExtraError
from hpcrl.event_log import Entry
from hpcrl.event_log import encode as encode_event
from hpcrl.events import MemoryHeld, StepOpened
from hpcrl.figures import Figures, Seconds
from hpcrl.inspect.planned import read_planned
from hpcrl.inspect.reader import RunReader
from hpcrl.inspect.terminal import render
from hpcrl.inspect.timeline_page import timeline_page
from hpcrl.inspect.timeline_text import path_of
from hpcrl.inspect.timeline_trace import write_trace
from hpcrl.inspect.views.timeline import AttemptTime, Covered, Link, Segment, StepTime, Timeline, timeline
from hpcrl.member_events import ClockMeasured, MasterConnected, WorkersForked
from hpcrl.placement.plan import plan_for
from hpcrl.progress import PartExecuted, PartSent, PartSpilled, ShardSaved

PLAN = {
    "workers": [{"node": 0}, {"node": 1}],
    "calls": [
        {"name": "actor_gen", "role": "actor", "kind": "generate"},
        {"name": "rew_inf", "role": "reward", "kind": "inference"},
        {"name": "actor_train", "role": "actor", "kind": "train_step"},
    ],
    "at": {"actor_gen": {"role": "actor"}, "rew_inf": {"role": "reward"}, "actor_train": {"role": "actor"}},
    "replicas": [
        {"model": {"role": "actor"}, "layout": "d2t1p1", "ranks": [0, 1]},
        {"model": {"role": "reward"}, "layout": "d1t1p1", "ranks": [1]},
    ],
}


def part(made: MadeRun, step: int, call: str, number: int, ranks: tuple[int, ...], sent: float, end: float,
         seconds: float) -> list[tuple[float, object]]:  # fmt: skip
    """When which event is written: `seconds` of its slowest worker, the last of the ranks."""
    executed = PartExecuted(step, call, number, ranks, seconds, 0.0, False, 9, ranks[-1], seconds)
    return [(sent, PartSent(step, call, number, ranks)), (end, executed)]


def in_ns(attempt: AttemptTime, *at_s: float) -> tuple[int, ...]:
    return tuple(round(attempt.began * 1000) * 10**6 + round(it * 1e9) for it in at_s)


def planned_run(root: Path, steps: int = 3) -> MadeRun:
    """In each step both generate (1 s and 0.6 s), worker 1 rewards (0.3 s), both train (0.5 s); 0.1 s between calls."""
    made = MadeRun(root)
    made.begin()
    made.run.plan(0).write_bytes(msgspec.json.encode(PLAN))
    for step in range(1, steps + 1):
        opened = made.time
        made.write(StepOpened(step, 0, 32), after_s=0.0)
        events = [
            *part(made, step, "actor_gen", 0, (0,), 0.0, 1.0, 1.0),
            *part(made, step, "actor_gen", 1, (1,), 0.0, 0.7, 0.6),
            *part(made, step, "rew_inf", 0, (1,), 1.0, 1.4, 0.3),
            *part(made, step, "actor_train", 0, (0, 1), 1.4, 2.0, 0.5),
        ]
        for when, event in sorted(events, key=lambda it: it[0]):
            made.follow(event, opened + when - made.time)
        made.time = opened + 2.1
        made.close(step, ppo_row(step), 2.1)
    return made


def test_each_part_is_on_its_workers_and_begins_when_its_slowest_does(tmp_path: Path) -> None:
    view = timeline(RunReader(planned_run(tmp_path / "run").run), "2")
    (attempt,) = view.attempts
    assert [lane.worker for lane in attempt.lanes] == [0, 1] and view.unplaced == view.missing == []
    shown = [
        [
            (it.name, it.kind, it.part, *(round(s, 3) for s in (it.end_s - it.begin_s, it.begin_s - it.sent_s)))
            for it in own
        ]
        for own in (lane.segments for lane in attempt.lanes)
    ]
    train = ("actor_train", "train_step", 0, 0.5, 0.1)
    assert shown == [
        [("actor_gen", "generate", 0, 1.0, 0.0), train],
        [("actor_gen", "generate", 1, 0.6, 0.1), ("rew_inf", "inference", 0, 0.3, 0.1), train],
    ]


def test_a_steps_critical_path_is_what_ended_last_before_each_began(tmp_path: Path) -> None:
    (attempt,) = timeline(RunReader(planned_run(tmp_path / "run").run), "all").attempts
    for step in attempt.steps:
        path = [(link.name, link.part, round(link.waited_s, 3), round(link.seconds, 3)) for link in step.critical]
        assert path == [("actor_gen", 0, 0.0, 1.0), ("rew_inf", 0, 0.1, 0.3), ("actor_train", 0, 0.1, 0.5)]
        assert (step.after_s, step.idle) == (pytest.approx(0.1), {0: pytest.approx(0.6 / 2.1, abs=1e-3),
                                                                  1: pytest.approx(0.7 / 2.1, abs=1e-3)})  # fmt: skip


@pytest.mark.parametrize("begin", [0.0, 0.25, 1.0, 5.0])
def test_idle_is_what_no_part_covers(begin: float) -> None:
    """As counted millisecond by millisecond, overlaps once."""
    spans = [(0.1, 0.5), (0.3, 0.4), (0.45, 0.9), (1.2, 1.3), (1.3, 2.0), (1.95, 2.4)]
    covered = Covered(Segment(1, "x", "", 0, one, one, two, False) for one, two in spans)
    ticks = [begin + (i + 0.5) / 1000 for i in range(1000)]
    idle = sum(not any(one <= tick < two for one, two in spans) for tick in ticks) / 1000
    assert covered.idle(begin, begin + 1) == pytest.approx(idle, abs=1e-9)


@pytest.mark.parametrize(
    "experiment", [toy_experiment(), lagging("apart"), lagging("together")], ids=["toy", "apart", "together"]
)
def test_what_is_read_of_a_plan_places_calls_as_the_plan_does(tmp_path: Path, experiment: ExperimentConfig) -> None:
    plan = plan_for(experiment)
    path = tmp_path / "plan.json"
    path.write_bytes(plan.to_json())
    planned = read_planned(path)
    for call in plan.calls:
        for number in range(5):
            helpers = plan.home(call.blends).ranks if call.blends else ()
            ranks = {*plan.ranks(call.name, number), *helpers}
            assert sorted(planned.ranks(call.name, number)) == sorted(ranks), call.name
    moved = [replica.model for replica in plan.replicas if replica.model.replica]
    for model in moved:
        both = {*plan.placed(model).ranks, *plan.home(model.role).ranks}
        assert planned.ranks(str(model), 0) == tuple(sorted(both)) and planned.kind(str(model)) == "move"


def test_a_plan_that_cannot_be_read_leaves_the_slowest_worker(tmp_path: Path) -> None:
    made = planned_run(tmp_path / "run")
    made.run.plan(0).write_bytes(made.run.plan(0).read_bytes()[:-9])
    assert timeline(RunReader(made.run), "1").unplaced == [], "rows say it"
    rows = [msgspec.structs.replace(decode(line), ranks={}) for line in made.run.costs(0).read_bytes().splitlines()]
    made.run.costs(0).write_bytes(b"".join(map(encode, rows)))
    view = timeline(RunReader(made.run), "1")
    assert view.unplaced == [0] and [lane.worker for lane in view.attempts[0].lanes] == [0, 1]
    assert [it.name for it in view.attempts[0].lanes[0].segments] == ["actor_gen"]
    assert "not written down of attempt 0" in text_of(view)


def test_steps_of_several_attempts_are_apart_and_a_lost_row_is_named(tmp_path: Path) -> None:
    made = ended_run(tmp_path / "run")
    view = timeline(RunReader(made.run), "24-27")
    assert [(it.attempt, [step.step for step in it.steps]) for it in view.attempts] == [(0, [24, 25]), (1, [26, 27])]
    lines = made.run.costs(1).read_bytes().splitlines(keepends=True)
    made.run.costs(1).write_bytes(b"".join(lines[1:]))
    view = timeline(RunReader(made.run), "24-27")
    assert view.missing == [26] and "no row of costs was kept of step 26" in text_of(view)


def test_what_other_steps_executed_meanwhile_is_no_gap(tmp_path: Path) -> None:
    """Worker 1 makes a part of step 2, which closes later, while step 1 trains on worker 0."""
    made = MadeRun(tmp_path / "run")
    made.begin()
    plan = {**PLAN, "replicas": [{"model": {"role": "actor"}, "layout": "d2t1p1", "ranks": [0, 1]}]}
    made.run.plan(0).write_bytes(msgspec.json.encode(plan))
    made.write(StepOpened(1, 0, 32))
    made.write(StepOpened(2, 0, 32), after_s=0.0)
    opened = made.time
    of_one, of_two = (
        part(made, 1, "actor_gen", 0, (0,), 0.0, 1.0, 1.0),
        part(made, 2, "actor_gen", 1, (1,), 1.0, 1.8, 0.8),
    )
    for when, event in (*of_one, *of_two):
        made.follow(event, opened + when - made.time)
    made.time = opened + 2.0
    made.close(1, ppo_row(1), 2.0)
    made.close(2, ppo_row(2), 2.0)
    (attempt,) = timeline(RunReader(made.run), "1").attempts
    assert attempt.steps[0].idle == {0: pytest.approx(0.5, abs=1e-3), 1: pytest.approx(0.6, abs=1e-3)}


def test_by_default_the_last_steps_are_shown(tmp_path: Path) -> None:
    (attempt,) = timeline(RunReader(planned_run(tmp_path / "run", steps=9).run)).attempts
    assert [step.step for step in attempt.steps] == [7, 8, 9]


def text_of(view: Timeline) -> str:
    console = Console(width=80, color_system=None)
    with console.capture() as shown:
        console.print(render(view), soft_wrap=True)
    return shown.get()


def test_a_terminal_of_80_columns_is_wide_enough(tmp_path: Path) -> None:
    text = text_of(timeline(RunReader(planned_run(tmp_path / "run").run), "2-3"))
    lanes = [line for line in text.splitlines() if line.startswith("worker-")]
    assert max(map(len, text.splitlines())) <= 80 and len(lanes) == 2
    idle = lanes[0].split()[-1]
    assert re.fullmatch(r"A{14}·+C+·*A{14,15}·+C+·*", lanes[0].split()[1]) and idle == "29%"
    assert "actor_gen 48%, actor_train 24%, rew_inf 14%, between calls 14%" in re.sub(r"\s+", " ", text)


def test_a_page_and_a_trace_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = planned_run(tmp_path / "run").run.root
    page, trace = tmp_path / "page.html", tmp_path / "run.pftrace"
    words = ["--steps", "2-3", "--html", str(page), "--perfetto", str(trace)]
    assert inspect.run([str(root), "timeline", *words]) == 0
    assert capsys.readouterr().out.split() == [str(page), str(trace)]
    page.unlink()
    assert inspect.run([str(root), "timeline", *words, "--json"]) == 0
    printed = capsys.readouterr()
    assert msgspec.json.decode(printed.out) and printed.err.split() == [str(page), str(trace)]
    text = page.read_text()
    assert text.count("<s class=") == 10 + 3 and "default-src 'none'" in text and "<script" not in text
    (attempt,) = timeline(RunReader(RunDirectory.look(root)), "2-3").attempts
    drawn = Drawn(trace)
    assert drawn.children(0) == ["attempt 0"] and drawn.unbalanced == []
    for lane, name, parts in zip(attempt.lanes, ("worker-0 on n000", "worker-1"), (4, 6), strict=True):
        of_view = [
            (f"attempt 0/{name}", it.name, it.kind, *in_ns(attempt, it.begin_s, it.end_s)) for it in lane.segments
        ]
        shown = [it for it in drawn.slices if it.track == f"attempt 0/{name}"]
        assert [it[:5] for it in shown] == of_view and len(of_view) == parts
        assert [{name: it.notes[name] for name in ("step", "part", "replay")} for it in shown] == [
            {"step": it.step, "part": it.part, "replay": False} for it in lane.segments
        ]
    assert [it[:5] for it in drawn.slices if it.track == "attempt 0/steps"] == [
        ("attempt 0/steps", f"step {it.step}", "step", *in_ns(attempt, it.open_s, it.close_s)) for it in attempt.steps
    ]
    for step in attempt.steps:
        names = [link.name for link in step.critical]
        arrows = [it for it in drawn.arrows() if it[0].notes["step"] == step.step]
        assert [(one.name, other.name) for one, other in arrows] == list(pairwise(names))
        assert all(one.end_ns <= other.begin_ns + 500_000 for one, other in arrows)


def test_what_is_written_behind_the_work_and_what_leaves_a_device_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = MadeRun(tmp_path / "run")
    made.begin()
    made.run.plan(0).write_bytes(msgspec.json.encode(PLAN))
    for step in (1, 2):
        made.write(StepOpened(step, 0, 32), after_s=0.0)
        made.follow(PartSent(step, "actor_train", 0, (0, 1)))
        figures = {0: Figures(), 1: Figures(Seconds(execute=1.0, release=0.25))}
        made.follow(PartExecuted(step, "actor_train", 0, (0, 1), 1.0, 1.0, figures=figures), 1.0)
        made.follow(PartSpilled(step, "actor_train", 0, 1000, 0.5, 1), 0.4)
        made.follow(ShardSaved(step, "actor", 0, 0.3), 0.1)
        made.close(step, ppo_row(step), 1.51)
    view = timeline(RunReader(made.run), "2")
    (attempt,) = view.attempts
    (save,), (release, spill) = (lane.beside for lane in attempt.lanes)
    for it, kind, name, length_s in (
        (save, "save", "actor", 0.3),
        (release, "release", "actor_train", 0.25),
        (spill, "spill", "actor_train", 0.5),
    ):
        assert (it.kind, it.name, it.step, round(it.end_s - it.begin_s, 3)) == (kind, name, 2, length_s)
    (train,) = attempt.lanes[1].segments
    assert release.end_s == train.end_s and spill.begin_s < train.end_s < spill.end_s
    text = text_of(view)
    assert len(re.findall("^  beside ", text, re.MULTILINE)) == 2
    assert all(each in text for each in ("s save", "r release", "w spill"))
    page, trace = tmp_path / "page.html", tmp_path / "run.pftrace"
    assert inspect.run([str(made.run.root), "timeline", "--html", str(page), "--perfetto", str(trace)]) == 0
    assert 'title="save of actor, step 2' in page.read_text() and 's class="release"' in page.read_text()
    drawn = Drawn(trace)
    assert drawn.unbalanced == []
    view = timeline(RunReader(made.run))
    (attempt,) = view.attempts
    for place, kind, name in ((0, "save", "save of actor"), (1, "spill", "spill of actor_train")):
        (track,) = {it.track for it in drawn.slices if it.category == kind}
        assert track.startswith(f"attempt 0/worker-{place}") and track.endswith(f"/{kind}s")
        assert [it[1:5] for it in drawn.slices if it.category == kind] == [
            (name, kind, *in_ns(attempt, it.begin_s, it.end_s)) for it in attempt.lanes[place].beside if it.kind == kind
        ]
    released = [it for it in drawn.slices if it.category == "release"]
    assert len(released) == 2 and {it.track for it in released} == {"attempt 0/worker-1"}
    assert [(it.depth, it.name) for it in released] == [(1, "release after actor_train")] * 2


def test_what_models_hold_is_shown_in_the_masters_time(tmp_path: Path) -> None:
    """Worker 1's node is an hour ahead, and was started at another time."""
    made = planned_run(tmp_path / "run")
    began = BEGAN + 0.01
    held = MemoryHeld(2, "actor_train", 0, {"actor.parameters": (0, 700, 0), "actor.optimizer": (0, 300, 0)}, 0.25)
    lines = [
        (0.02, MasterConnected("tcp://x")),
        (0.03, ClockMeasured(500.0, 0.002, 3600.0)),
        (0.04, WorkersForked(0, (1,), [], [])),
        (4.0, held),
    ]
    for at_s, event in lines:
        process = "worker-1" if event is held else "agent-1"
        entry = Entry(began + at_s + 3600, event, began + at_s - BEGAN + 500.0)
        with open(made.run.worker_log(0, process), "ab") as file:
            file.write(encode_event(entry))
    view = timeline(RunReader(made.run), "2-3")
    (attempt,) = view.attempts
    assert [it.bytes for it in attempt.lanes[1].memory] == [1000, 0]
    assert [it.at_s for it in attempt.lanes[1].memory] == pytest.approx([3.75, 4.0], abs=0.002)
    path = made.run.node_resources(0, 1)
    path.parent.mkdir(exist_ok=True)
    looks = [NodeUse(began + 3600 + at_s, "n1", (WorkerUse(1, 7, rss, 1.0),), (GpuUse("x", rss + 1, 80, 50),))
             for at_s, rss in ((0.001, 5), (3.8, 50), (99.0, 6))]  # fmt: skip
    path.write_bytes(b"".join(map(encode_use, looks)))
    trace = tmp_path / "run.pftrace"
    assert inspect.run([str(made.run.root), "timeline", "--steps", "2-3", "--perfetto", str(trace)]) == 0
    drawn = Drawn(trace)
    (attempt,) = timeline(RunReader(made.run), "2-3").attempts
    of_worker = "attempt 0/worker-1"
    assert drawn.counters == {
        f"{of_worker}/{name}": [(in_ns(attempt, it.at_s)[0], it.bytes) for it in marks]
        for name, marks in (
            ("held by models", attempt.lanes[1].memory),
            ("resident memory", attempt.lanes[1].resident),
            ("in use on its GPU", attempt.lanes[1].gpu),
        )
    }
    assert [it.bytes for it in attempt.lanes[1].resident] == [50]
    assert attempt.lanes[1].resident[0].at_s == pytest.approx(3.8, abs=0.02)
    assert [it.bytes for it in attempt.lanes[1].gpu] == [51]


def test_what_overlaps_on_a_worker_is_on_tracks_of_one_name(tmp_path: Path) -> None:
    view = timeline(RunReader(planned_run(tmp_path / "run").run), "2")
    (attempt,) = view.attempts
    spans = [(0.0, 2.0), (1.0, 3.0), (2.0002, 4.0), (1.5, 2.5), (2.9998, 3.5)]
    segments = [Segment(2, f"c{n}", "", n, begin, begin, end, False) for n, (begin, end) in enumerate(spans)]
    lanes = [msgspec.structs.replace(attempt.lanes[0], segments=segments, worker=7, host="")]
    attempt = msgspec.structs.replace(attempt, lanes=lanes, steps=[], pauses=[(0.5, 0.75)])
    path = tmp_path / "run.pftrace"
    with open(path, "wb") as file:
        write_trace(msgspec.structs.replace(view, attempts=[attempt]), file)
    drawn = Drawn(path)
    assert drawn.unbalanced == [] and all(it.depth == 0 for it in drawn.slices)
    found = {it.name: it for it in drawn.slices}
    own, other = "attempt 0/worker-7", "attempt 0/worker-7/calls at the same time"
    assert [found[f"c{n}"].track for n in range(5)] == [own, other, own, other, other]
    for n, (begin, end) in enumerate(spans):
        begin_ns, end_ns = in_ns(attempt, begin, end)
        assert found[f"c{n}"].end_ns == end_ns and 0 <= found[f"c{n}"].begin_ns - begin_ns <= 500_000
    assert found["paused"][:1] == ("attempt 0/pauses",)


def test_without_perfetto_the_extra_is_named_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, trace = planned_run(tmp_path / "run").run, tmp_path / "to" / "run.pftrace"
    trace.parent.mkdir()
    monkeypatch.delitem(sys.modules, "hpcrl.inspect.timeline_trace", raising=False)
    for name in [name for name in sys.modules if name.split(".")[0] == "perfetto"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "perfetto", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'hpcrl\[perfetto\]'"):
        inspect.run([str(run.root), "timeline", "--perfetto", str(trace)])
    assert list(trace.parent.iterdir()) == []


def test_a_view_without_a_trace_does_not_import_perfetto() -> None:
    seen = (
        "import sys, hpcrl.cli.inspect; print([it for it in sys.modules if it.split('.')[0] in ('perfetto', 'google')])"
    )
    assert subprocess.run([sys.executable, "-c", seen], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_what_was_under_way_as_an_attempt_ended_is_a_bar_of_its_own_and_named(tmp_path: Path) -> None:
    made = planned_run(tmp_path / "run")
    made.write(StepOpened(4, 0, 32))
    made.send(4, "rew_inf", 0, [1])
    made.time += 0.5
    (still,) = timeline(RunReader(made.run)).attempts
    assert [lane.unfinished for lane in still.lanes] == [[], []]
    made.verdict("failed", 66, "worker-1 raised")
    view = timeline(RunReader(made.run))
    (attempt,) = view.attempts
    assert [[(it.step, it.name) for it in lane.unfinished] for lane in attempt.lanes] == [[], [(4, "rew_inf")]]
    (bar,) = attempt.lanes[1].unfinished
    assert bar.end_s == pytest.approx(attempt.end_s) and bar.end_s - bar.begin_s == pytest.approx(0.51)
    assert "Under way as attempt 0 ended: rew_inf of step 4, part 0" in text_of(view)
    assert timeline_page(view).decode().count(' unfinished" style') == 1
    assert timeline(RunReader(made.run), "1-2").attempts[0].lanes[1].unfinished == []


def test_a_call_has_the_same_colour_whichever_calls_are_on_the_page(tmp_path: Path) -> None:
    view = timeline(RunReader(planned_run(tmp_path / "run").run))
    (attempt,) = view.attempts
    lanes = [
        msgspec.structs.replace(lane, segments=[it for it in lane.segments if it.name == "actor_train"])
        for lane in attempt.lanes
    ]
    fewer = msgspec.structs.replace(view, attempts=[msgspec.structs.replace(attempt, lanes=lanes)])
    for shown in (view, fewer):
        assert '<s class="c2"></s>actor_train' in timeline_page(shown).decode()


def test_a_critical_path_names_the_step_of_a_call_of_another_one(tmp_path: Path) -> None:
    own = Link("actor_gen", 2, 0, 0.0, 0.0, 1.0)
    other = msgspec.structs.replace(own, step=1)
    assert path_of(StepTime(2, 0.0, 2.0, [other, own], 0.0, {})).startswith("actor_gen of step 1 50%, actor_gen 50%")


def test_what_a_host_is_called_is_shown_and_never_obeyed(tmp_path: Path) -> None:
    view = timeline(RunReader(planned_run(tmp_path / "run").run), "2")
    (attempt,) = view.attempts
    hostile = '"><script>alert(1)</script>\x1b[31m{{ 7*7 }}'
    lanes = [msgspec.structs.replace(lane, host=hostile) for lane in attempt.lanes]
    segments = [msgspec.structs.replace(it, name=hostile) for it in lanes[0].segments]
    lanes[0] = msgspec.structs.replace(lanes[0], segments=segments)
    view = msgspec.structs.replace(view, attempts=[msgspec.structs.replace(attempt, lanes=lanes)])
    page = timeline_page(view).decode()
    assert "<script" not in page and "\x1b" not in page and "{{ 7*7 }}" in page and "\x1b" not in text_of(view)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["timeline", "--steps", "99"], "--steps 99 is none that has closed. There are 1-3."),
        (["timeline", "--steps", "x"], "--steps x is no step. Give 1-3, a span of them, or all."),
        (["summary", "--steps", "2"], "The view summary takes no --steps. Leave it out, or take timeline."),
        (["steps", "--html", "x"], "The view steps takes no --html."),
    ],
)
def test_what_there_is_not_is_refused_with_what_there_is(tmp_path: Path, words: list[str], says: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(says)):
        inspect.run([str(planned_run(tmp_path / "run").run.root), *words])


@pytest.mark.parametrize("advised", [["timeline", "--steps", "1-3"], ["timeline", "--steps", "all"], ["timeline"]])
def test_who_does_what_is_advised_is_not_refused(tmp_path: Path, advised: list[str]) -> None:
    assert inspect.run([str(planned_run(tmp_path / "run").run.root), *advised]) == 0


def test_a_run_of_which_no_step_has_closed_says_so(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "run")
    made.begin()
    with pytest.raises(ConfigurationError, match="no step has closed yet"):
        inspect.run([str(made.run.root), "timeline"])
    made.steps(0, 1)
    assert inspect.run([str(made.run.root), "timeline"]) == 0


def test_a_page_of_too_many_bars_is_refused_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = planned_run(tmp_path / "run").run
    monkeypatch.setattr("hpcrl.inspect.timeline_page.MOST_SEGMENTS", 6)
    page = tmp_path / "page.html"
    with pytest.raises(ConfigurationError, match=r"15 bars are more than the 6 .* fewer --steps, or --perfetto"):
        inspect.run([str(run.root), "timeline", "--html", str(page)])
    assert inspect.run([str(run.root), "timeline", "--html", str(page), "--steps", "3"]) == 0
    assert inspect.run([str(run.root), "timeline", "--perfetto", str(tmp_path / "t")]) == 0
