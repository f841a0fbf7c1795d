"""GRPO that samples until its batch is full of prompts whose responses differ, on the torch host and real processes."""

from dataclasses import replace
from pathlib import Path

import pytest
from support.chaos import create_run, finish, outputs, remains, started_twice
from support.choosing import after_deciding, decisions, events_of
from support.faults import Strike, Strikes
from support.hosts import write_task
from support.tiny_runs import tiny_cluster, tiny_control, tiny_data

from hpcrl.config.ema import EMAConfig
from hpcrl.config.filter_groups import FilterGroupsConfig
from hpcrl.config.generation import GenerationConfig
from hpcrl.config.kl import KLConfig
from hpcrl.config.model import OptimizerConfig, ReferenceConfig, TrainedModelConfig
from hpcrl.config.reward import RewardConfig
from hpcrl.data.order import group_of
from hpcrl.durable.journal import Blended, Checkpointed, Done, Trained
from hpcrl.durable.step_lines import steps_in
from hpcrl.inspect.reader import merged_metrics
from hpcrl.recipes.grpo import GRPOConfig, GRPOExperiment

SCARCE = """
def scarce(prompt, response):
    return float("7" in response)
"""


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("task")
    write_task(folder)
    (folder / "scarce.py").write_text(SCARCE)
    return folder


def experiment_of(task: Path) -> GRPOExperiment:
    """A step trains on 4 prompts of 2 responses, of which few differ in having a 7."""
    path = str(task / "model")
    return GRPOExperiment(
        control=tiny_control(steps=3),
        cluster=tiny_cluster(),
        data=tiny_data(task, samples_per_prompt=2),  # type: ignore[arg-type]
        actor=TrainedModelConfig(path=path, optimizer=OptimizerConfig(lr=0.01)),
        reference=ReferenceConfig(path=path),
        reward=RewardConfig(function=f"{task / 'scarce.py'}:scarce"),
        generation=GenerationConfig(max_new_tokens=6, slots=8),
        grpo=GRPOConfig(
            minibatches=2,
            kl=KLConfig(mode="loss", coef=0.01),
            filter_groups=FilterGroupsConfig(metric="accuracy", max_rounds=20),
        ),
    )


@pytest.mark.slow
def test_steps_without_a_group_make_no_update_and_a_run_killed_in_one_ends_with_the_same_bits(
    task: Path, tmp_path: Path
) -> None:
    """Of three that draw a prompt each, once, two find none; the reference follows the actor all the same."""
    experiment = experiment_of(task)
    groups = FilterGroupsConfig(metric="accuracy", max_rounds=1, on_shortage="smaller")
    kl = KLConfig(mode="reward", coef=0.1, adaptive=True, reference_ema=EMAConfig(decay=0.5))
    experiment = replace(
        experiment,
        data=replace(experiment.data, batch_size=1),
        grpo=replace(experiment.grpo, filter_groups=groups, kl=kl),
    )
    undisturbed = create_run(tmp_path / "undisturbed", experiment)
    assert finish(undisturbed) == [0], outputs(undisturbed)
    events = events_of(undisturbed)
    sizes = [len(lines.trained) for step, lines in steps_in(events).items() if step]
    trained = [event for event in events if isinstance(event, Trained) and not isinstance(event, Blended)]
    assert sizes.count(0) == 2 and [len(event.record["outcomes"]) for event in trained] == sizes
    rows = {row["step"]: row for row in merged_metrics(undisturbed)}
    assert [bool(size) for size in sizes] == ["actor_train/kl" in rows[step] for step in (1, 2, 3)]
    assert [event.step for event in events if isinstance(event, Blended)] == [1, 2, 3]
    assert [event.step for event in events if isinstance(event, Checkpointed)] == [2, 3]
    killed = create_run(tmp_path / "killed" / "run", experiment)
    strike = Strike(tmp_path / "killed", "kill", "worker-1", "shard.write", "KILL", "self", 1)
    finish(killed, strike)
    assert strike.marker.exists()
    assert remains(killed) == remains(undisturbed), outputs(killed)
    assert started_twice(killed) == []


def test_killed_between_its_rounds_and_after_its_choice_it_ends_with_the_bits_of_an_undisturbed_run(
    task: Path, tmp_path: Path
) -> None:
    undisturbed = create_run(tmp_path / "undisturbed", experiment_of(task))
    assert finish(undisturbed, timeout_s=240.0) == [0], outputs(undisturbed)
    decided = decisions(undisturbed)
    assert decided.count("E1") > 0 and [decided.count(f"C{step}") for step in (1, 2, 3)] == [1, 1, 1]

    for decision in (0, decided.index("C1")):
        folder = tmp_path / f"killed-{decision}"
        killed = create_run(folder / "run", experiment_of(task))
        strikes = after_deciding(folder, decision, "worker-0", "worker.executed", target="all")
        finish(killed, Strikes(strikes), timeout_s=240.0)
        assert strikes[1].marker.exists()
        assert remains(killed) == remains(undisturbed), outputs(killed)
        assert decisions(killed) == decided and started_twice(killed) == []

    events = events_of(undisturbed)
    lines = steps_in(events)
    for step in (1, 2, 3):
        assert len({group_of(sample) for sample in lines[step].trained}) == 4
        referred = {e.part: e for e in events if isinstance(e, Done) and (e.step, e.call) == (step, "ref_inf")}
        assert len(referred) == 2, "dropped groups cost the reference nothing"
