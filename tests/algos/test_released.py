"""PPO whose models leave their device between calls: the same run to the bit, and nothing on the device meanwhile."""

import dataclasses
from pathlib import Path

from support.chaos import create_run, finish, outputs, remains, rows_of
from support.faults import Strike
from support.hosts import write_task
from support.judges import write_judge
from support.tiny_ppo import tiny_ppo

from hpcrl.config.classifier import ClassifierConfig
from hpcrl.config.model import BetweenConfig, TrainedBetweenConfig
from hpcrl.config.reward import RewardConfig
from hpcrl.recipes.ppo import PPOExperiment

LONGEST_S = 240.0
WAITING = BetweenConfig(parameters="host")
KINDS = ("parameters", "gradients", "optimizer")


def released(experiment: PPOExperiment) -> PPOExperiment:
    trained = TrainedBetweenConfig(parameters="host", gradients="drop", optimizer="host")
    roles = {role: dataclasses.replace(getattr(experiment, role), between=trained) for role in ("actor", "critic")}
    frozen = ("reference", "reward_model")
    roles |= {role: dataclasses.replace(getattr(experiment, role), between=WAITING) for role in frozen}
    return dataclasses.replace(experiment, **roles)


def test_models_that_leave_the_device_between_calls_make_the_same_run(tmp_path: Path) -> None:
    write_task(tmp_path)
    write_judge(tmp_path, 1)
    judged = RewardConfig(components={"judge": {"role": "reward_model"}})
    judge = ClassifierConfig(path=str(tmp_path / "judge"))
    experiment = dataclasses.replace(tiny_ppo(tmp_path, steps=3, nodes=1), reward=judged, reward_model=judge)
    plain, run = create_run(tmp_path / "plain", experiment), create_run(tmp_path / "run", released(experiment))
    assert finish(plain, timeout_s=LONGEST_S) == [0], outputs(plain)
    killed = Strike(tmp_path, "kill", "worker-1", "worker.executed", "KILL", nth=9)
    assert finish(run, killed, timeout_s=LONGEST_S) == [0], outputs(run)
    assert remains(run) == remains(plain)
    held = [row for path in run.logs(1).glob("worker-*.jsonl") for row in rows_of(path) if row["event"] == "held"]
    trained = [row["bytes"] for row in held if row["call"] == "actor_train"]
    assert trained and all(bytes_[f"actor.{kind}"][1] > 0 for bytes_ in trained for kind in KINDS)
    assert all(not before and not after for row in held for before, _, after in row["bytes"].values())
    assert all(0 < row["seconds"] < LONGEST_S for row in held)
    for call, role in (("actor_gen", "actor"), ("rm_inf", "reward_model")):
        made = [list(row["bytes"]) for row in held if row["call"] == call]
        assert made and all(names == [f"{role}.parameters"] for names in made)
