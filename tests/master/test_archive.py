"""What is kept of steps' samples by a run: of which steps, and what becomes of it when the run is struck."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from support.archives import archive_lines, archives, kept_rows
from support.chaos import begin, create_run, finish, outputs, remains, toy_experiment, whole_run
from support.faults import Strike, Strikes

from hpcrl.config.control import ControlConfig, Frequency
from hpcrl.config.experiment import to_dict
from hpcrl.config.samples import SamplesConfig
from hpcrl.durable.history import read_history
from hpcrl.durable.journal import Archived, Checkpointed, Closed, Compacted, Pruned, Trained
from hpcrl.durable.rundir import RunDirectory
from hpcrl.recipes.toy import ToyExperiment

STEPS = 6
KEPT = SamplesConfig()


def experiment(samples: SamplesConfig = KEPT, compact: bool = True) -> ToyExperiment:
    """A checkpoint after each step, so that all spills but those of the last steps are pruned."""
    made = toy_experiment(lost_after_s=60.0, start_timeout_s=60.0)
    control = ControlConfig(steps=STEPS, checkpoint=Frequency(steps=1), evaluate=Frequency(steps=3), compact=compact)
    return replace(made, control=control, samples=samples)


@pytest.mark.parametrize("compact", [True, False])
def test_every_step_has_an_archive_when_its_spills_are_pruned(folder: Path, compact: bool) -> None:
    run = whole_run(folder, experiment(compact=compact))
    events = [line.event for line in read_history(run).lines]
    assert any(isinstance(event, Compacted) for event in events) == compact
    assert max(event.before_step for event in events if isinstance(event, Pruned)) == STEPS - 1
    assert len(run.files.listing(run.spills)) == 2 and archives(run).keys() == set(range(STEPS + 1))
    ids = {step: tuple(sample for at, sample, _ in kept_rows(run) if at == step) for step in range(STEPS + 1)}
    assert ids == remains(run).trained
    assert {at for at, *_ in kept_rows(run, "eval")} == {0, 3, 6}
    (_, _, columns), *_ = kept_rows(run)
    assert columns.keys() == {"x", "y", "r", "z", "v", "t", "record"}


def test_so_many_rows_are_kept_and_the_same_ones_whenever_they_come(folder: Path) -> None:
    run = whole_run(folder, experiment(SamplesConfig(per_step=2, per_evaluation=1)))
    found = kept_rows(run)
    assert all(sum(at == step for at, *_ in found) == 2 for step in range(1, STEPS + 1))
    assert len({sample for _, sample, _ in kept_rows(run, "eval")}) == 1 and len(kept_rows(run, "eval")) == 3


def test_a_step_of_which_nothing_is_kept_has_a_line_all_the_same(folder: Path) -> None:
    run = whole_run(folder, experiment(SamplesConfig(per_step=0, per_evaluation="all")))
    lines = archive_lines(run)
    assert {step for step, line in lines.items() if line.samples} == {0, 3, 6} and not any(
        line.lost for line in lines.values()
    )
    assert kept_rows(run) == [] and len(kept_rows(run, "eval")) == 60


def begun_without_archives(folder: Path, point: str = "manifest.published", compact: bool = False) -> RunDirectory:
    """Killed at its third checkpoint, while the first archive was still to be made."""
    run = create_run(folder / "run", experiment(compact=compact))
    late = Strike(folder, "late", "housekeeper-0", "archive.write", "SLEEP")
    kill = Strike(folder, "kill", "master", point, "KILL", "all", 3)
    jobs = begin(run, "first", Strikes((late, kill)))
    jobs.wait_for("master", 60)
    jobs.kill_all()
    assert kill.marker.exists() and archives_so_far(run) == []
    return run


def archives_so_far(run: RunDirectory) -> list[int]:
    return [line.event.step for line in read_history(run).lines if isinstance(line.event, Archived)]


def test_archives_that_nobody_made_are_made_of_spills_older_than_every_checkpoint(folder: Path) -> None:
    (folder / "whole").mkdir()
    expected = archives(whole_run(folder / "whole", experiment(compact=False)))
    run = begun_without_archives(folder)
    assert finish(run) == [0], outputs(run)
    assert archives(run) == expected


def test_what_is_damaged_before_it_is_archived_is_told_and_holds_up_nothing(folder: Path) -> None:
    """Of a step before the checkpoint nothing is computed again."""
    run = begun_without_archives(folder)
    path = run.spill(1, "rew_inf", 0, 0)
    path.write_bytes(path.read_bytes()[:-1])
    assert finish(run) == [0], outputs(run)
    lines = archive_lines(run)
    assert [step for step, line in lines.items() if line.lost] == [1]
    assert lines[1].lost == f"{run.files.name(path)}: not whole" and all(line.samples for line in lines.values())
    (_, _, first), *_ = kept_rows(run)
    assert "r" not in first and "y" in first


def test_spills_that_a_replay_may_read_stay_where_they_are(folder: Path) -> None:
    """Those of a step that an older attempt has closed: only its archive is still to be made."""
    run = begun_without_archives(folder, "manifest.synced", compact=True)
    before = {line.event.step for line in read_history(run).lines if isinstance(line.event, Closed)}
    assert finish(run) == [0], outputs(run)
    merged = {line.event.step for line in read_history(run).lines if isinstance(line.event, Compacted)}
    assert merged and not merged & before and archives(run).keys() == set(range(STEPS + 1))


def damage_what_was_shown(run: RunDirectory) -> int:
    """By the second part of the newest train step of the actor, which is to be replayed; of which step that is."""
    events = [line.event for line in read_history(run).lines]
    trained = [event for event in events if isinstance(event, Trained) and event.call == "actor_train"]
    assert trained[-1].step > max(event.step for event in events if isinstance(event, Checkpointed))
    path = run.files.path(trained[-1].shown[1])
    path.write_bytes(path.read_bytes()[:-1])
    return trained[-1].step


def test_what_a_train_step_has_shown_and_is_damaged_a_replay_writes_again(folder: Path) -> None:
    """Of the part that is damaged, and nothing else: its line comes once more, with the other part's file as it was."""
    (folder / "whole").mkdir()
    expected = archives(whole_run(folder / "whole", experiment(compact=False)))
    run = begun_without_archives(folder, "manifest.synced")
    step = damage_what_was_shown(run)
    assert finish(run) == [0], outputs(run)
    assert archives(run) == expected
    lines = [line.event for line in read_history(run).lines]
    of_step = [
        event for event in lines if isinstance(event, Trained) and (event.step, event.call) == (step, "actor_train")
    ]
    first, again = ([Path(file.name).name for file in event.shown] for event in of_step)
    assert first == ["actor_train.dp00.a000.h5", "actor_train.dp01.a000.h5"]
    assert again == ["actor_train.dp00.a001.h5", "actor_train-again1.dp01.a001.h5"]
    assert of_step[1] == msgspec.structs.replace(of_step[0], shown=of_step[1].shown)


def test_with_other_settings_nobody_waits_for_what_is_not_kept_any_more(folder: Path) -> None:
    run = begun_without_archives(folder, "manifest.synced")
    damage_what_was_shown(run)
    settings = to_dict(experiment(SamplesConfig(per_step=0), compact=False))
    run.submit_settings("s0", run.add_settings(settings))
    jobs = begin(run, "s0")
    assert jobs.wait_for("master", 60) == 0, outputs(run)
    jobs.wait(60)
    assert {step for step, line in archive_lines(run).items() if line.samples} == {0, 3, 6}
