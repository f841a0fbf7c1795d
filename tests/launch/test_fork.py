"""A fork goes on from a checkpoint as its parent did, unless its settings say otherwise; the parent is left alone."""

import errno
import os
import shutil
from pathlib import Path

import msgspec
import pytest
from support.chaos import Remains, begin, create_run, finish, outputs, remains, toy_experiment
from support.hosts import write_task

from hpcrl.cli.main import main
from hpcrl.config.changes import with_settings
from hpcrl.config.cluster import ClusterConfig
from hpcrl.config.control import ControlConfig, Frequency
from hpcrl.config.data import DataConfig
from hpcrl.config.experiment import to_dict
from hpcrl.durable.journal import Forked
from hpcrl.durable.origin import forked_from
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ConfigurationError
from hpcrl.inspect.status_text import status_text
from hpcrl.inspect.views.status import read_status
from hpcrl.launch.fork import make_fork, plan_fork
from hpcrl.recipes.sft import SFTExperiment, SFTModelConfig
from hpcrl.recipes.toy import ToyExperiment


def files_of(run: RunDirectory) -> dict[Path, tuple[int, int]]:
    return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in run.root.rglob("*")}


def forked(parent: RunDirectory, step: int, *overrides: str) -> RunDirectory:
    root = parent.root.with_name(f"{parent.root.name}-{step}")
    return make_fork(plan_fork(parent.root, step, overrides, root))


def toy(steps: int = 6) -> ToyExperiment:
    """One that keeps all of its checkpoints, of steps 2, 4 and 6."""
    values = to_dict(toy_experiment(steps, start_timeout_s=60.0, lost_after_s=10.0, orphan_timeout_s=10.0))
    values["control"]["keep_checkpoints"] = 9
    return msgspec.convert(values, ToyExperiment)


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    run = create_run(tmp_path_factory.mktemp("parent") / "run", toy())
    assert finish(run, timeout_s=90.0)[-1] == 0
    return run


def after(found: Remains, step: int) -> dict[int, tuple[str, ...]]:
    return {number: ids for number, ids in found.ids.items() if number > step}


def assert_goes_on_as(run: RunDirectory, parent: RunDirectory, step: int) -> None:
    theirs, ours = remains(parent), remains(run)
    assert ours.parameters == theirs.parameters and ours.state == theirs.state
    assert ours.metrics == theirs.metrics and after(ours, step) == after(theirs, step)


def test_unchanged_it_gives_the_same_bits_and_leaves_its_parent_as_it_was(parent: RunDirectory) -> None:
    before = files_of(parent)
    run = forked(parent, 2)
    assert finish(run, timeout_s=90.0)[-1] == 0
    assert files_of(parent) == before
    assert_goes_on_as(run, parent, 2)
    assert forked_from(run) == Forked(str(parent.root), 2, 0)
    status = read_status(run.root)
    assert f"fork of  {parent.root}, step 2" in status_text(status)

    again = forked(run, 4)
    assert finish(again, timeout_s=90.0)[-1] == 0
    assert_goes_on_as(again, parent, 4)
    assert forked_from(again) == Forked(str(run.root), 4, 0)


def test_with_other_settings_it_goes_another_way_and_further(parent: RunDirectory) -> None:
    run = forked(parent, 4, "control.steps=8")
    assert run.read_run().experiment["control"]["steps"] == 8
    assert finish(run, timeout_s=90.0)[-1] == 0
    ours, theirs = remains(run), remains(parent)
    assert [row for row in ours.metrics if row["step"] <= 5] == [row for row in theirs.metrics if row["step"] <= 5]
    assert max(row["step"] for row in ours.metrics) == 8


def test_it_begins_with_the_settings_in_force_at_its_step(tmp_path: Path) -> None:
    run = create_run(tmp_path / "run", toy(4))
    assert finish(run, timeout_s=90.0)[-1] == 0
    longer = with_settings(run.read_run().experiment, {"control.steps": 6})
    run.submit_settings("longer", run.add_settings(longer))
    jobs = begin(run, "longer")
    assert jobs.wait_for("master", 60.0) == 0, outputs(run)
    jobs.wait(90)
    early, late = (plan_fork(run.root, step, (), tmp_path / f"of-{step}") for step in (2, 6))
    assert (early.point.settings, early.settings.after.control.steps) == (0, 4)
    assert (late.point.settings, late.settings.after.control.steps) == (1, 6)


def test_a_parent_that_prunes_what_was_linked_takes_nothing_away(tmp_path: Path) -> None:
    run = create_run(tmp_path / "run", toy(4))
    assert finish(run, timeout_s=90.0)[-1] == 0
    child = forked(run, 2)
    for file in sorted(run.checkpoints.rglob("*.*"), reverse=True):
        if file.is_file():
            os.unlink(file)
    assert finish(child, timeout_s=90.0)[-1] == 0


