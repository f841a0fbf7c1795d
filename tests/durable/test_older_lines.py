"""Recovery that reads recent lines alone decides as one that reads all, whatever happened to the run's files."""

import contextlib
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.events import TRAINED_BY, journals
from support.miniature import TRAINED_BY as MINIATURE_TRAINED_BY
from support.miniature import Miniature, make_run

from hpcrl.durable.checkpoints import Manifest, write_manifest
from hpcrl.durable.files import FileRef
from hpcrl.durable.fork import begin_fork, find_fork_point
from hpcrl.durable.history import accepted_inputs, read_history
from hpcrl.durable.journal import (
    Accepted,
    Archived,
    Checkpointed,
    Closed,
    Damaged,
    Event,
    Exported,
    Pruned,
    Stopped,
    Trained,
)
from hpcrl.durable.metrics_log import MetricsLog
from hpcrl.durable.older_lines import FoldedJournal, archives_in
from hpcrl.durable.recovery import RecoveryPlan, plan_next_attempt, plan_surveyed, recover
from hpcrl.durable.retention import LEAST_KEPT
from hpcrl.durable.rundir import RunDirectory
from hpcrl.durable.survey import Survey, survey_of, survey_run

STEPS = 8
KINDS = ("journal.jsonl", "adopted.json", "metrics.jsonl", "MANIFEST.json")


class Writer:
    """Writes what a master would, besides spills and shards."""

    def __init__(self, run: RunDirectory, chance: random.Random) -> None:
        self.run = run
        self._chance = chance
        self._later: list[Event] = []
        self._named: list[Checkpointed] = []
        self._journal: FoldedJournal
        self._metrics: MetricsLog

    def begin(self) -> RecoveryPlan:
        self.attempt = self.run.claim_attempt("s")
        plan, self._journal = recover(self.run, self.attempt, TRAINED_BY)
        self._metrics = MetricsLog(self.run, self.attempt)
        self._metrics.append(row.metrics for row in plan.metrics)
        return plan

    def write(self, events: Sequence[Event]) -> None:
        for event in events:
            self._append(event)
            if isinstance(event, Closed):
                archive = FileRef(self.run.files.name(self.run.archive(event.step, self.attempt)), 1, 1)
                kept = self._chance.choice([archive, None])
                self._later += [Archived(event.step, kept), Exported(event.step, "actor", "export/actor")]
            while self._later and self._chance.random() < 0.3:
                self._journal.append([self._later.pop(0)])
            if self._chance.random() < 0.1:
                self._journal.append([self._chance.choice(self._beside())])

    def _append(self, event: Event) -> None:
        if isinstance(event, Checkpointed):
            event = self._checkpoint(event.step)
        if isinstance(event, Trained) and self._chance.random() < 0.5:
            event = _by_version(event)
        self._journal.append([event])
        if isinstance(event, Closed):
            self._metrics.append([event.metrics])
        if isinstance(event, Checkpointed):
            self._named.append(event)

    def _checkpoint(self, step: int) -> Checkpointed:
        older = self._journal.older_than(step, self._metrics.first)
        manifest = Manifest(step, self.attempt, {"actor": (), "critic": ()}, 0, 2 * step, {}, older)
        return Checkpointed(step, write_manifest(self.run.files, self.run.manifest(step, self.attempt), manifest))

    def _beside(self) -> list[Event]:
        name = self._chance.choice(["data.train", "reward.function"])
        found: list[Event] = [Accepted(name, str(self._chance.random())), Stopped("for a while")]
        if self._named:
            latest = self._named[-1]
            found.append(Damaged(latest.step, latest.manifest, "other bits"))
        if len(kept := sorted({line.step for line in self._named})) > LEAST_KEPT:
            for step in kept[:-LEAST_KEPT]:
                for folder in self.run.checkpoints.glob(f"step-{step:08d}.*"):
                    self.run.files.remove_tree(folder)
            found = [Pruned(kept[-LEAST_KEPT])]
        return found


def _by_version(event: Trained) -> Trained:
    return Trained(*(getattr(event, name) for name in event.__struct_fields__[:6]), version=event.step)


def damage(run: RunDirectory, chance: random.Random) -> None:
    """Anything that may happen to one of the files that recovery decides by."""
    files = sorted(path for kind in KINDS for path in run.root.rglob(kind) if path.stat().st_size)
    path = chance.choice([*files, *(path for path in files if path.name == "journal.jsonl")])
    data = bytearray(path.read_bytes())
    lines = bytes(data).splitlines(keepends=True)
    first = chance.randrange(len(lines))
    what = chance.choice(["flipped", "cut", "lines lost", "gone", "torn"])
    if what == "flipped":
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    elif what == "cut":
        del data[chance.randrange(len(data)) :]
    elif what == "lines lost":
        data = bytearray(b"".join(lines[:first] + lines[first + chance.randrange(1, 4) :]))
    elif what == "torn":
        data += b'{"crc":"00000000","ev'
    path.unlink()
    if what != "gone":
        path.write_bytes(data)


