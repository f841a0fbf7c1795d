"""Runs whose settings change on the way, in real processes: what is replayed is made as it was made, to the bit."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
from support.chaos import Remains, create_run, outputs, remains, rows_of, started_twice, toy_experiment
from support.cluster import alive_of
from support.elastic import begin_on, drifts, finish_on
from support.faults import KillOnceWritten
from support.hosts import write_task

from hpcrl.config.cluster import ClusterConfig
from hpcrl.config.control import ControlConfig, Frequency
from hpcrl.config.data import DataConfig
from hpcrl.config.generation import GenerationConfig
from hpcrl.config.kl import KLConfig
from hpcrl.config.model import OptimizerConfig, ReferenceConfig, TrainedModelConfig
from hpcrl.config.reward import RewardConfig
from hpcrl.durable.history import read_history
from hpcrl.durable.journal import Done, Trained
from hpcrl.durable.recovery import plan_next_attempt
from hpcrl.durable.rundir import RunDirectory
from hpcrl.errors import ExitCode
from hpcrl.placement.plan import plan_for
from hpcrl.recipes.ppo import CriticConfig, PPOConfig, PPOExperiment

CHECKPOINT, BORDER, STEPS = 5, 6, 11
"""The last step with a checkpoint before the settings change, the last step before that, and the last one of all.

