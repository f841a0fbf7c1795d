import os
import signal
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.events import TRAINED_BY, checkpointed, compacted, done, journals, opened, trained
from support.miniature import TRAINED_BY as MINIATURE_TRAINED_BY
from support.miniature import Miniature, make_run, outcome

from hpcrl.data.samples import SequenceSample
from hpcrl.durable.checkpoints import Manifest
from hpcrl.durable.files import FileRef
from hpcrl.durable.history import read_history
from hpcrl.durable.journal import (
    Accepted,
    Archived,
    Closed,
    Compacted,
    Done,
    Event,
    Exported,
    Journal,
    Opened,
    Trained,
)
from hpcrl.durable.once import Returned, SetAside
from hpcrl.durable.recovery import (
    RecoveryPlan,
    UnitKey,
    plan_next_attempt,
    plan_recovery,
    recover,
)
from hpcrl.durable.retention import compact_step, remove_parts
from hpcrl.durable.rundir import RunDirectory
from hpcrl.durable.spills import group_name, read_parts, read_spill, write_spill
from hpcrl.durable.step_lines import StepLines
from hpcrl.errors import StoppedError


def manifest(step: int) -> Manifest:
    return Manifest(step, 0, {"actor": (), "critic": ()}, 0, 2 * step, {})


def spill_names(events: list[Event]) -> list[str]:
    return sorted({event.spill.name for event in events if isinstance(event, Done | Compacted)})


def here(names: list[str]) -> dict[str, FileRef]:
    return {name: FileRef(f"now/{name}", 1, 1) for name in names}


# ── the plan ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_nothing_written_is_a_start_from_nothing() -> None:
    assert plan_recovery([], [], {}, TRAINED_BY) == RecoveryPlan()
    assert "starts from the base weights" in RecoveryPlan().describe()


def test_what_methods_of_json_returned_in_later_steps_is_taken_over() -> None:
    early, late = (Returned(step, "actor_told", 1, ('"a"', "2")) for step in (1, 2))
    begun: list[Event] = [opened(1), early, Closed(1, {"x": 1}), checkpointed(1), opened(2), late]
    plan = plan_recovery(begun, [manifest(1)], {}, TRAINED_BY)
    assert plan.returned == {UnitKey(2, "actor_told", 1): late}
    assert not plan.recorded and not plan.lost
    assert "reads 1 finished part" in plan.describe()
    again: list[Event] = [*begun, SetAside(2), opened(2)]
    assert plan_recovery(again, [manifest(1)], {}, TRAINED_BY).returned == {}


def test_plan_of_a_run_in_the_middle() -> None:
    events: list[Event] = [
        opened(1), done(1, "gen", 0), trained(1, "actor_train"), trained(1, "critic_train"), Closed(1, {"x": 1}),
        checkpointed(1), Exported(1, "actor", "export/actor/step-00000001"), Accepted("data", "new"),
        opened(2), done(2, "gen", 0), done(2, "gen", 1), trained(2, "critic_train"), trained(2, "actor_train"),
        Closed(2, {"x": 2}), compacted(2), opened(3), done(3, "gen", 0), done(3, "gen", 1),
    ]  # fmt: skip
    whole = [name for name in spill_names(events) if "step-00000003/gen.dp01" not in name]
    plan = plan_recovery(events, [manifest(1)], here(whole), TRAINED_BY)
    assert plan.checkpoint == manifest(1)
    assert [line.step for line in plan.opened] == [2, 3] and plan.closed == {2}
    assert plan.last_opened == StepLines(opened(3))
    assert {unit: (held.spill.path, held.spill.group) for unit, held in plan.recorded.items()} == {
        UnitKey(2, "gen", 0): ("now/spills/step-00000002.a000.h5", "gen.dp00"),
        UnitKey(2, "gen", 1): ("now/spills/step-00000002.a000.h5", "gen.dp01"),
        UnitKey(3, "gen", 0): ("now/spills/step-00000003/gen.dp00.a000.h5", None),
    }
    assert tuple(plan.lost) == (UnitKey(3, "gen", 1),)
    assert plan.replay == (trained(2, "actor_train"), trained(2, "critic_train"))
    assert [row.metrics for row in plan.metrics] == [{"x": 1}, {"x": 2}]
    assert plan.exports.done == {(1, "actor")} and plan.accepted == {"data": "new"}
    text = plan.describe()
    assert "checkpoint of step 1, written by attempt 0: actor, critic" in text
    assert "reads 3 finished parts" in text and "replays 2 train steps: step 2 actor_train" in text
    assert "computes again 1 finished part: step 3 gen part 1" in text and "continues with step 3, step 4" in text


