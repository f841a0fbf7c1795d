"""hpcrl's PPO roles and a frozen reward model, a step a round, as a worker runs them. Arguments: the model's folder,
and a new folder for a run where the step's samples are to be archived too, or `unwatched`.

What calls do is measured as a worker measures it; `own_s` is what that takes, `archive_s` what the archive does. An
unwatched step has neither.

The project's reward role has no model yet: a frozen value head's last number stands in for one, as TRL has it.
"""

import sys
from pathlib import Path

import numpy as np
from archiver import Archiver
from roles import Unwatched, Watched, build, builder, rows_of, settle
from serving import serve
from shapes import RESPONSE_TOKENS, prompts

from hpcrl.algos.estimates import responses
from hpcrl.config.control import ControlConfig
from hpcrl.config.data import DataConfig
from hpcrl.config.generation import GenerationConfig
from hpcrl.config.kl import KLConfig
from hpcrl.config.model import OptimizerConfig, ReferenceConfig, TrainedModelConfig
from hpcrl.config.reward import RewardConfig
from hpcrl.data.samples import SequenceSample
from hpcrl.placement.plan import plan_for
from hpcrl.recipes.ppo import CriticConfig, PPOConfig, PPOExperiment
from hpcrl.workers.host import Work

MINIBATCHES = 4
UNWATCHED = "unwatched"

settle()
folder = sys.argv[1]
rate = OptimizerConfig(lr=1e-5)
experiment = PPOExperiment(
    data=DataConfig(train="prompts.jsonl", tokenizer=folder, batch_size=len(prompts())),
    actor=TrainedModelConfig(path=folder, optimizer=rate),
    critic=CriticConfig(path=folder, optimizer=rate),
    reference=ReferenceConfig(path=folder),
    reward=RewardConfig(function="exact"),
    generation=GenerationConfig(max_new_tokens=RESPONSE_TOKENS),
    ppo=PPOConfig(minibatches=MINIBATCHES, kl=KLConfig(mode="reward")),
    control=ControlConfig(steps=1000),
)
tokenizer = Path(folder, "tokenizer.json")
mode = sys.argv[2] if len(sys.argv) > 2 else ""
meter = Unwatched() if mode == UNWATCHED else Watched()
roles = {name: build(name, experiment, tokenizer, meter) for name in ("actor", "critic", "reference")}
reward_model = builder("reference", experiment, tokenizer, head="value", meter=meter).engine()
plan = plan_for(experiment)
archiver = Archiver(experiment, Path(mode), rows_of(prompts=prompts())) if mode not in ("", UNWATCHED) else None
drawn = [call for call in plan.calls if call.dataset == "train"]
calls = sorted(drawn, key=lambda call: call.kind == "train_step")


def step() -> dict[str, object]:
    batch = rows_of(prompts=prompts())
    size = len(batch.ids) // MINIBATCHES
    outputs = {}
    minibatches = tuple(batch.ids[start : start + size] for start in range(0, len(batch.ids), size))
    for call in calls:
        meter.begin()
        work = Work(1, call.name, 0, batch, minibatches if call.kind == "train_step" else ())
        made = score(batch) if call.role == "reward" else getattr(roles[call.role], call.kind)(work, call).sample
        if made is not None:
            batch = batch.merge(made)
            outputs[call.name] = made
        meter.taken(0.0, 0.0)
    kept = {} if archiver is None else archiver.keep(outputs)
    return {"tokens": int(batch.data["responses"].size), "own_s": meter.seconds(), **kept}


def score(batch: SequenceSample) -> SequenceSample:
    per_token = reward_model.forward(responses(batch))
    ends = np.cumsum([len(row) for row in batch.rows("responses")]) - 1
    return SequenceSample.from_rows(batch.ids, {"rewards": [np.array([per_token[end]], np.float32) for end in ends]})


serve(step)
