"""The example of a layout for each call, as a user starts it, on 8 CPU workers: what one worker computes."""

import json
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from support.chaos import remains
from support.hosts import LETTERS, write_model, write_task
from support.judges import write_judge
from support.made_parts import made_in, moves_in

from hpcrl.data.samples import SequenceSample
from hpcrl.durable.rundir import RunDirectory
from hpcrl.durable.spills import read_spill
from hpcrl.ops.gae import gae
from hpcrl.parallel.replica import sharing
from hpcrl.placement.layouts import parse_layout
from hpcrl.recipes.algorithm import experiment_from

ROOT = Path(__file__).parents[2]
SMALL = [
    "--cluster.device=cpu",
    "--data.batch_size=8",
    "--data.prompt_template={prompt}",
    "--data.max_prompt_tokens=40",
    "--actor.dtype=fp64",
    "--critic.dtype=fp64",
    "--reference.dtype=fp64",
    "--reward_model.dtype=fp64",
    "--actor.optimizer.lr=1e-3",
    "--critic.optimizer.lr=1e-3",
    "--generation.max_new_tokens=6",
    "--generation.slots=8",
    "--ppo.minibatches=2",
    "--ppo.value_norm=true",
    "--control.epochs=null",
    "--control.steps=3",
    "--control.checkpoint.seconds=null",
]
ALONE = [
    "--cluster.workers_per_node=1",
    "--calls={}",
    "--actor.layout=null",
    "--critic.layout=null",
    "--reference.layout=null",
    "--reward_model.layout=null",
]
ALONE += [f"--{role}.mesh=null" for role in ("actor", "critic", "reference", "reward_model", "reward")]
MAKING = ("actor_gen", "critic_inf", "ref_inf", "rm_inf", "rew_inf")
PLACED = [
    ("actor", "d2t1p2", [0, 1, 2, 3]),
    ("actor", "d4t1p2", [0, 1, 2, 3, 4, 5, 6, 7]),
    ("critic", "d2t1p1", [0, 1]),
    ("critic", "d2t1p2", [4, 5, 6, 7]),
    ("reference", "d1t1p4", [4, 5, 6, 7]),
    ("reward", "d2t1p1", [2, 3]),
    ("reward_model", "d1t1p2", [2, 3]),
]


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("task")
    write_task(folder)
    write_model(folder / "model", LETTERS, max_positions=64, blocks=4)
    write_judge(folder, 1)
    return folder


def submit(task: Path, run_dir: Path, *settings: str) -> RunDirectory:
    files = [f"--data.train={task / 'rows.jsonl'}", f"--reward_model.path={task / 'judge'}"]
    files += [f"--{role}.path={task / 'model'}" for role in ("actor", "critic")]
    command = [sys.executable, "-m", "hpcrl.cli.main", "submit", "examples/layouts/ppo.yaml", "--run-dir", str(run_dir)]
    ended = subprocess.run([*command, *files, *SMALL, *settings], cwd=ROOT, capture_output=True, text=True, timeout=250)
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-2000:]
    return RunDirectory.open(run_dir)


@pytest.fixture(scope="module")
def eight(task: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return submit(task, tmp_path_factory.mktemp("eight") / "run")


def made(run: RunDirectory, step: int) -> dict[str, SequenceSample]:
    """Call → all that it made in a step, in the order of the samples' ids."""
    (path,) = run.root.glob(f"spills/step-{step:08d}.*.h5")
    with h5py.File(path, "r") as file:
        groups = sorted(file)
    parts = {call: [name for name in groups if name.startswith(f"{call}.")] for call in MAKING}
    found = {call: SequenceSample.gather([read_spill(path, name) for name in names]) for call, names in parts.items()}
    return {call: sample.select(sorted(sample.ids)) for call, sample in found.items()}


def advantages(run: RunDirectory, of_step: dict[str, SequenceSample]) -> np.ndarray:
    """As the experiment has them, before they are whitened."""
    rows = {key: sample.data[key].astype(np.float64) for sample in of_step.values() for key in sample.keys}
    ends = np.cumsum(of_step["actor_gen"].length("responses"))
    ppo = experiment_from(run.configuration()).ppo
    rewards = -ppo.kl.coef * (rows["logprobs"] - rows["ref_logprobs"])
    rewards[ends - 1] += rows["rewards"]
    return gae(rewards, rows["values"], np.append(0, ends), ppo.discount, ppo.gae_lambda)[0]


@pytest.mark.slow
def test_eight_workers_in_seven_layouts_compute_what_one_computes(
    eight: RunDirectory, task: Path, tmp_path: Path
) -> None:
    alone = submit(task, tmp_path / "one", *ALONE)
    plan = json.loads((eight.plan(0)).read_bytes())
    models = [it for it in plan["replicas"] if it["model"]["role"] != "reward"]
    replicas = [(parse_layout(it["layout"]), tuple(it["ranks"])) for it in models]
    together = {ranks for layout, mesh in replicas for ranks in sharing(layout, mesh) if len(ranks) > 1}
    assert len(together) == 14, "beside the group of all, which moves use"
    assert sorted((it["model"]["role"], it["layout"], it["ranks"]) for it in plan["replicas"]) == PLACED
    ours, theirs = remains(eight), remains(alone)
    assert (ours.ids, ours.trained) == (theirs.ids, theirs.trained)
    for row, reference in zip(ours.metrics, theirs.metrics, strict=True):
        assert list(row) == list(reference)
        np.testing.assert_allclose(list(row.values()), list(reference.values()), rtol=1e-9, atol=1e-11)
    for step in (1, 2, 3):
        rows, expected = made(eight, step), made(alone, step)
        for call, sample in rows.items():
            assert sample.meta == expected[call].meta, call
            for key, array in sample.data.items():
                exact = array.dtype.kind in "bi"
                np.testing.assert_allclose(array, expected[call].data[key], rtol=0, atol=0 if exact else 1e-9)
        np.testing.assert_allclose(advantages(eight, rows), advantages(alone, expected), rtol=0, atol=1e-9)
    assert set(moves_in(eight)) == {"actor@1", "critic@1"}


@pytest.mark.parametrize("calls", [("ref_inf", "rm_inf"), ("critic_train", "actor_train")])
def test_calls_on_disjoint_workers_are_made_at_once(eight: RunDirectory, calls: tuple[str, str]) -> None:
    made = made_in(eight)
    one, other = ([it.span for it in made if it.call == call] for call in calls)
    assert len(one) == len(other) == 3
    both = zip(one, other, strict=True)
    assert all(a.sent_s < b.ended_s and b.sent_s < a.ended_s for a, b in both), "both are sent, neither is over"


def test_both_models_learn_at_the_same_time(eight: RunDirectory) -> None:
    """Actor and critic, each on its half of the workers."""
    spans = {
        (it.call, it.step): (it.span.ended_s - it.span.seconds, it.span.ended_s)
        for it in made_in(eight)
        if it.call in ("actor_train", "critic_train")
    }
    pairs = [(spans["actor_train", step], spans["critic_train", step]) for step in (1, 2, 3)]
    together = [min(a[1], b[1]) - max(a[0], b[0]) for a, b in pairs]
    assert max(together) > 0, together
