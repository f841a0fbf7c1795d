"""A script's run on a real Slurm, whose master and script are killed and one of whose nodes is taken and comes back."""

from pathlib import Path
from typing import Any

import pytest
from support.chaos import remains, started_twice
from support.slurm_cluster import SlurmCluster
from support.slurm_runs import SlurmRun, run_here, toy_values

pytestmark = pytest.mark.slurm
STEPS = 14
LOOP = """
from dataclasses import replace

from hpcrl.recipes import toy
from hpcrl.recipes.algorithm import computed


def shifted(rows, by):
    return {"z": [0.5 * row + by for row in rows["y"]]}


def noted(key, by):
    return {"by": by}


def rollout(run, e, step):
    actor, reward = run.groups("actor", "reward")
    batch = step.batch()
    batch = batch.union(actor.generate(batch))
    return batch.union(reward.inference(batch))


def loop(run, e):
    actor, critic = run.groups("actor", "critic")
    run.state.setdefault("by", 0.25)
    for step in run.steps(prepare=rollout, lag=1):
        batch = step.prepared
        batch = batch.union(critic.inference(batch), run.compute(shifted, batch, run.state["by"]))
        critic.update(batch, blocking=False)
        run.state["by"] += 0.001 * actor.update(batch).stats["loss"]
        step.log(by=run.once(noted, run.state["by"], rehearsed={"by": 0.0})["by"])


CALLS = (*(call for call in toy.CALLS if call.name != "ref_inf"), computed("shifted", ("y",), ("z",)))
TOY = replace(
    toy.ALGORITHM,
    recipe=lambda e: CALLS,
    script=loop,
    roles={role: kind for role, kind in toy.ALGORITHM.roles.items() if role != "reference"},
    metrics={call: names for call, names in toy.ALGORITHM.metrics.items() if call != "ref_inf"},
)
"""


def scripted(folder: Path) -> dict[str, Any]:
    (folder / "loop.py").write_text(LOOP)
    values = toy_values("low") | {"algorithm": f"{folder / 'loop.py'}:TOY"}
    values["control"] = {"steps": STEPS, "checkpoint": {"steps": 4}}
    return values


def test_a_script_survives_kills_of_it_and_of_its_master_and_a_node_that_is_taken(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    run = SlurmRun.submit(slurm, scripted(slurm.directory))
    (master,) = run.jobs("master")
    run.wait_steps(2)
    run.kill("worker-4")  # the script's
    run.wait_steps(2)
    run.kill("master")
    run.wait_steps(2)
    slurm.requeue(run.element_away_from_master())
    run.wait_steps(2)
    slurm.requeue(master)
    run.wait_done()
    assert len(run.run.numbers()) >= 4

    assert remains(run.run) == remains(run_here(scripted(tmp_path), tmp_path))
    assert started_twice(run.run) == []
