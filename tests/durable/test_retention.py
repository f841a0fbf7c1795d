from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.kills import KillAt, Recorder, in_child
from support.miniature import make_run

from hpcrl.data.samples import SequenceSample
from hpcrl.durable.archives import About, write_archive
from hpcrl.durable.checkpoints import Manifest, checkpoint_damage, write_manifest, write_shard
from hpcrl.durable.files import DamagedFileError
from hpcrl.durable.retention import Pruning, compact_step, prune, remove_litter, remove_parts
from hpcrl.durable.rundir import RunDirectory
from hpcrl.durable.spills import SpillRef, group_name, read_parts, read_spill, write_spill

ROLES = ("actor", "critic")


def checkpoint(run: RunDirectory, step: int, attempt: int = 0) -> Manifest:
    folder = run.checkpoint(step, attempt)
    shards = {role: (write_shard(run.files, folder, role, 0, {"w": np.ones(3)}, {}),) for role in ROLES}
    manifest = Manifest(step, attempt, shards, 0, step, {})
    write_manifest(run.files, run.manifest(step, attempt), manifest)
    return manifest


def spill(run: RunDirectory, step: int, part: int = 0, attempt: int = 0) -> SpillRef:
    sample = SequenceSample.from_rows([f"r{step}"], {"y": [np.arange(step + part)]})
    return SpillRef(write_spill(run.files, run.spill(step, "gen", part, attempt), sample))


def steps_there(run: RunDirectory) -> tuple[list[str], list[str]]:
    return run.files.listing(run.checkpoints), run.files.listing(run.spills)


@pytest.fixture
def run(root: Path) -> RunDirectory:
    return make_run(root / "run")


def test_what_is_older_than_the_oldest_kept_checkpoint_goes(run: RunDirectory) -> None:
    manifests = [checkpoint(run, step) for step in (2, 4, 6)]
    for step in range(1, 7):
        spill(run, step)
    done = prune(run, 0, manifests, keep=2)
    assert done is not None and done.before_step == 4
    assert steps_there(run) == (
        ["step-00000004.a000", "step-00000006.a000"],
        [f"step-{step:08d}" for step in (4, 5, 6)],
    )
    assert len(done.removed) == 3 + 3
    assert prune(run, 0, manifests[1:], keep=2) is None


@pytest.mark.parametrize("keep", [0, 1, 2])
def test_at_least_two_checkpoints_are_kept(run: RunDirectory, keep: int) -> None:
    manifests = [checkpoint(run, step) for step in (1, 2)]
    spill(run, 1)
    assert prune(run, 0, manifests[:1], keep) is None
    assert prune(run, 0, manifests, keep) is None
    assert prune(run, 0, [*manifests, checkpoint(run, 3)], keep) is not None
    assert steps_there(run)[0] == ["step-00000002.a000", "step-00000003.a000"]


def test_litter_and_half_checkpoints_of_the_past_go_too_and_newer_names_stay(run: RunDirectory) -> None:
    manifests = [checkpoint(run, step, attempt=1) for step in (3, 4)]
    write_shard(run.files, run.checkpoint(2, 0), "actor", 0, {}, {})
    spill(run, 1, attempt=0)
    spill(run, 1, attempt=2)
    write_shard(run.files, run.checkpoint(1, 2), "actor", 0, {}, {})
    (run.spills / ".step-00000002.a000.h5.host.1.0.tmp").touch()
    (run.step_spills(1) / ".gen.dp00.a001.h5.host.1.0.tmp").touch()
    (run.spills / "README").touch()
    done = prune(run, 1, manifests, keep=2)
    assert done is not None and len(done.removed) == 4
    assert steps_there(run) == (
        ["step-00000001.a002", "step-00000003.a001", "step-00000004.a001"],
        ["README", "step-00000001"],
    )
    assert run.files.listing(run.step_spills(1)) == ["gen.dp00.a002.h5"]


