"""A run killed, filled up or damaged anywhere ends with the bits of one that was left alone."""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.kills import FullAt, KillAt, Recorder, in_child
from support.miniature import TRAINED_BY, Miniature, executions, make_run, outcome

from hpcrl.durable.append_log import DiskFullError
from hpcrl.durable.files import is_temporary
from hpcrl.durable.history import read_history
from hpcrl.durable.journal import Done, Trained
from hpcrl.durable.recovery import UnitKey, plan_next_attempt, survey_run
from hpcrl.durable.rundir import RunDirectory

WRITES = (".write", ".synced", ".published", ".before", ".after", ".linked")


@dataclass
class Case:
    """A run directory of its own for every case, and what is expected of all."""

    root: Path
    expected: Mapping[str, object]
    points: list[str]
    made: int = 0

    def new(self) -> RunDirectory:
        self.made += 1
        return make_run(self.root / f"run{self.made}")

    def notes(self, run: RunDirectory) -> Path:
        return run.root.with_suffix(".notes")

    def kill(self, run: RunDirectory, number: int) -> bool:
        """Let one attempt run in a child that is killed at the `number`-th point; False if it got to its end."""
        code = in_child(lambda: Miniature(RunDirectory(run.root, KillAt(number)), self.notes(run)).go())
        assert code in (-9, 0)
        return code == -9

    def finish(self, run: RunDirectory) -> int:
        """One more attempt, undisturbed; returns its number."""
        last = Miniature(RunDirectory(run.root), self.notes(run))
        last.go()
        return last.attempt

    def executed(self, run: RunDirectory, attempt: int, what: str) -> set[UnitKey]:
        return {unit for number, kind, unit in executions(self.notes(run)) if (number, kind) == (attempt, what)}


@pytest.fixture
def case(root: Path) -> Iterator[Case]:
    recorder = Recorder()
    run = make_run(root / "undisturbed")
    Miniature(RunDirectory(run.root, recorder), root / "undisturbed.notes").go()
    yield Case(root, outcome(run), recorder.points)


def changing(points: list[str]) -> list[int]:
    """Without points at which the disk is as at the next: between an operation's end and the next one's beginning."""
    following = enumerate(zip(points, [*points[1:], ""], strict=True))
    return [number for number, (point, after) in following if not _is_idle(point, after)]


def _is_idle(point: str, after: str) -> bool:
    if point.endswith(".write"):
        return after == point
    return point.endswith((".published", ".after")) and after == "journal.before"


def telling(points: list[str]) -> list[int]:
    """Of each kind of point the first two and the last passage."""
    passages: dict[str, list[int]] = {}
    for number, point in enumerate(points):
        passages.setdefault(point, []).append(number)
    return sorted({number for numbers in passages.values() for number in (*numbers[:2], numbers[-1])})


def finished_units(run: RunDirectory) -> set[UnitKey]:
    """The units that the next attempt will believe to be finished."""
    events = [line.event for line in read_history(run).lines]
    done = {UnitKey(event.step, event.call, event.part) for event in events if isinstance(event, Done)}
    return done | {UnitKey(event.step, event.call, 0) for event in events if isinstance(event, Trained)}


def check_survives(case: Case, run: RunDirectory) -> None:
    """Nothing looks damaged, nothing finished is run again, and the end is the expected one."""
    plan = plan_next_attempt(run, TRAINED_BY)
    assert plan.damage == () and not plan.lost
    finished = finished_units(run)
    attempt = case.finish(run)
    assert not case.executed(run, attempt, "run") & finished
    assert case.executed(run, attempt, "replay") == {UnitKey(line.step, line.call, 0) for line in plan.replay}
    assert outcome(run) == case.expected
    litter = [path for path in run.root.rglob("*") if is_temporary(path.name)]
    assert all(run.attempts in path.parents for path in litter)


POINTS = pytest.mark.parametrize("chosen", [telling, pytest.param(changing, marks=pytest.mark.slow)])


@POINTS
def test_run_killed_at_any_point_ends_like_one_left_alone(
    case: Case, chosen: Callable[[list[str]], Sequence[int]]
) -> None:
    for number in chosen(case.points):
        run = case.new()
        assert case.kill(run, number), case.points[number]
        check_survives(case, run)


