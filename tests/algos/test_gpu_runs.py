"""A run on a GPU, on real processes: what it ends with is the same, whoever was killed on the way."""

from dataclasses import replace
from pathlib import Path

import pytest
from support.chaos import remains, whole_run
from support.devices import ON_A_GPU
from support.hosts import write_task
from support.layout_runs import ppo
from support.struck_layouts import Blow, check_struck

from hpcrl.models.pretrained import read_config, write_random_pretrained
from hpcrl.recipes.ppo import PPOExperiment

pytestmark = ON_A_GPU
BLOWS = {
    "a worker that generates": Blow("worker-0", "decode.begin", 3),
    "a worker in a backward pass": Blow("worker-0", "backward.begin", 6),
    "the master, between two calls": Blow("master", "journal.after", 14),
}


def on_a_gpu(folder: Path) -> PPOExperiment:
    """In bf16, with heads that flash attention takes."""
    write_task(folder)
    config = replace(read_config(folder / "model"), hidden_size=256, heads=4, kv_heads=2, head_dim=64, blocks=4)
    (folder / "model").rename(folder / "tokenizer")
    write_random_pretrained(folder / "model", config, 3, tokenizer_from=folder / "tokenizer")
    made = ppo(folder, "d1", 1)
    half = {"dtype": "bf16"}
    return replace(
        made,
        cluster=replace(made.cluster, device="cuda", lost_after_s=30.0),
        actor=replace(made.actor, **half),
        critic=replace(made.critic, **half),
        reference=replace(made.reference, **half),
    )


def test_a_run_in_bf16_that_is_struck_ends_with_the_same_bits(tmp_path: Path) -> None:
    made = on_a_gpu(tmp_path)
    undisturbed = whole_run(tmp_path, made)
    assert len(remains(undisturbed).metrics) == 5
    for number, blow in enumerate(BLOWS.values()):
        (folder := tmp_path / str(number)).mkdir()
        check_struck(folder, made, blow, undisturbed)


@pytest.mark.parametrize("backend", ["fsdp", "zero1", "zero2", "zero3", "megatron"])
def test_other_backends_train_and_generate_on_a_gpu(tmp_path: Path, backend: str) -> None:
    made = on_a_gpu(tmp_path)
    trained = replace(made.actor, backend=backend), replace(made.critic, backend=backend)
    run = whole_run(tmp_path, replace(made, actor=trained[0], critic=trained[1]))
    rows = remains(run).metrics
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4]
    assert all(row["actor_train/skipped"] == 0 for row in rows[1:])