def test_prune_killed_at_any_point_leaves_no_checkpoint_without_its_shards_and_spills(root: Path) -> None:
    def prepare(name: str) -> tuple[RunDirectory, list[Manifest]]:
        run = make_run(root / name)
        for step in range(1, 6):
            spill(run, step)
        return run, [checkpoint(run, step) for step in (1, 2, 4, 5)]

    def prune_it(run: RunDirectory, manifests: list[Manifest], fault: Callable[[str], None]) -> Pruning | None:
        return prune(RunDirectory(run.root, fault), 0, manifests, keep=2)

    recorder = Recorder()
    prune_it(*prepare("whole"), recorder)
    assert recorder.points == ["prune.unlink"] * (2 * 3 + 3)
    for number in range(len(recorder.points)):
        run, manifests = prepare(f"run{number}")
        assert in_child(lambda n=number, r=run, m=manifests: prune_it(r, m, KillAt(n))) == -9
        for manifest in manifests:
            if run.manifest(manifest.step, 0).exists():
                assert checkpoint_damage(run.files, manifest, ROLES) == []
                behind = range(manifest.step + 1, 6)
                assert all(run.spill(step, "gen", 0, 0).exists() for step in behind)
        prune_it(run, manifests, Recorder())
        assert steps_there(run)[1] == [f"step-{step:08d}" for step in (4, 5)]


def test_compacted_step_reads_like_its_parts(run: RunDirectory) -> None:
    parts = {("gen", part): spill(run, 3, part) for part in range(3)}
    whole = {unit: read_spill(run.root / part.path) for unit, part in parts.items()}
    ref = compact_step(run, 0, 3, read_parts(run.files, parts))
    assert remove_parts(run, 0, 3) == tuple(f"spills/step-00000003/gen.dp0{part}.a000.h5" for part in range(3))
    assert not run.step_spills(3).exists()
    for unit, sample in whole.items():
        read = read_spill(run.files.path(ref), group_name(*unit))
        assert read.meta == sample.meta and np.array_equal(read.data["y"], sample.data["y"])


def test_parts_of_newer_attempts_are_not_removed(run: RunDirectory) -> None:
    for attempt in (0, 1, 2):
        spill(run, 3, attempt=attempt)
    remove_parts(run, 1, 3)
    assert run.files.listing(run.step_spills(3)) == ["gen.dp00.a002.h5"]
    assert remove_parts(run, 1, 9) == ()


def test_step_with_a_damaged_part_is_not_compacted(run: RunDirectory) -> None:
    parts = {("gen", part): spill(run, 3, part) for part in range(2)}
    path = run.root / parts["gen", 1].path
    path.write_bytes(b"")
    with pytest.raises(DamagedFileError, match=r"gen\.dp01\.a000\.h5 has 0 bytes"):
        compact_step(run, 0, 3, read_parts(run.files, parts))
    assert len(list(run.spills.rglob("*.h5"))) == 2


@pytest.mark.parametrize("number", range(6))
def test_compaction_killed_at_any_point_leaves_every_part_readable(run: RunDirectory, number: int) -> None:
    parts = {("gen", part): spill(run, 3, part) for part in range(2)}

    def compact_and_remove() -> None:
        mine = RunDirectory(run.root, KillAt(number))
        compact_step(mine, 0, 3, read_parts(mine.files, parts))
        remove_parts(mine, 0, 3)

    assert in_child(compact_and_remove) == -9
    published = run.compacted(3, 0).exists()
    for unit, part in parts.items():
        in_part = (run.root / part.path).exists() and run.files.damage(part.file) is None
        assert in_part or (published and len(read_spill(run.compacted(3, 0), group_name(*unit)).ids) == 1)


def test_litter_of_the_attempt_itself_stays(run: RunDirectory) -> None:
    run.files.directory(run.step_spills(1))
    names = [run.step_spills(1) / f".gen.dp00.a00{attempt}.h5.host.1.0.tmp" for attempt in (0, 1, 2)]
    for name in names:
        name.touch()
    assert remove_litter(run, 1) == ("spills/step-00000001/.gen.dp00.a000.h5.host.1.0.tmp",)
    assert [name.exists() for name in names] == [False, True, True]


def test_of_archives_only_what_no_line_names_goes_and_never_the_last_of_a_step_that_is_lost(run: RunDirectory) -> None:
    about = [About(step) for step in (1, 2, 3)]
    named, unnamed, lost = (write_archive(run, 0, each, {}) for each in about)
    newer = write_archive(run, 2, About(1), {})
    assert named.name == "samples/00000/step-00000001.a000.h5"
    assert run.files.name(run.archive(12345, 1)) == "samples/00012/step-00012345.a001.h5"
    assert remove_litter(run, 1, {(1, 0)}, {3}) == (unnamed.name,)
    assert [run.files.path(file).exists() for file in (named, unnamed, lost, newer)] == [True, False, True, True]
