"""hpcrl's GRPO or RLOO, a step a round, as a worker runs its roles. Arguments: the model's folder, grpo or rloo.

One optimizer step on each batch of responses; RLOO with its KL penalty in the reward.
"""

import sys
from pathlib import Path

import numpy as np
from roles import build, settle
from serving import serve
from shapes import GROUP, GROUPS, RESPONSE_TOKENS, even_share, group_prompts

from hpcrl.config.control import ControlConfig
from hpcrl.config.data import GroupDataConfig
from hpcrl.config.generation import GenerationConfig
from hpcrl.config.model import OptimizerConfig, ReferenceConfig, TrainedModelConfig
from hpcrl.config.reward import RewardConfig
from hpcrl.data.samples import SequenceSample
from hpcrl.placement.plan import plan_for
from hpcrl.plugins import load
from hpcrl.recipes.algorithm import algorithm_of
from hpcrl.workers.host import Work

folder, method = sys.argv[1:]
settle()
section = load(f"hpcrl.recipes.{method}:{method.upper()}Config")

experiment = algorithm_of(method).experiment(
    data=GroupDataConfig(train="prompts.jsonl", tokenizer=folder, batch_size=GROUPS, samples_per_prompt=GROUP),
    actor=TrainedModelConfig(path=folder, optimizer=OptimizerConfig(lr=1e-5)),
    reference=ReferenceConfig(path=folder),
    reward=RewardConfig(function="exact"),
    generation=GenerationConfig(max_new_tokens=RESPONSE_TOKENS),
    control=ControlConfig(steps=1000),
    **{method: section(minibatches=1)},
)
plan = plan_for(experiment)
calls = [call for call in plan.calls if call.dataset == "train"]
names = {call.role for call in calls} - {"reward"}
roles = {name: build(name, experiment, Path(folder, "tokenizer.json")) for name in names}


def step() -> dict[str, object]:
    prompts = [np.array(prompt, np.int32) for prompt in group_prompts() for _ in range(GROUP)]
    ids = [f"{row:02d}@0#{k}" for row in range(GROUPS) for k in range(GROUP)]
    batch = SequenceSample.from_rows(ids, {"prompts": prompts})
    for call in calls:
        work = Work(1, call.name, 0, batch, (batch.ids,) if call.kind == "train_step" else ())
        made = score(batch) if call.role == "reward" else getattr(roles[call.role], call.kind)(work, call).sample
        if made is not None:
            batch = batch.merge(made)
    return {"tokens": int(batch.data["responses"].size)}


def score(batch: SequenceSample) -> SequenceSample:
    rewards = [np.array([even_share(row.tolist())], np.float32) for row in batch.rows("responses")]
    return SequenceSample.from_rows(batch.ids, {"rewards": rewards})


serve(step)
