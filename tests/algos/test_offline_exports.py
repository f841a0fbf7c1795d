"""`hpcrl export` of a run on real processes, preempted, stopped or running: what the run exports, loaded by others."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import torch
import transformers
from safetensors.torch import load_file
from support.chaos import begin, create_run, outputs, wait_until, whole_run
from support.exported import check_exports, contents
from support.hosts import write_task
from support.tiny_models import logits_of
from support.tiny_ppo import tiny_ppo

from hpcrl.cli.main import main
from hpcrl.config.control import Frequency
from hpcrl.durable.history import read_history
from hpcrl.durable.journal import Checkpointed, Pruned
from hpcrl.durable.paths import step_of
from hpcrl.durable.rundir import RunDirectory
from hpcrl.engines.flat import new_model
from hpcrl.errors import ExitCode
from hpcrl.inspect.views.exports import Exports
from hpcrl.launch.export import plan_exports
from hpcrl.models.packing import Packing
from hpcrl.recipes.ppo import PPOExperiment

STEPS = 4


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("task")
    write_task(folder)
    return folder


def exporting(task: Path) -> PPOExperiment:
    """Every second step is saved and exported."""
    made = tiny_ppo(task, STEPS, nodes=1, workers=2)
    return replace(made, control=replace(made.control, export=Frequency(steps=2)))


@pytest.fixture(scope="module")
def undisturbed(task: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return whole_run(tmp_path_factory.mktemp("whole"), exporting(task))


@pytest.fixture(scope="module")
def preempted(task: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """All of it was killed once there was a checkpoint of step 2."""
    made = exporting(task)
    run = create_run(
        tmp_path_factory.mktemp("preempted") / "run", replace(made, control=replace(made.control, steps=400))
    )
    jobs = begin(run, "first")
    wait_until(lambda: 2 in saved(run), 90, "a checkpoint")
    jobs.kill_all()
    return run


def saved(run: RunDirectory) -> list[int]:
    events = [line.event for line in read_history(run).lines]
    return [event.step for event in events if isinstance(event, Checkpointed)]


def test_both_roles_of_each_checkpoint_are_what_the_run_exported(undisturbed: RunDirectory, tmp_path: Path) -> None:
    assert check_exports(undisturbed, tmp_path / "offline") == 4


def test_a_preempted_run_gives_the_model_of_one_that_was_left_alone(
    undisturbed: RunDirectory, preempted: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "actor"
    step = saved(preempted)[0]
    assert main(["export", str(preempted.root), "--role", "actor", "--step", str(step), "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"{out}\n"
    assert step == 2 and contents(out) == contents(undisturbed.export("actor", 2)), outputs(preempted)


def test_a_preempted_run_loads_in_transformers_with_the_logits_of_hpcrls_own_model(
    preempted: RunDirectory, tmp_path: Path
) -> None:
    out, tokens = tmp_path / "actor", torch.tensor([3, 5, 7, 11, 2, 9])
    assert main(["export", str(preempted.root), "--role", "actor", "--out", str(out)]) == ExitCode.DONE
    theirs = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    ours = new_model(out, dtype=torch.float32)
    with torch.no_grad():
        expected = theirs(tokens[None]).logits[0]
        found = logits_of(ours, ours.hidden(tokens, Packing.of([len(tokens)])))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    base = transformers.AutoModelForCausalLM.from_pretrained(preempted.configuration()["actor"]["path"])
    assert not torch.allclose(expected, base(tokens[None]).logits[0], atol=1e-3), "it has been trained"


def test_a_running_run_and_other_types(preempted: RunDirectory, tmp_path: Path, task: Path) -> None:
    made = exporting(task)
    run = create_run(tmp_path / "run", replace(made, control=replace(made.control, steps=400)))
    jobs = begin(run, "first")
    try:
        wait_until(lambda: len(saved(run)) >= 2, 90, "two checkpoints")
        assert main(["export", str(run.root), "--role", "actor", "--dtype", "bf16"]) == ExitCode.DONE
    finally:
        jobs.kill_all()
    [folder] = [path for path in (run.exports / "actor").iterdir() if path.suffix == ".bf16"]
    assert "bfloat16" in json.loads((folder / "config.json").read_text()).values()
    step = step_of(folder.name)
    assert step is not None
    [own] = plan_exports(run.root, step, "actor", tmp_path / "fp32")
    assert own.write(lambda _: None)
    half, whole = (load_file(each / "model.safetensors") for each in (folder, tmp_path / "fp32"))
    assert half.keys() == whole.keys()
    assert all(torch.equal(half[name], whole[name].bfloat16()) for name in whole)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--dtype", "fp8"], "--dtype fp8: actor cannot be written in it. There are fp32, bf16, fp64."),
        (["--role", "reference"], "--role reference is not trained in {run}. Those that are: actor, critic."),
        (["--json"], "--json is of the list. Give --list too."),
        (["--list", "--role", "judge"], "--role judge is not trained in {run}. Those that are: actor, critic."),
        (["--list", "--step", "99"], "--step 99: {run} has closed steps up to 4."),
    ],
)
def test_what_there_is_not_is_refused_with_what_there_is(
    undisturbed: RunDirectory, capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    assert main(["export", str(undisturbed.root), *words]) == ExitCode.CONFIGURATION
    assert says.format(run=undisturbed.root) in capsys.readouterr().err


def test_the_list_says_what_can_be_had_and_why_not_the_rest(
    undisturbed: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(undisturbed.root), "--list", "--json"]) == ExitCode.DONE
    view = msgspec.json.decode(capsys.readouterr().out, type=Exports)
    assert [(each.step, each.role, each.shards) for each in view.exportable] == [
        (step, role, 2) for step in (4, 2) for role in ("actor", "critic")
    ]
    assert view.exportable[0].folder == str(undisturbed.export("actor", 4)) and view.exportable[0].bytes > 1000
    assert [(gap.first, gap.last, gap.why) for gap in view.missing] == [
        (step, step, "no checkpoint was due (control.checkpoint)") for step in (3, 1)
    ]
    assert sorted(view.not_trained) == ["reference", "reward"]
    copy = RunDirectory(Path(shutil.copytree(undisturbed.root, tmp_path / "run")))
    (shard,) = copy.checkpoints.glob("step-00000004.*/critic.r000.*")
    shard.write_bytes(shard.read_bytes()[:-1])
    shutil.rmtree(next(copy.checkpoints.glob("step-00000002.*")))
    assert main(["export", str(copy.root), "--list"]) == ExitCode.DONE
    said = capsys.readouterr().out
    assert "step 4: its checkpoint is damaged: " in said and "step 2: its checkpoint cannot be read" in said


def test_the_list_tells_of_removed_checkpoints(preempted: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    pruned = [line.event for line in read_history(preempted).lines if isinstance(line.event, Pruned)]
    assert main(["export", str(preempted.root), "--list", "--json"]) == ExitCode.DONE
    view = msgspec.json.decode(capsys.readouterr().out, type=Exports)
    removed = [gap for gap in view.missing if gap.why == "its checkpoint was removed (control.keep_checkpoints)"]
    assert bool(pruned) == bool(removed)


def test_a_runs_step_answers_as_its_export_does(
    undisturbed: RunDirectory, preempted: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["4+5=", "--max-new-tokens", "12", "--seed", "5"]
    said = []
    export = str(undisturbed.export("actor", 2))
    for model in (f"{preempted.root}@2", f"{undisturbed.root}@2", export, str(undisturbed.root)):
        assert main(["generate", model, *words]) == ExitCode.DONE
        said.append(capsys.readouterr().out)
    assert said[0] == said[1] == said[2]
    assert main(["generate", f"{undisturbed.root}@3", *words]) == ExitCode.CONFIGURATION
    assert "it has 2, 4." in capsys.readouterr().err
    assert main(["generate", str(undisturbed.root), "--role", "critic", *words]) == ExitCode.CONFIGURATION
    assert "has trained no critic that generates. Those that do: actor." in capsys.readouterr().err
