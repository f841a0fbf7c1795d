"""Runs that other code computes from one resume to the next, on real processes: hpcrl's own, transformers', hpcrl's."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from support.chaos import create_run, outputs, remains, whole_run
from support.elastic import begin_on, drifts, finish_on
from support.hosts import write_task
from support.layout_runs import parameters, ppo
from support.mishaps import OnceJournalled
from support.tiny_layouts import Home, tiny_layouts

from hpcrl.cli.main import main
from hpcrl.config.model import LoraConfig
from hpcrl.durable.history import read_history
from hpcrl.durable.journal import Trained
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ConfigurationError, ExitCode
from hpcrl.launch.next_settings import next_settings
from hpcrl.recipes.ppo import PPOExperiment

TRANSFORMERS = ("actor.model=transformers",)
OWN = ("actor.model=own",)
ACCEPTED = ("actor.path", "critic.path", "data.evaluate", "data.tokenizer", "data.train", "reference.path")
"""A test's run has no word of what it read."""


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("task")
    write_task(folder)
    return folder


def plain(task: Path) -> PPOExperiment:
    """On two workers, with a checkpoint every other step."""
    made = ppo(task, "d2", 2)
    return replace(made, control=replace(made.control, steps=6))


@pytest.fixture(scope="module")
def undisturbed(task: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return whole_run(tmp_path_factory.mktemp("whole"), plain(task))


def killed(run: RunDirectory, number: int, overrides: Sequence[str], line: bytes) -> None:
    """Resume with these settings, until everything is killed right after such a line of the journal."""
    experiment: Any = next_settings(run, overrides).after
    strike = OnceJournalled(run.root.parent, f"kill{number}", "worker-0", "worker.call", "KILL", "all", line=line)
    jobs = begin_on(run, f"on{number}", experiment, replace(strike, attempt=f"{number:03d}"))
    jobs.wait_for("master", 60.0)
    jobs.kill_all()
    assert strike.marker.exists(), outputs(run)


def check_near(run: RunDirectory, reference: RunDirectory) -> None:
    """transformers turns queries and keys by angles in fp32."""
    assert remains(run).ids == remains(reference).ids
    for row, other in zip(remains(run).metrics, remains(reference).metrics, strict=True):
        assert list(row) == list(other)
        pairs = [(row[name], other[name]) for name in row if name != "settings"]
        np.testing.assert_allclose(*zip(*pairs, strict=True), rtol=1e-4, atol=1e-6)
    expected = parameters(reference)
    for name, array in parameters(run).items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-4, atol=1e-6, err_msg=name)


def trained_in(run: RunDirectory, role: str) -> dict[int, str]:
    """Step → the space in which the record of its train_step is."""
    lines = [line.event for line in read_history(run).lines]
    return {it.step: it.record["space"] for it in lines if isinstance(it, Trained) and it.call == f"{role}_train"}


def tensors(folder: Path) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in load_file(folder / "model.safetensors").items()}


