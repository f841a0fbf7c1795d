"""Runs whose models transformers computes, on real processes: the same bits after kills, and exports that load."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.chaos import create_run, remains, whole_run
from support.elastic import begin_on, finish_on
from support.exported import check_exports
from support.foreign_models import write_foreign_task
from support.layout_runs import ppo, sft
from support.mishaps import OnceJournalled
from support.struck_layouts import Blow, check_struck

from hpcrl.durable.rundir import RunDirectory
from hpcrl.recipes.ppo import PPOExperiment

pytestmark = pytest.mark.slow
BLOWS = {
    "in a backward pass": Blow("worker-0", "backward.begin", 5),
    "before its reply": Blow("worker-1", "worker.executed", 6),
    "in a snapshot": Blow("worker-0", "shard.synced", 2),
    "all": Blow("master", "journal.after", 14, "all"),
}


def foreign(folder: Path) -> PPOExperiment:
    """Actor, critic and reference are transformers', the trained ones on two workers."""
    made = ppo(folder, "d2", 2)
    return replace(made, reference=replace(made.reference, micro_batch_tokens=24))


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("task")
    return write_foreign_task(folder, "gpt_neox", intermediate_size=24, max_position_embeddings=64)


@pytest.fixture(scope="module")
def undisturbed(task: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return whole_run(tmp_path_factory.mktemp("whole"), foreign(task))


def test_its_checkpoints_give_the_same_exports_offline(undisturbed: RunDirectory, tmp_path: Path) -> None:
    assert check_exports(undisturbed, tmp_path / "offline")


def test_what_it_exports_transformers_loads(undisturbed: RunDirectory) -> None:
    import transformers

    (actor,), (critic,) = (sorted((undisturbed.exports / role).iterdir())[-1:] for role in ("actor", "critic"))
    assert type(transformers.AutoModelForCausalLM.from_pretrained(actor)).__name__ == "GPTNeoXForCausalLM"
    loaded = transformers.AutoModelForTokenClassification.from_pretrained(critic)
    assert type(loaded).__name__ == "GPTNeoXForTokenClassification"
    assert loaded.classifier.weight.shape == (1, 16)


@pytest.mark.parametrize("name", BLOWS)
def test_a_run_that_is_struck_ends_with_the_same_bits(
    undisturbed: RunDirectory, task: Path, tmp_path: Path, name: str
) -> None:
    check_struck(tmp_path, foreign(task), BLOWS[name], undisturbed)


OPT = {"ffn_dim": 24, "word_embed_proj_dim": 16, "max_position_embeddings": 64}
OTHERS: dict[str, dict[str, int]] = {"opt": OPT, "mamba": {}, "mixtral": {"intermediate_size": 32}}


@pytest.mark.parametrize(
    ("kind", "sizes", "backend"),
    [
        (kind, sizes, backend)
        for kind, sizes in OTHERS.items()
        for backend in ("native", "fsdp", *(("zero1", "zero2", "zero3") if kind == "mixtral" else ()))
    ],
)
def test_a_model_of_another_kind_that_is_struck_ends_with_the_same_bits(
    tmp_path: Path, kind: str, sizes: dict[str, int], backend: str
) -> None:
    experiment = sft(write_foreign_task(tmp_path, kind, **sizes), "d2", 2)
    dtype = "fp32" if backend.startswith("zero") else experiment.actor.dtype
    actor = replace(experiment.actor, model="transformers", backend=backend, dtype=dtype)
    experiment = replace(experiment, actor=actor)
    (tmp_path / "whole").mkdir()
    undisturbed = whole_run(tmp_path / "whole", experiment)
    check_struck(tmp_path, experiment, Blow("worker-0", "backward.begin", 3), undisturbed)


@pytest.mark.parametrize("backend", ["fsdp", "zero3"])
def test_experts_that_workers_share_are_moved_to_whole_copies(tmp_path: Path, backend: str) -> None:
    """Three on two workers, where generation asks a copy of the actor under native."""
    made = ppo(write_foreign_task(tmp_path, "mixtral", intermediate_size=32, num_local_experts=3), "d2", 2)
    kind: dict[str, Any] = {"model": "transformers", "dtype": "fp32"}
    roles = {role: replace(getattr(made, role), **kind) for role in ("actor", "critic", "reference")}
    roles["actor"] = replace(roles["actor"], backend=backend)
    runs = []
    for name, calls in (("by itself", {}), ("elsewhere", {"actor_gen": {"backend": "native"}})):
        (tmp_path / name).mkdir()
        runs.append(remains(whole_run(tmp_path / name, replace(made, **roles, calls=calls))))
    by_itself, elsewhere = runs
    assert elsewhere.ids == by_itself.ids
    for row, reference in zip(elsewhere.metrics, by_itself.metrics, strict=True):
        assert list(row) == list(reference)
        np.testing.assert_allclose([row[name] for name in row], [reference[name] for name in row], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("backend", ["fsdp", "zero2", "zero3"])
def test_a_run_whose_models_are_sharded_that_is_struck_ends_with_the_same_bits(
    task: Path, tmp_path: Path, backend: str
) -> None:
    made = foreign(task)
    roles = {"backend": backend, "dtype": "fp32"}
    sharded = {role: replace(getattr(made, role), **roles) for role in ("actor", "critic", "reference")}
    experiment = replace(made, **sharded)
    (tmp_path / "whole").mkdir()
    undisturbed = whole_run(tmp_path / "whole", experiment)
    check_struck(tmp_path, experiment, BLOWS["before its reply"], undisturbed)


def test_a_run_goes_from_backend_to_backend(undisturbed: RunDirectory, task: Path, tmp_path: Path) -> None:
    """Killed each time, with equal numbers up to rounding."""
    made = foreign(task)
    flat = replace(made, critic=replace(made.critic, dtype="fp32"))
    sharded = replace(flat, actor=replace(flat.actor, backend="fsdp"), critic=replace(flat.critic, backend="zero2"))
    run = create_run(tmp_path / "run", flat)
    for number, experiment in enumerate((flat, sharded, flat)):
        line = rb'"type":"trained","step":%d,' % (number + 1)
        strike = OnceJournalled(tmp_path, f"kill{number}", "worker-0", "worker.call", "KILL", "all", line=line)
        jobs = begin_on(run, f"on{number}", experiment, replace(strike, attempt=f"{number:03d}"))
        jobs.wait_for("master", 60.0)
        jobs.kill_all()
    finish_on(run, sharded)
    assert remains(run).ids == remains(undisturbed).ids
    for row, reference in zip(remains(run).metrics, remains(undisturbed).metrics, strict=True):
        assert list(row) == list(reference)
        pairs = [(row[name], reference[name]) for name in row if name != "settings"]
        np.testing.assert_allclose(*zip(*pairs, strict=True), rtol=1e-3, atol=1e-4)