def test_closed_steps_without_a_line_of_their_archive_are_found_however_old_they_are() -> None:
    events: list[Event] = [
        opened(1), done(1, "gen", 0), trained(1, "actor_train"), Closed(1, {}),
        opened(2), done(2, "gen", 0), done(2, "gen", 1), Closed(2, {}), Archived(2),
        opened(3), done(3, "gen", 0), done(3, "gen", 1), Closed(3, {}), checkpointed(3),
        opened(4), done(4, "gen", 0), Closed(4, {}), opened(5), done(5, "gen", 0),
    ]  # fmt: skip
    lost = done(3, "gen", 1).spill.name
    whole = [name for name in spill_names(events) if name not in (lost, done(4, "gen", 0).spill.name)]
    left = plan_recovery(events, [manifest(3)], here(whole), TRAINED_BY).left
    assert left.keys() == {1, 3, 4, 5}
    assert [*left[1].parts] == [*left[3].parts] == [*left[5].parts] == [("gen", 0)]
    assert left[1].parts["gen", 0].path == f"now/{done(1, 'gen', 0).spill.name}"
    assert (left[3].lost, left[3].awaited) == ((lost,), frozenset()), "the step is over"
    assert (left[4].lost, left[4].awaited) == ((), {("gen", 0)}), "it is computed again"


def test_what_a_train_step_has_shown_counts_until_the_step_has_its_archive() -> None:
    files = tuple(FileRef(f"spills/step-00000002/actor_train.dp0{part}.a000.h5", 1, 1) for part in range(2))
    line = msgspec.structs.replace(trained(2, "actor_train"), shown=files)
    events: list[Event] = [opened(1), Closed(1, {}), Archived(1), checkpointed(1), opened(2), line, Closed(2, {})]
    names = [file.name for file in files]
    (of,) = plan_recovery(events, [manifest(1)], here(names), TRAINED_BY).left.values()
    assert [file.name for file in of.shown["actor_train"]] == [f"now/{name}" for name in names] and not of.awaited
    (of,) = plan_recovery(events, [manifest(1)], here(names[:1]), TRAINED_BY).left.values()
    assert len(of.shown["actor_train"]) == 1 and of.awaited == {("actor_train", 0)}
    again = msgspec.structs.replace(line, shown=(files[0], FileRef("again", 1, 1)))
    (of,) = plan_recovery([*events, again], [manifest(1)], here([names[0], "again"]), TRAINED_BY).left.values()
    assert len(of.shown["actor_train"]) == 2 and not of.awaited
    assert plan_recovery([*events, Archived(2)], [manifest(1)], {}, TRAINED_BY).left == {}


def test_damage_is_told_but_not_without_end() -> None:
    plan = plan_recovery([], [], {}, TRAINED_BY, [f"spills/x{i} is missing" for i in range(25)])
    assert "damaged: spills/x0 is missing" in plan.describe()
    assert plan.describe().splitlines()[-1] == "damaged: 5 more"


def test_damaged_compacted_file_falls_back_to_parts_that_are_still_there() -> None:
    events: list[Event] = [opened(1), done(1, "gen", 0), done(1, "gen", 1), Closed(1, {}), compacted(1)]
    parts = [name for name in spill_names(events) if "/gen" in name]
    plan = plan_recovery(events, [], here(parts), TRAINED_BY)
    assert {held.spill.path for held in plan.recorded.values()} == {f"now/{name}" for name in parts}
    assert plan_recovery(events, [], {}, TRAINED_BY).lost.keys() == {UnitKey(1, "gen", 0), UnitKey(1, "gen", 1)}


def test_part_that_was_computed_again_is_read_where_it_was_written_last() -> None:
    events: list[Event] = [opened(1), done(1, "gen", 0), Closed(1, {}), compacted(1), done(1, "gen", 0, attempt=1)]
    plan = plan_recovery(events, [], here(spill_names(events)), TRAINED_BY)
    assert plan.recorded[UnitKey(1, "gen", 0)].spill.path == "now/spills/step-00000001/gen.dp00.a001.h5"


