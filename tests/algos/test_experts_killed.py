"""PPO on a mixtral whose router has losses of its own, cut over two workers, killed in every phase of its steps."""

from dataclasses import replace
from pathlib import Path

import pytest
from support.chaos import create_run, finish, outputs, remains, started_twice
from support.cluster import alive_of
from support.faults import After, Strike, Strikes
from support.hosts import LETTERS, write_task
from support.phases import Phased
from support.tiny_models import mixtral_config
from support.tiny_ppo import tiny_ppo

from hpcrl.families.config import ROUTER_STATISTICS
from hpcrl.models.pretrained import write_random_pretrained
from hpcrl.recipes.ppo import PPOExperiment

PHASES = {"generate": "generate.end", "inference": "inference.begin", "train": "reduce.begin"}


def experiment_of(folder: Path) -> PPOExperiment:
    """As little as has a step that is resumed and one after it: no evaluation, and one pass over two mini-batches."""
    write_task(folder)
    sizes = {"vocabulary_size": len(LETTERS) + 1, "hidden_size": 16, "intermediate_size": 24, "head_dim": 4}
    model = mixtral_config(**sizes, max_positions=32, initializer_range=0.3)
    write_random_pretrained(folder / "mixtral", model, seed=1, tokenizer_from=folder / "model")
    made, path = tiny_ppo(folder, steps=2, nodes=1), str(folder / "mixtral")
    actor = replace(made.actor, path=path, layout="t2", router_aux_coef=0.1, router_z_coef=0.01)
    critic = replace(made.critic, path=path, layout="p2", router_aux_coef=0.1)
    return replace(
        made,
        data=replace(made.data, evaluate=None, batch_size=4),
        ppo=replace(made.ppo, epochs=1),
        actor=actor,
        critic=critic,
        reference=replace(made.reference, path=path),
    )


@pytest.mark.slow
def test_a_run_of_experts_that_is_killed_ends_with_the_same_bits(tmp_path: Path) -> None:
    """Worker 1, in one phase after another."""
    experiment = experiment_of(tmp_path)
    undisturbed = create_run(tmp_path / "undisturbed", experiment)
    assert finish(undisturbed) == [0], outputs(undisturbed)
    reported = {f"{call}/{name}" for call in ("actor_train", "critic_train") for name in ROUTER_STATISTICS}
    assert all(reported <= row.keys() for row in remains(undisturbed).metrics)
    struck: list[Strike] = []
    for phase, point in PHASES.items():
        words = (tmp_path, phase, "worker-1", point, "KILL", "self", 1)
        struck.append(After(*words, first=struck[-1]) if struck else Strike(*words))
    run = create_run(tmp_path / "run", experiment)
    finish(run, Phased(Strikes(tuple(struck))))
    assert [strike.name for strike in struck if not strike.marker.exists()] == [], "a strike never came"
    assert remains(run) == remains(undisturbed), outputs(run)
    assert started_twice(run) == [] and alive_of(run.root) == []