@pytest.mark.slow
def test_a_run_goes_to_transformers_and_comes_back(
    undisturbed: RunDirectory, task: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Killed right after a checkpoint each time: it has the samples of an undisturbed run, and its numbers up to
    rounding. A checkpoint of either space is exported under the settings of the other."""
    run = create_run(tmp_path / "run", plain(task))
    killed(run, 0, (), rb'"type":"checkpointed","step":2,')
    dry = ["resume", str(run.root), "--actor.model", "transformers", "--dry-run", "--accept-changed", *ACCEPTED]
    assert main(dry) == ExitCode.DONE, capsys.readouterr()
    said = capsys.readouterr().out
    assert "with actor.model = transformers (was auto)" in said
    assert "actor.model: what is computed with another value is equal up to rounding" in said
    of_step_2 = ["export", str(run.root), "--role", "actor", "--step", "2", "--out"]
    assert main([*of_step_2, str(tmp_path / "own")]) == ExitCode.DONE
    killed(run, 1, TRANSFORMERS, rb'"type":"checkpointed","step":4,')
    assert main([*of_step_2, str(tmp_path / "theirs")]) == ExitCode.DONE
    assert tensors(tmp_path / "own") == tensors(tmp_path / "theirs")
    finish_on(run, next_settings(run, OWN).after)
    check_near(run, undisturbed)
    spaces = trained_in(run, "actor")
    assert [spaces[step] for step in (1, 2, 4, 6)] == ["own", "own", "huggingface", "own"]
    assert not drifts(run) or all("computed by transformers" in drift["why"] for drift in drifts(run))


BOTH = ("actor.model=transformers", "critic.model=transformers")
SHARDED = (*BOTH, "actor.backend=fsdp", "critic.backend=fsdp")
BACK = ("actor.model=auto", "critic.model=own", "actor.backend=native", "critic.backend=native")


def after(step: int) -> bytes:
    return b'"type":"trained","step":%d,' % step


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "first"),
    [(BOTH, rb'"type":"checkpointed","step":2,'), (SHARDED, rb'"type":"checkpointed","step":2,'), (BOTH, after(1))],
    ids=["from a checkpoint", "from a checkpoint, sharded", "from base weights"],
)
def test_a_critic_goes_too_and_replays_in_one_space_have_its_bits(
    undisturbed: RunDirectory, task: Path, tmp_path: Path, overrides: Sequence[str], first: bytes
) -> None:
    """A critic's head begins alike in both spaces."""
    run = create_run(tmp_path / "run", plain(task))
    killed(run, 0, (), first)
    killed(run, 1, overrides, after(3))
    assert all("computed by transformers" in drift["why"] for drift in drifts(run))
    assert drifts(run) or b"checkpointed" in first
    before = len(drifts(run))
    killed(run, 2, (), after(4))
    recorded = {role: trained_in(run, role) for role in ("actor", "critic")}
    again = [recorded[drift["role"]][drift["step"]] for drift in drifts(run)[before:]]
    assert set(again) <= {"own"}, "what transformers made twice has the same bits"
    finish_on(run, next_settings(run, BACK).after)
    check_near(run, undisturbed)
    assert "huggingface" in recorded["actor"].values() and "huggingface" in recorded["critic"].values()


PLACES: dict[str, Home] = {
    "actor": {"layout": "d2"},
    "critic": {"layout": "d1", "mesh": "1"},
    "reference": {"layout": "d1", "mesh": "1"},
    "actor_gen": {"layout": "d1", "mesh": "0"},
    "critic_inf": {"layout": "d2", "mesh": "0-1"},
}


@pytest.mark.slow
def test_models_that_are_moved_blended_and_released_go_too(task: Path, tmp_path: Path) -> None:
    made = tiny_layouts(task, 2, PLACES)
    experiment = replace(made, control=replace(made.control, steps=6))
    (tmp_path / "whole").mkdir()
    reference = whole_run(tmp_path / "whole", experiment)
    run = create_run(tmp_path / "run", experiment)
    killed(run, 0, (), rb'"type":"checkpointed","step":2,')
    with pytest.raises(ConfigurationError, match=r"Set reference\.model to transformers"):
        next_settings(run, BOTH)
    killed(run, 1, (*BOTH, "reference.model=transformers"), rb'"type":"checkpointed","step":4,')
    finish_on(run, next_settings(run, ("actor.model=own", "critic.model=own", "reference.model=own")).after)
    check_near(run, reference)
    assert sorted(path.name for path in (run.exports / "actor").iterdir()) == sorted(
        path.name for path in (reference.exports / "actor").iterdir()
    )


@pytest.mark.slow
def test_adapters_go_too(task: Path, tmp_path: Path) -> None:
    made = plain(task)
    adapted = {role: replace(getattr(made, role), lora=LoraConfig(rank=2)) for role in ("actor", "critic")}
    experiment = replace(made, **adapted, reference=replace(made.reference, of="actor"))
    (tmp_path / "whole").mkdir()
    undisturbed = whole_run(tmp_path / "whole", experiment)
    run = create_run(tmp_path / "run", experiment)
    killed(run, 0, (), after(1))
    killed(run, 1, BOTH, after(3))
    finish_on(run, next_settings(run, BACK).after)
    check_near(run, undisturbed)
    assert "huggingface" in trained_in(run, "critic").values()