def test_lines_of_a_step_before_its_opening_say_nothing() -> None:
    events: list[Event] = [done(1, "gen", 0), opened(1), done(1, "gen", 1), opened(1)]
    plan = plan_recovery(events, [], here(spill_names(events)), TRAINED_BY)
    assert plan.recorded == {} and plan.opened == (StepLines(opened(1)),)


def oracle(events: list[Event], cut: int, whole: set[str]) -> dict[str, object]:
    """The plan's facts by searching the whole list again for each of them."""
    later = [event for event in events if getattr(event, "step", 0) > cut]
    units = {UnitKey(e.step, e.call, e.part) for e in later if isinstance(e, Done)}
    recorded = {}
    for unit in units:
        line = next(i for i, e in enumerate(later) if isinstance(e, Done) and UnitKey(e.step, e.call, e.part) == unit)
        parts = [(e.spill.name, None) for e in later if isinstance(e, Done) and (e.step, e.call, e.part) == unit]
        merged = [
            (e.spill.name, f"{unit.call}.dp{unit.part:02d}")
            for e in later[line:]
            if isinstance(e, Compacted) and e.step == unit.step
        ]
        found = [place for place in (*merged, *parts) if place[0] in whole]
        if found:
            recorded[unit] = (f"now/{found[0][0]}", found[0][1])
    replay = [trained(step, call) for step in range(cut + 1, 9) for call in TRAINED_BY if trained(step, call) in later]
    return {
        "opened": tuple(StepLines(e) for e in later if isinstance(e, Opened)),
        "closed": {e.step for e in later if isinstance(e, Closed)},
        "recorded": recorded,
        "lost": units - recorded.keys(),
        "replay": tuple(replay),
        "metrics": tuple(e for e in events if isinstance(e, Closed)),
    }


@settings(max_examples=100)
@given(journals(), st.data())
def test_plan_equals_a_slow_search_through_all_lines(events: list[Event], data: st.DataObject) -> None:
    closed = [event.step for event in events if isinstance(event, Closed)]
    cut = data.draw(st.sampled_from([0, *closed]))
    whole = data.draw(st.sets(st.sampled_from(spill_names(events)))) if spill_names(events) else set()
    plan = plan_recovery(events, [manifest(cut)] if cut else [], here(sorted(whole)), TRAINED_BY)
    expected = oracle(events, cut, whole)
    assert plan.opened == expected["opened"] and plan.closed == expected["closed"]
    found = {unit: (held.spill.path, held.spill.group) for unit, held in plan.recorded.items()}
    assert found == expected["recorded"] and set(plan.lost) == expected["lost"]
    assert plan.replay == expected["replay"] and plan.metrics == expected["metrics"]


@settings(max_examples=100)
@given(journals(), st.data())
def test_replay_brings_every_role_through_all_versions_after_the_cut(events: list[Event], data: st.DataObject) -> None:
    cut = data.draw(st.sampled_from([0, *(event.step for event in events if isinstance(event, Closed))]))
    plan = plan_recovery(events, [manifest(cut)] if cut else [], {}, TRAINED_BY)
    for call in TRAINED_BY:
        versions = [line.step for line in plan.replay if line.call == call]
        assert versions == list(range(cut + 1, cut + 1 + len(versions)))
        assert len(versions) == sum(isinstance(e, Trained) and e.call == call and e.step > cut for e in events)


# ── taking over ───────────────────────────────────────────────────────────────────────────────────────────────────────
def sample(seed: int) -> SequenceSample:
    return SequenceSample.from_rows([f"r{seed}"], {"y": [np.arange(seed + 1)]})


def live_attempt(run: RunDirectory) -> tuple[int, Journal]:
    """An attempt that has taken over and is alive."""
    attempt = run.claim_attempt("s")
    return attempt, recover(run, attempt, TRAINED_BY)[1]


def closed_step(run: RunDirectory, attempt: int, journal: Journal) -> None:
    """A closed step of two parts in files of their own."""
    refs = [write_spill(run.files, run.spill(1, "gen", part, attempt), sample(part)) for part in (0, 1)]
    lines = [Done(1, "gen", part, ref, None, {}) for part, ref in enumerate(refs)]
    journal.append([opened(1), *lines, Closed(1, {})])


def compact_it(run: RunDirectory, attempt: int, journal: Journal) -> None:
    parts = {(unit.call, unit.part): held.spill for unit, held in plan_next_attempt(run, TRAINED_BY).recorded.items()}
    journal.append([Compacted(1, compact_step(run, attempt, 1, read_parts(run.files, parts)))])
    remove_parts(run, attempt, 1)