def decided(survey: Survey, changed_by: dict[str, str]) -> tuple[object, ...]:
    """All that a new attempt takes from a survey."""
    older = survey.history.older
    archived = archives_in(survey.events) | (set() if older is None else set(older.lines.archived))
    plan = plan_surveyed(survey, survey.checkpoints, survey.spills, changed_by)
    return plan, survey.history.prefixes(survey.count), survey.manifests, survey.spills, archived


def assert_same(run: RunDirectory, changed_by: dict[str, str]) -> None:
    roles = changed_by.values()
    recent = survey_run(run, roles, LEAST_KEPT)
    whole = survey_of(run, read_history(run), roles, LEAST_KEPT)
    assert decided(recent, changed_by) == decided(whole, changed_by)
    assert accepted_inputs(read_history(run, recent=1)) == accepted_inputs(read_history(run))


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(journals(STEPS), st.randoms(use_true_random=False), st.integers(0, 2), st.integers(0, 2))
def test_recent_lines_decide_as_all_do_wherever_damage_is(
    events: list[Event], chance: random.Random, deaths: int, hits: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        writer = Writer(make_run(Path(folder) / "run"), chance)
        ends = sorted(chance.randrange(len(events) + 1) for _ in range(deaths))
        for begin, end in zip([0, *ends], [*ends, len(events)], strict=True):
            writer.begin()
            writer.write(events[begin:end])
        assert_same(writer.run, TRAINED_BY)
        for _ in range(hits):
            damage(writer.run, chance)
            assert_same(writer.run, TRAINED_BY)
            writer.begin()
            assert_same(writer.run, TRAINED_BY)


class Killed(BaseException):
    """Raised where a process would have died."""


class KillAt:
    """Raises when the `number`-th point (from 0) is passed."""

    def __init__(self, number: int) -> None:
        self._left = number

    def __call__(self, _point: str) -> None:
        self._left -= 1
        if self._left < 0:
            raise Killed


@pytest.mark.slow
@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(st.randoms(use_true_random=False))
def test_recent_lines_decide_as_all_do_in_runs_that_are_killed_and_damaged(chance: random.Random) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run, notes = make_run(Path(folder) / "run"), Path(folder) / "notes"
        for _ in range(chance.randrange(1, 5)):
            with contextlib.suppress(Killed):
                Miniature(RunDirectory(run.root, KillAt(chance.randrange(400))), notes).go(STEPS)
            assert_same(run, MINIATURE_TRAINED_BY)
            if chance.random() < 0.5:
                damage(run, chance)
                assert_same(run, MINIATURE_TRAINED_BY)


def test_lines_before_the_steps_that_the_kept_checkpoints_need_are_not_parsed(root: Path) -> None:
    run = make_run(root / "run")
    Miniature(run, root / "notes").go(STEPS)
    recent, whole = read_history(run, recent=LEAST_KEPT), read_history(run)
    assert recent.older is not None and recent.older.lines.step == STEPS - 2
    assert recent.lines == whole.lines[-len(recent.lines) :] and 2 * len(recent.lines) < len(whole.lines)
    assert survey_run(run, MINIATURE_TRAINED_BY.values(), LEAST_KEPT).history == recent
    Miniature(run, root / "notes").go(STEPS + 1)
    assert len(plan_next_attempt(run, MINIATURE_TRAINED_BY).metrics) == STEPS + 1


def test_a_fork_reads_recent_lines_of_its_own(root: Path) -> None:
    parent, run = make_run(root / "parent"), make_run(root / "run")
    Miniature(parent, root / "notes").go(STEPS)
    begin_fork(run, find_fork_point(parent, STEPS, MINIATURE_TRAINED_BY.values()))
    assert read_history(run, recent=1) == read_history(run), "what its parent's lines amount to says nothing here"
    for steps in (STEPS + 2, STEPS + 4):
        Miniature(run, root / "notes").go(steps)
        assert_same(run, MINIATURE_TRAINED_BY)
    older = read_history(run, recent=LEAST_KEPT).older
    assert older is not None and [row.step for row in older.rows] == [*range(1, STEPS + 2)]


def test_where_an_older_byte_differs_all_lines_are_read(root: Path) -> None:
    run = make_run(root / "run")
    Miniature(run, root / "notes").go(STEPS)
    for path in (run.journal(0), run.metrics(0)):
        data = bytearray(path.read_bytes())
        data[len(data) // 4] ^= 1
        path.write_bytes(data)
        assert read_history(run, recent=LEAST_KEPT) == read_history(run)
        data[len(data) // 4] ^= 1
        path.write_bytes(data)
        assert read_history(run, recent=LEAST_KEPT) != read_history(run)
