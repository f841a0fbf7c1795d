"""Runs that train adapters beside models that FSDP2 shards, on real processes: the bits of flat buffers, after kills
too."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.adapter_runs import BLOWS, adapted
from support.chaos import create_run, remains, whole_run
from support.elastic import begin_on, finish_on
from support.foreign_models import write_foreign_task
from support.hosts import write_task
from support.made_parts import moves_in
from support.mishaps import OnceJournalled
from support.struck_layouts import check_struck

from hpcrl.config.ema import EMAConfig
from hpcrl.durable.rundir import RunDirectory
from hpcrl.recipes.ppo import PPOExperiment


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("task")
    write_task(folder)
    return folder


@pytest.fixture(scope="module")
def flat(task: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """Undisturbed, under hpcrl's own backend."""
    return whole_run(tmp_path_factory.mktemp("flat"), adapted(task, "d2"))


def sharded(experiment: PPOExperiment) -> PPOExperiment:
    actor, critic = (replace(role, backend="fsdp") for role in (experiment.actor, experiment.critic))
    return replace(experiment, actor=actor, critic=critic)


@pytest.mark.slow
def test_a_run_that_is_struck_and_whose_copies_are_elsewhere_has_the_bits_of_one_in_flat_buffers(
    task: Path, tmp_path: Path
) -> None:
    """Copies are merged: they say what was recorded when the actor was trained. What leaves the device between calls
    comes back."""
    calls = {"actor_gen": {"layout": "d1", "mesh": 0}, "critic_inf": {"layout": "d1", "mesh": 1}}
    whole = adapted(task, "d2", calls=calls)
    away = replace(whole.actor.between, parameters="host", gradients="drop", optimizer="host")
    whole = replace(whole, actor=replace(whole.actor, between=away))
    undisturbed = whole_run(folder_of(tmp_path, "flat"), whole)
    check_struck(tmp_path, sharded(whole), BLOWS["in a backward pass"], undisturbed)
    told = "".join(path.read_text() for path in (tmp_path / "run").rglob("events*.jsonl"))
    assert moves_in(RunDirectory.open(tmp_path / "run")) and "drift" not in told


@pytest.mark.slow
@pytest.mark.parametrize("name", BLOWS)
def test_a_sharded_run_that_is_struck_ends_with_the_bits_of_one_in_flat_buffers(
    flat: RunDirectory, task: Path, tmp_path: Path, name: str
) -> None:
    check_struck(tmp_path, sharded(adapted(task, "d2")), BLOWS[name], flat)


@pytest.mark.slow
@pytest.mark.parametrize("beside", [False, True])
def test_a_reference_of_its_own_follows_the_merged_actor(task: Path, tmp_path: Path, beside: bool) -> None:
    """Sharded as the actor is, or whole on one worker."""
    whole = adapted(task, "d2")
    kl = replace(whole.ppo.kl, reference_ema=EMAConfig(decay=0.5))
    layout: dict[str, Any] = {"layout": "d2"} if beside else {"layout": "d1", "mesh": "1"}
    reference = replace(whole.reference, of=None, micro_batch_tokens=24, **layout)
    whole = replace(whole, reference=reference, ppo=replace(whole.ppo, kl=kl))
    rows = sharded(whole)
    if beside:
        rows = replace(rows, reference=replace(reference, backend="fsdp"))
    runs = {name: whole_run(folder_of(tmp_path, name), it) for name, it in (("flat", whole), ("rows", rows))}
    assert remains(runs["rows"]).trained == remains(runs["flat"]).trained


@pytest.mark.slow
def test_a_model_of_transformers_that_is_struck_has_the_bits_of_one_in_flat_buffers(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "task")
    task = write_foreign_task(folder, "gpt_neox", intermediate_size=24, max_position_embeddings=64)
    shared = adapted(task, "d2")
    critic = replace(shared.critic, lora=replace(shared.critic.lora, targets=("dense", "query_key_value")))
    shared = replace(shared, critic=critic)
    undisturbed = whole_run(folder_of(tmp_path, "flat"), shared)
    check_struck(tmp_path, sharded(shared), BLOWS["in a backward pass"], undisturbed)


@pytest.mark.slow
def test_a_run_with_adapters_goes_on_under_another_backend_with_the_same_bits(
    task: Path, tmp_path: Path, flat: RunDirectory
) -> None:
    """From flat buffers to shards and back, killed each time."""
    native, fsdp = adapted(task, "d2"), sharded(adapted(task, "d2"))
    run = create_run(tmp_path / "run", native)
    for number, (experiment, step) in enumerate(((native, 1), (fsdp, 2))):
        line = rb'"type":"trained","step":%d,' % step
        strike = OnceJournalled(tmp_path, f"kill{number}", "worker-0", "worker.call", "KILL", "all", line=line)
        jobs = begin_on(run, f"on{number}", experiment, replace(strike, attempt=f"{number:03d}"))
        jobs.wait_for("master", 60.0)
        jobs.kill_all()
        assert strike.marker.exists()
    finish_on(run, native)
    assert remains(run).trained == remains(flat).trained


def folder_of(root: Path, name: str) -> Path:
    (root / name).mkdir()
    return root / name
