"""Runs whose models transformers computes, on real processes: the same bits after kills, and exports that load."""

from dataclasses import replace
from pathlib import Path

import pytest
from support.chaos import whole_run
from support.foreign_models import save_library_model
from support.hosts import LETTERS, write_task
from support.layout_runs import ppo
from support.struck_layouts import Blow, check_struck

from hpcrl.durable.rundir import RunDirectory
from hpcrl.recipes.ppo import PPOExperiment

BLOWS = {
    "in a backward pass": Blow("worker-0", "backward.begin", 5),
    "before its reply": Blow("worker-1", "worker.executed", 6),
    "in a snapshot": Blow("worker-0", "shard.synced", 2),
    "all": Blow("master", "journal.after", 14, "all"),
}
FAST = ("in a backward pass",)


def foreign(folder: Path, kind: str = "gpt_neox") -> PPOExperiment:
    """Actor, critic and reference are transformers', the trained ones on two workers."""
    made = ppo(folder, "d2", 2)
    return replace(made, reference=replace(made.reference, micro_batch_tokens=24))


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("task")
    write_task(folder)
    end = len(LETTERS)
    sizes = {"vocab_size": end + 1, "hidden_size": 16, "intermediate_size": 24, "max_position_embeddings": 64}
    save_library_model(folder / "model", "gpt_neox", **sizes, eos_token_id=end, bos_token_id=end)
    return folder


@pytest.fixture(scope="module")
def undisturbed(task: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return whole_run(tmp_path_factory.mktemp("whole"), foreign(task))


def test_what_it_exports_transformers_loads(undisturbed: RunDirectory) -> None:
    import transformers

    (actor,), (critic,) = (sorted((undisturbed.exports / role).iterdir())[-1:] for role in ("actor", "critic"))
    assert type(transformers.AutoModelForCausalLM.from_pretrained(actor)).__name__ == "GPTNeoXForCausalLM"
    loaded = transformers.AutoModelForTokenClassification.from_pretrained(critic)
    assert type(loaded).__name__ == "GPTNeoXForTokenClassification"
    assert loaded.classifier.weight.shape == (1, 16)


@pytest.mark.parametrize("name", [pytest.param(it, marks=() if it in FAST else pytest.mark.slow) for it in BLOWS])
def test_a_run_that_is_struck_ends_with_the_same_bits(
    undisturbed: RunDirectory, task: Path, tmp_path: Path, name: str
) -> None:
    check_struck(tmp_path, foreign(task), BLOWS[name], undisturbed)