A step may be in the midst of its calls before the one before it has its lines: the next checkpoint is further away.
"""
CONTROL = ControlConfig(checkpoint=Frequency(steps=CHECKPOINT), steps=STEPS)
"""Without evaluations, behind which the next step would train before the last one before the border is closed."""
CLUSTER = ClusterConfig(
    device="cpu", heartbeat_s=0.2, lost_after_s=30.0, orphan_timeout_s=5.0, replace_timeout_s=0.5, grace_s=5.0
)


def toy(_: Path) -> Any:
    return dataclasses.replace(toy_experiment(), control=CONTROL, cluster=CLUSTER)


def ppo(task: Path) -> Any:
    model, optimizer = str(task / "model"), OptimizerConfig(lr=1e-3)
    return PPOExperiment(
        control=CONTROL,
        cluster=CLUSTER,
        data=DataConfig(train=str(task / "rows.jsonl"), evaluate=str(task / "held_out.jsonl"), batch_size=4),
        actor=TrainedModelConfig(path=model, optimizer=optimizer),
        critic=CriticConfig(path=model, optimizer=optimizer),
        reference=ReferenceConfig(path=model),
        reward=RewardConfig(function=f"{task / 'reward.py'}:ones"),
        generation=GenerationConfig(max_new_tokens=6, slots=4),
        ppo=PPOConfig(minibatches=2, kl=KLConfig(mode="reward", coef=0.1)),
    )


def other_toy(experiment: Any) -> Any:
    return dataclasses.replace(experiment, toy=dataclasses.replace(experiment.toy, lr=0.02))


def other_ppo(experiment: Any) -> Any:
    """All that a record does not hold, and a replay has to be told: of optimizers, losses, advantages and passes.

    Not what a step that is open at the border has from before it, where the reference has none open: its cut into
    mini-batches, and maybe its responses.
    """
    optimizer = OptimizerConfig(lr=3e-4, betas=(0.8, 0.95), weight_decay=0.1, grad_clip=0.3)
    actor, critic = (dataclasses.replace(role, optimizer=optimizer) for role in (experiment.actor, experiment.critic))
    numbers = PPOConfig(
        minibatches=2,
        epochs=2,
        clip_low=0.01,
        clip_high=0.01,
        kl=KLConfig(mode="reward", coef=0.5),
        gae_lambda=0.9,
        reward_scale=2.0,
        entropy_coef=0.01,
    )
    return dataclasses.replace(experiment, actor=actor, critic=critic, ppo=numbers)


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("task")
    write_task(folder)
    return folder


def in_folder(folder: Path, experiment: Any) -> RunDirectory:
    folder.mkdir()
    return create_run(folder / "run", experiment)


def until(experiment: Any, step: int) -> Any:
    return dataclasses.replace(experiment, control=dataclasses.replace(experiment.control, steps=step))


def settings_of(run: RunDirectory) -> dict[int, set[int]]:
    """Step → the versions that its lines name."""
    found: dict[int, set[int]] = {}
    for line in read_history(run).lines:
        if isinstance(line.event, Done | Trained):
            found.setdefault(line.event.step, set()).add(line.event.settings)
    return found


@pytest.mark.parametrize(("make", "other"), [(toy, other_toy), pytest.param(ppo, other_ppo, marks=pytest.mark.slow)])
def test_a_replay_over_a_change_of_settings_gives_the_bits_of_a_run_with_a_checkpoint_there(
    tmp_path: Path, task: Path, make: Any, other: Any
) -> None:
    """The reference is done at the border, so that none of its steps is ever replayed, and is extended."""
    first = make(task)
    reference = in_folder(tmp_path / "plain", until(first, BORDER))
    finish_on(reference, until(first, BORDER), timeout_s=120)
    finish_on(reference, other(first), prefix="more", timeout_s=120)

    run = in_folder(tmp_path / "cut", first)
    killed = KillOnceWritten(run.root, "master", "journal.after", f'"type":"closed","step":{BORDER},')
    jobs = begin_on(run, "first", first, killed)
    jobs.wait_for("master", 120)
    jobs.kill_all()
    assert killed.marker.exists(), outputs(run)
    recovery = plan_next_attempt(run, plan_for(first, 1).changes)
    assert recovery.checkpoint is not None and recovery.checkpoint.step == CHECKPOINT
    assert {line.step for line in recovery.replay} == {BORDER}

    again = KillOnceWritten(run.root, "worker-1", "worker.call", f'"type":"trained","step":{BORDER + 1},')
    jobs = begin_on(run, "second", other(first), again)
    assert jobs.wait_for("master", 120) == ExitCode.DONE, outputs(run)
    jobs.wait(60)
    assert again.marker.exists() and run.newest_attempt() == 2
    described = [row["recovered"] for row in rows_of(run.events(2)) if row["event"] == "attempt"]
    assert f"replays step {BORDER} under settings version 0" in described[0]
    assert re.search(rf"replays steps? {BORDER + 1}(\.\.\d+)? under settings version 1", described[0]), described

    assert remains(run) == remains(reference)
    steps = range(1, STEPS + 1)
    assert {step: settings_of(run)[step] & {int(step > BORDER)} for step in steps} == {
        step: {int(step > BORDER)} for step in steps
    }
    assert [row["settings"] for row in remains(run).metrics] == [0] * BORDER + [1] * (STEPS - BORDER)
    assert drifts(run) == [] and started_twice(run) == []
    assert alive_of(run.root) == []


def without(found: Remains, step: int) -> Remains:
    """Without what depends on which step was the last when it was made."""
    rows = [{name: value for name, value in row.items() if name != "settings"} for row in found.metrics]
    rows = [
        {name: value for name, value in row.items() if row["step"] != step or not name.startswith("eval_")}
        for row in rows
    ]
    return dataclasses.replace(found, metrics=tuple(rows))


def test_a_done_run_that_is_extended_is_the_run_that_had_this_length_from_the_start(tmp_path: Path) -> None:
    whole = toy_experiment(steps=9)
    reference = in_folder(tmp_path / "plain", whole)
    finish_on(reference, whole)
    run = in_folder(tmp_path / "extended", until(whole, 4))
    finish_on(run, until(whole, 4), prefix="one")
    exported = list(run.root.glob("export/*/step-00000004/*"))
    finish_on(run, until(whole, 7), prefix="two")
    finish_on(run, whole, prefix="three")
    mine, theirs = remains(run), remains(reference)
    assert without(mine, 4) != theirs, "the old last steps keep their evaluations"
    assert without(without(mine, 4), 7) == without(without(theirs, 4), 7)
    evaluated = [row["step"] for row in mine.metrics if "eval_rew/r" in row]
    assert evaluated == [0, 3, 4, 6, 7, 9]
    assert exported and all(path.exists() for path in exported)
    assert started_twice(run) == [] and alive_of(run.root) == []


def test_a_step_that_failed_on_a_setting_gets_past_it(tmp_path: Path, task: Path) -> None:
    """And with it all others that hpcrl tells its users to change."""
    slow = tmp_path / "slow.py"
    slow.write_text("import time\n\n\ndef score(prompt, response, row):\n    time.sleep(0.5)\n    return 1.0\n")
    first = until(ppo(task), 2)
    reward = RewardConfig(function=f"{slow}:score", timeout_s=0.4)
    first = dataclasses.replace(first, reward=reward)
    run = in_folder(tmp_path / "run", first)
    jobs = begin_on(run, "first", first)
    assert jobs.wait_for("master", 120) == ExitCode.USER_CODE, outputs(run)
    jobs.kill_all()
    assert "raise reward.timeout_s" in outputs(run)
    raised = dataclasses.replace(
        first,
        reward=dataclasses.replace(reward, timeout_s=60.0),
        generation=dataclasses.replace(first.generation, slots=2),
        actor=dataclasses.replace(first.actor, micro_batch_tokens=64, optimizer=OptimizerConfig(lr=1e-4)),
        control=dataclasses.replace(first.control, checkpoint=Frequency(steps=1), keep_checkpoints=3),
    )
    finish_on(run, raised, timeout_s=120)
    assert 1 in settings_of(run)[1] and settings_of(run)[2] == {1}
    assert started_twice(run) == []
