"""Run directories as a master and its workers leave them, made without running anything."""

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcrl.config.changes import with_settings
from hpcrl.config.cluster import ClusterConfig
from hpcrl.config.control import ControlConfig
from hpcrl.config.data import DataConfig
from hpcrl.config.experiment import to_dict
from hpcrl.config.model import ReferenceConfig, TrainedModelConfig
from hpcrl.config.reward import RewardConfig
from hpcrl.cost_fold import CostFold, SeenFold
from hpcrl.costs import encode as encode_costs
from hpcrl.costs import encode_live
from hpcrl.durable.records import KeyPair, Verdict
from hpcrl.durable.rundir import RunDirectory
from hpcrl.event_log import Entry, encode
from hpcrl.events import (
    AgentConnected,
    AttemptBegun,
    AttemptEnded,
    Event,
    StepClosed,
    StepOpened,
    WorkerEnded,
    WorkersReady,
)
from hpcrl.inspect.lines import Tail
from hpcrl.progress import PartExecuted, PartSent, Progress
from hpcrl.recipes.ppo import CriticConfig, PPOExperiment
from hpcrl.whereabouts import Doing

BEGAN = 1_700_000_000.0
STEP_S = 0.5
RECOVERED = "starts from the checkpoint of step 10: actor, critic\nreplays 10 train steps: step 11 actor_train, …"


def ppo_experiment(steps: int | None = 60) -> PPOExperiment:
    return PPOExperiment(
        data=DataConfig(train="/data/train.jsonl", evaluate="/data/test.jsonl", batch_size=32),
        actor=TrainedModelConfig(path="/models/actor"),
        critic=CriticConfig(path="/models/actor"),
        reference=ReferenceConfig(path="/models/actor"),
        reward=RewardConfig(function="gsm8k"),
        control=ControlConfig(steps=steps),
    )


def ppo_row(step: int) -> dict[str, float]:
    """A row of a run that learns; evaluated every 10 steps."""
    rise = 1 - math.exp(-step / 20)
    row: dict[str, float] = {"step": step, "epoch": step // 30, "samples": 32}
    if step:
        row |= {
            "rew_inf/reward": 0.3 + 0.6 * rise,
            "actor_train/kl": 0.02 * rise,
            "actor_gen/response_length": 6.0 - rise,
            "actor_train/loss": -0.01,
            "critic_train/loss": 0.1 * (1 - rise),
        }
    if step % 10 == 0:
        row["eval_rew/accuracy"] = 0.4 + 0.5 * rise
    return row


class MadeRun:
    """Writes what the processes of a run would write, at times of its own."""

    def __init__(self, root: Path, steps: int | None = 60, cluster: ClusterConfig | None = None) -> None:
        self.run = RunDirectory.create(
            root,
            experiment=to_dict(
                dataclasses.replace(ppo_experiment(steps), cluster=cluster or ClusterConfig(type="local"))
            ),
            host="hpcrl.x:Y",
            key=KeyPair("public", "secret"),
            inputs={},
        )
        self.time = BEGAN
        self.attempt = -1
        self.costs, self.seen = CostFold(), SeenFold()

    def begin(self, ready: bool = True, steps: int = 60, paused: bool = False, submission: str = "submission") -> None:
        """A new attempt, with both workers ready. It repeats the rows of the one before."""
        before = self.attempt
        self.attempt = self.run.claim_attempt(submission)
        self.run.adopted(self.attempt).write_bytes(b"{}")
        self.costs, self.seen = CostFold(), SeenFold()
        if before >= 0 and self.run.metrics(before).exists():
            self.run.metrics(self.attempt).write_bytes(self.run.metrics(before).read_bytes())
            for row in Tail(self.run.metrics(before)).rows():
                self.seen.feed(row)
        self.write(AttemptBegun(self.attempt, RECOVERED, paused, steps))
        self.write(AgentConnected(0, "n000", 1, welcome=True))
        if ready:
            self.write(WorkersReady(2))

    def write(self, event: Event, after_s: float = 0.01, process: str = "") -> Entry:
        """As the master, or as another process."""
        self.time += after_s
        path = self.run.worker_log(self.attempt, process) if process else self.run.events(self.attempt)
        self._append(path, encode(entry := Entry(self.time, event, self.time - BEGAN)))
        if not process:
            self.costs.feed(entry)
            self.show()
        return entry

    def follow(self, progress: Progress, after_s: float = 0.01) -> None:
        """What the master adds up."""
        self.time += after_s
        self.costs.follow(progress, self.time, self.time - BEGAN)
        self.show()

    def show(self, doing: Mapping[int, Doing] | None = None) -> None:
        """What is under way, as the workers say what they do."""
        live = self.costs.live(self.time, self.time - BEGAN, doing or {})
        self.run.files.replace(self.run.live(self.attempt), encode_live(live))

    def send(self, step: int, call: str, part: int, ranks: list[int]) -> None:
        self.follow(PartSent(step, call, part, tuple(ranks)))

    def execute(self, step: int, call: str, part: int, ranks: list[int], tokens: int = 0, seconds: float = 0.1) -> None:
        self.follow(PartExecuted(step, call, part, tuple(ranks), seconds, seconds, tokens=tokens))

    def step(self, step: int) -> None:
        """A whole step on two workers."""
        started = self.time
        self.write(StepOpened(step, 0, 32))
        for part in (0, 1):
            self.send(step, "actor_gen", part, [part])
        for part in (0, 1):
            self.execute(step, "actor_gen", part, [part], tokens=100, seconds=0.2)
        self.send(step, "actor_train", 0, [0, 1])
        self.execute(step, "actor_train", 0, [0, 1])
        self.time = started + STEP_S
        self.close(step, ppo_row(step))

    def close(self, step: int, row: Mapping[str, float], seconds: float = STEP_S) -> None:
        """A step closes with these metrics, now, so long after it was opened."""
        self._append(self.run.metrics(self.attempt), json.dumps(row).encode() + b"\n")
        entry = self.write(StepClosed(step, seconds, int(row.get("samples", 0))), after_s=0.0)
        size = self.run.events(self.attempt).stat().st_size
        self._append(self.run.costs(self.attempt), encode_costs(self.costs.row(entry, size, self.seen.feed(row))))
        self.show()

    def steps(self, first: int, last: int) -> None:
        for step in range(first, last + 1):
            self.step(step)

    def verdict(self, state: str, exit_code: int, reason: str) -> None:
        self.write(AttemptEnded(state, reason, exit_code))
        verdict = Verdict(self.attempt, state, exit_code, reason, None, None, None, self.time)
        self.run.publish_verdict(self.attempt, verdict)

    def _append(self, path: Path, line: bytes) -> None:
        with open(path, "ab") as file:
            file.write(line)


def ended_run(root: Path) -> MadeRun:
    """A run of 60 steps that lost a worker after step 25 and went on."""
    made = MadeRun(root)
    made.begin()
    made.steps(0, 25)
    made.write(WorkerEnded(1, 0, "killed by SIGKILL", "attempts/000/logs/worker-1.err"))
    made.write(AttemptEnded("lost", "worker-1: killed by SIGKILL"))
    made.begin()
    made.steps(26, 60)
    made.verdict("done", 0, "step 60 was the last")
    return made


def submit_with(run: RunDirectory, nonce: str, settings: Mapping[str, Any]) -> int:
    """Let a submission run the newest settings with other values for these dotted keys; the new version."""
    version = run.add_settings(with_settings(run.configuration(), settings))
    run.submit_settings(nonce, version)
    return version