def test_a_filesystem_without_links_has_copies(
    parent: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.link

    def across(source: Path, target: Path, **how: bool) -> None:
        if str(source).startswith(str(parent.root)):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        real(source, target, **how)

    fork = plan_fork(parent.root, 2, (), tmp_path / "copy")
    with monkeypatch.context() as patch:
        patch.setattr(os, "link", across)
        run = make_fork(fork)
    shards = list(run.checkpoints.rglob("*.safetensors"))
    assert shards and all(shard.stat().st_nlink == 1 for shard in shards)
    assert finish(run, timeout_s=90.0)[-1] == 0
    assert_goes_on_as(run, parent, 2)


def test_a_checkpoint_that_is_pruned_meanwhile_is_refused_and_a_later_one_serves(
    parent: RunDirectory, tmp_path: Path
) -> None:
    run = RunDirectory.open(Path(shutil.copytree(parent.root, tmp_path / "copy")))
    fork = plan_fork(run.root, 2, (), tmp_path / "new")
    for path in run.checkpoints.glob("step-00000002*"):
        shutil.rmtree(path)
    with pytest.raises(ConfigurationError, match=r"--step 2: .* pruned the checkpoint meanwhile\. Name a later step\."):
        make_fork(fork)
    assert origin_of(make_fork(plan_fork(run.root, 4, (), tmp_path / "new"))) == 4


def test_a_copy_that_differs_is_refused_and_the_next_try_serves(
    parent: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDirectory.open(Path(shutil.copytree(parent.root, tmp_path / "copy")))
    real, spoilt = os.link, list[tuple[Path, bytes]]()

    def across(source: Path, target: Path, **how: bool) -> None:
        if not str(source).startswith(str(run.root)):
            return real(source, target, **how)
        if not spoilt:
            spoilt.append((source, source.read_bytes()))
            source.write_bytes(source.read_bytes()[:-1])
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(os, "link", across)
    fork = plan_fork(run.root, 4, (), tmp_path / "new")
    with pytest.raises(ConfigurationError, match=r"changed while it was copied\. Try again\."):
        make_fork(fork)
    ((path, sound),) = spoilt
    path.write_bytes(sound)
    assert origin_of(make_fork(plan_fork(run.root, 4, (), tmp_path / "new"))) == 4


def origin_of(run: RunDirectory) -> int:
    """The step that it begins from."""
    origin = forked_from(run)
    assert origin is not None
    return origin.step


@pytest.mark.parametrize("step", [0, 3, 7])
def test_a_step_without_a_checkpoint_is_refused_with_those_that_have_one(parent: RunDirectory, step: int) -> None:
    with pytest.raises(
        ConfigurationError, match=rf"--step {step}: .* has no checkpoint of it; it has 2, 4, 5, 6|2, 4, 6"
    ):
        plan_fork(parent.root, step, (), None)
    plan_fork(parent.root, 4, (), None)


def test_what_a_checkpoint_fixes_is_refused(parent: RunDirectory) -> None:
    with pytest.raises(
        ConfigurationError, match=r"toy\.width = 9 .* nor in a fork of it.* Submit a new run with toy\.width\."
    ):
        plan_fork(parent.root, 2, ["toy.width=9"], None)


def test_roles_that_change_are_those_of_the_checkpoint(parent: RunDirectory) -> None:
    with pytest.raises(ConfigurationError) as raised:
        plan_fork(parent.root, 2, ["toy.reference_ema.decay=0.5"], None)
    (problem,) = raised.value.problems
    assert "toy.reference_ema.decay as given the roles that change are actor, critic, reference" in problem
    assert "the checkpoint of step 2 has actor, critic. Set what you change" in problem
    plan_fork(parent.root, 2, ["toy.reference_ema.every=2"], None)


def test_a_damaged_checkpoint_is_named_and_another_step_serves(tmp_path: Path) -> None:
    run = create_run(tmp_path / "run", toy(4))
    assert finish(run, timeout_s=90.0)[-1] == 0
    shard = next(path for path in run.checkpoints.rglob("*.safetensors") if "step-00000002" in str(path))
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(ConfigurationError, match="--step 2: the checkpoint is damaged"):
        plan_fork(run.root, 2, (), None)
    plan_fork(run.root, 4, (), None)


def test_the_torch_host_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    write_task(tmp_path)
    experiment = SFTExperiment(
        control=ControlConfig(steps=3, checkpoint=Frequency(steps=1), keep_checkpoints=9),
        cluster=ClusterConfig(device="cpu", workers_per_node=1, start_timeout_s=120.0),
        data=DataConfig(train=str(tmp_path / "rows.jsonl"), batch_size=4),
        actor=SFTModelConfig(path=str(tmp_path / "model")),
    )
    run = create_run(tmp_path / "run", experiment)
    assert finish(run, timeout_s=120.0)[-1] == 0
    child = forked(run, 1)
    assert finish(child, timeout_s=120.0)[-1] == 0
    assert_goes_on_as(child, run, 1)


def test_the_command_says_what_it_would_make_and_makes_nothing(
    parent: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "new"
    words = ["fork", str(parent.root), "--step", "4", "--control.steps", "9", "--run-dir", str(root), "--dry-run"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert f"{root} begins from {parent.root}, step 4" in said and "with control.steps = 9 (was 6)" in said
    assert not root.exists()