def assert_reads_both_parts(run: RunDirectory, plan: RecoveryPlan, attempt: int) -> None:
    assert plan.damage == () and not plan.lost
    for part in (0, 1):
        spill = plan.recorded[UnitKey(1, "gen", part)].spill
        assert f".a{attempt:03d}." in spill.path
        read = read_spill(run.root / spill.path, spill.group)
        assert read.meta == sample(part).meta and np.array_equal(read.data["y"], sample(part).data["y"])


class Once:
    """Does something at the first passage of a point."""

    def __init__(self, point: str, action: Callable[[], None]) -> None:
        self._point = point
        self._action: Callable[[], None] | None = action

    def __call__(self, point: str) -> None:
        if point == self._point and self._action is not None:
            action, self._action = self._action, None
            action()


def test_adopted_files_are_links_under_the_own_number(root: Path) -> None:
    run = make_run(root / "run")
    closed_step(run, *live_attempt(run))
    attempt = run.claim_attempt("s")
    plan, _ = recover(run, attempt, TRAINED_BY)
    assert_reads_both_parts(run, plan, attempt)
    assert all((run.root / held.spill.path).stat().st_nlink == 2 for held in plan.recorded.values())


def test_dry_run_changes_nothing_and_says_the_same(root: Path) -> None:
    run = make_run(root / "run")
    closed_step(run, *live_attempt(run))
    before = sorted(path.relative_to(run.root) for path in run.root.rglob("*"))
    dry = plan_next_attempt(run, TRAINED_BY)
    assert sorted(path.relative_to(run.root) for path in run.root.rglob("*")) == before
    real, _ = recover(run, run.claim_attempt("s"), TRAINED_BY)
    assert dry.describe() == real.describe()


def test_old_attempt_that_compacts_while_a_new_one_links_loses_nothing(root: Path) -> None:
    run = make_run(root / "run")
    old, journal = live_attempt(run)
    closed_step(run, old, journal)
    new = run.claim_attempt("s")
    disturbed = RunDirectory(run.root, Once("adopt.linked", lambda: compact_it(run, old, journal)))
    plan, _ = recover(disturbed, new, TRAINED_BY)
    assert_reads_both_parts(run, plan, new)
    assert {held.spill.group for held in plan.recorded.values()} == {group_name("gen", 0), group_name("gen", 1)}
    assert not list(run.spills.rglob("gen.*"))


def test_attempt_that_takes_over_in_between_is_believed_too(root: Path) -> None:
    run = make_run(root / "run")
    closed_step(run, *live_attempt(run))
    between, new = run.claim_attempt("s"), run.claim_attempt("s")

    def overtake() -> None:
        _, journal = recover(run, between, TRAINED_BY)
        compact_it(run, between, journal)

    plan, _ = recover(RunDirectory(run.root, Once("adopt.linked", overtake)), new, TRAINED_BY)
    assert_reads_both_parts(run, plan, new)
    assert {held.spill.group for held in plan.recorded.values()} == {group_name("gen", 0), group_name("gen", 1)}
    assert read_history(run).newest == new


def test_run_that_never_stands_still_is_not_taken_over(root: Path) -> None:
    run = make_run(root / "run")
    closed_step(run, *live_attempt(run))
    *others, new = (run.claim_attempt("s") for _ in range(20))

    def another(point: str) -> None:
        if point == "adopt.linked" and others:
            recover(run, others.pop(0), TRAINED_BY)

    with pytest.raises(StoppedError, match=r"is still changing .* Stop it with `hpcrl stop`, then resume\."):
        recover(RunDirectory(run.root, another), new, TRAINED_BY)
    assert not run.has_adopted(new)
    # What is stopped begins no other attempt.
    last = run.claim_attempt("resumed")
    recover(run, last, TRAINED_BY)
    assert run.has_adopted(last)


def test_attempt_that_was_overtaken_does_not_begin(root: Path) -> None:
    run = make_run(root / "run")
    first, second = run.claim_attempt("s"), run.claim_attempt("s")
    recover(run, second, TRAINED_BY)
    with pytest.raises(StoppedError, match=r"attempt 0 .* is superseded by attempt 1"):
        recover(run, first, TRAINED_BY)
    assert not run.has_adopted(first)