@POINTS
def test_recovery_killed_at_any_point_can_be_recovered_from(
    case: Case, chosen: Callable[[list[str]], Sequence[int]]
) -> None:
    middle = [i for i, point in enumerate(case.points) if point == "spill.published"][-2]
    run = case.new()
    case.kill(run, middle)
    recorder = Recorder()
    Miniature(RunDirectory(run.root, recorder), case.notes(run)).go()
    until = recorder.points.index("journal.after") + 1
    assert {"claim.made", "adopt.linked", "adopted.synced"} <= set(recorder.points[:until])
    for number in chosen(recorder.points[:until]):
        run = case.new()
        case.kill(run, middle)
        assert case.kill(run, number)
        check_survives(case, run)


def test_run_killed_again_and_again_makes_progress_and_ends_the_same(case: Case) -> None:
    for stride in (48, 64, 90):
        run = case.new()
        kills = 0
        while case.kill(run, stride):
            kills += 1
            assert kills < len(case.points)
        assert kills >= 2
        assert outcome(run) == case.expected
        notes = [unit for _, what, unit in executions(case.notes(run)) if what == "run"]
        assert set(notes) == finished_units(run)


def test_full_disk_at_any_write_names_the_path_and_the_run_goes_on_from_there(case: Case) -> None:
    for number in telling(case.points):
        if not case.points[number].endswith(WRITES):
            continue
        run = case.new()
        with pytest.raises(DiskFullError, match=f"no room for {run.root}/"):
            Miniature(RunDirectory(run.root, FullAt(number)), case.notes(run)).go()
        assert not [path for path in run.root.rglob("*") if is_temporary(path.name)]
        check_survives(case, run)


def test_full_disk_while_recovering_leaves_the_run_to_the_next_attempt(case: Case) -> None:
    middle = case.points.index("prune.unlink")
    run = case.new()
    case.kill(run, middle)
    recorder = Recorder()
    Miniature(RunDirectory(run.root, recorder), case.notes(run)).go()
    recovering = recorder.points[: recorder.points.index("journal.after") + 1]
    for number in (i for i in telling(recovering) if recovering[i].endswith(WRITES)):
        run = case.new()
        case.kill(run, middle)
        with pytest.raises(DiskFullError, match=f"no room for {run.root}/"):
            Miniature(RunDirectory(run.root, FullAt(number)), case.notes(run)).go()
        check_survives(case, run)


def cut_in_half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def delete(path: Path) -> None:
    path.unlink()


@pytest.fixture
def broken_off(case: Case) -> RunDirectory:
    """A run that was killed in the middle, and again shortly before its end."""
    run = case.new()
    for part in (2, 3):
        case.kill(run, case.points.index("journal.after", len(case.points) // part))
    return run


@pytest.mark.parametrize("damage", [cut_in_half, empty, flip_a_bit, delete])
def test_run_with_any_file_damaged_names_it_where_it_matters_and_ends_the_same(
    case: Case, broken_off: RunDirectory, damage: Callable[[Path], None]
) -> None:
    needed = files_needed(broken_off)
    if damage is flip_a_bit:  # whoever loads a shard finds that it is another
        needed = {name for name in needed if not name.endswith(".safetensors")}
    names = [path.relative_to(broken_off.root) for path in sorted(broken_off.root.rglob("*")) if path.is_file()]
    assert {name.suffix for name in names} == {".h5", ".safetensors", ".json", ".jsonl"}
    assert needed <= set(map(str, names))
    for name in names:
        if name.name in ("run.json", "key.json"):
            continue
        run = RunDirectory(case.root / f"{damage.__name__}-{name.as_posix().replace('/', '-')}")
        shutil.copytree(broken_off.root, run.root)
        damage(run.root / name)
        named = any(str(name) in text for text in plan_next_attempt(run, TRAINED_BY).damage)
        assert named or str(name) not in needed, name
        case.finish(run)
        assert outcome(run) == case.expected, name


def files_needed(run: RunDirectory) -> set[str]:
    """The files whose damage must not pass unnoticed. Of the newest journal, a lost end may never have been written."""
    survey = survey_run(run, TRAINED_BY.values(), 2)
    shards = [shard for manifest in survey.checkpoints for of_role in manifest.roles.values() for shard in of_role]
    files = {ref.name for ref in (*shards, *survey.manifests.values(), *survey.spills.values())}
    return files | {"attempts/000/journal.jsonl"}