def test_files_are_copied_where_hard_links_do_not_work(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_args: object, **_kwargs: object) -> None:
        raise OSError(95, "Operation not supported")

    run = make_run(root / "run")
    closed_step(run, *live_attempt(run))
    monkeypatch.setattr(os, "link", no_links)
    attempt = run.claim_attempt("s")
    plan, _ = recover(run, attempt, TRAINED_BY)
    assert_reads_both_parts(run, plan, attempt)


def test_damaged_part_is_named_and_computed_again(root: Path) -> None:
    run = make_run(root / "run")
    closed_step(run, *live_attempt(run))
    path = run.spill(1, "gen", 1, 0)
    path.write_bytes(path.read_bytes()[:-1])
    plan, _ = recover(run, run.claim_attempt("s"), TRAINED_BY)
    assert tuple(plan.lost) == (UnitKey(1, "gen", 1),) and set(plan.recorded) == {UnitKey(1, "gen", 0)}
    assert any("gen.dp01.a000.h5" in text for text in plan.damage)
    again, _ = recover(run, run.claim_attempt("s"), TRAINED_BY)
    assert again.lost == plan.lost


def test_at_least_two_checkpoints_are_taken_over(root: Path) -> None:
    run, notes = make_run(root / "run"), root / "notes"
    Miniature(run, notes).go()
    attempt = run.claim_attempt("s")
    plan, _ = recover(run, attempt, MINIATURE_TRAINED_BY, keep=1)
    assert [manifest.step for manifest in plan.kept] == [4, 2]
    assert all(run.manifest(step, attempt).exists() for step in (4, 2))


def test_litter_of_killed_processes_goes_when_a_new_attempt_begins(root: Path) -> None:
    run = make_run(root / "run")
    closed_step(run, *live_attempt(run))
    litter = [
        run.step_spills(1) / ".gen.dp03.a000.h5.host.1.0.tmp",
        run.checkpoint(1, 0) / ".actor.r000.safetensors.host.1.0.tmp",
        run.exports / "actor" / ".step-00000001.a000.host.1.0.tmp" / "model.safetensors",
    ]
    newer = run.step_spills(1) / ".gen.dp03.a009.h5.host.1.0.tmp"
    for path in (*litter, newer):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    recover(run, run.claim_attempt("s"), TRAINED_BY)
    assert not any(path.exists() for path in litter) and newer.exists()


# ── processes ─────────────────────────────────────────────────────────────────────────────────────────────────────────
def start(action: Callable[[], object]) -> int:
    """Fork a process that exits with 75 when it notices that it is superseded."""
    pid = os.fork()
    if pid == 0:
        try:
            action()
        except StoppedError:
            os._exit(75)
        except BaseException:
            os._exit(1)
        os._exit(0)
    return pid


def code_of(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.fixture
def alone(root: Path) -> RunDirectory:
    """A finished run that nobody disturbed."""
    run = make_run(root / "alone")
    Miniature(run, root / "alone.notes").go()
    return run


def test_of_two_resumes_at_once_one_counts_and_nothing_is_lost(root: Path, alone: RunDirectory) -> None:
    for repetition in range(8):
        run, notes = make_run(root / f"run{repetition}"), root / f"notes{repetition}"
        Miniature(run, notes).go(2)
        pids = [start(Miniature(run, notes).go) for _ in range(2)]
        codes = [code_of(pid) for pid in pids]
        assert set(codes) <= {0, 75} and 0 in codes
        assert outcome(run) == outcome(alone)
        assert plan_next_attempt(run, MINIATURE_TRAINED_BY).damage == ()


class FreezeAt:
    """SIGSTOP to this very process when the `number`-th point (from 0) is passed."""

    def __init__(self, number: int) -> None:
        self._left = number

    def __call__(self, _point: str) -> None:
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGSTOP)
        self._left -= 1


@pytest.mark.slow
def test_frozen_process_of_an_old_attempt_that_wakes_up_changes_nothing(root: Path, alone: RunDirectory) -> None:
    for number in range(3, 200, 7):
        run, notes = make_run(root / f"run{number}"), root / f"notes{number}"
        pid = start(Miniature(RunDirectory(run.root, FreezeAt(number)), notes).go)
        _, status = os.waitpid(pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            break
        Miniature(run, notes).go()
        os.kill(pid, signal.SIGCONT)
        assert code_of(pid) != 0
        assert outcome(run) == outcome(alone)
        assert plan_next_attempt(run, MINIATURE_TRAINED_BY).damage == ()
    assert number > 100
