"""hpcrl's DPO or reward model, a step of all pairs a round, as a worker runs its roles. Arguments: the model's folder,
dpo or reward_model.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
from roles import build, settle
from serving import serve
from shapes import pairs

from hpcrl.config.control import ControlConfig
from hpcrl.config.data import DataConfig
from hpcrl.config.model import OptimizerConfig, ReferenceConfig
from hpcrl.data.samples import SequenceSample
from hpcrl.placement.plan import plan_for
from hpcrl.recipes.algorithm import algorithm_of
from hpcrl.recipes.dpo import DPOModelConfig
from hpcrl.recipes.reward_model import RewardModelConfig
from hpcrl.workers.host import Work

folder, method = sys.argv[1:]
settle()
rate = OptimizerConfig(lr=1e-5, weight_decay=0.0)
models: dict[str, Any] = {
    "dpo": {"actor": DPOModelConfig(path=folder, optimizer=rate), "reference": ReferenceConfig(path=folder)},
    "reward_model": {"reward_model": RewardModelConfig(path=folder, optimizer=rate)},
}[method]
experiment = algorithm_of(method).experiment(
    data=DataConfig(train="pairs.jsonl", tokenizer=folder, batch_size=len(pairs())),
    control=ControlConfig(steps=1000),
    **models,
)
calls = [call for call in plan_for(experiment).calls if call.dataset == "train"]
roles = {name: build(name, experiment, Path(folder, "tokenizer.json")) for name in models}
prompts, *answers = zip(*pairs(), strict=True)
rows = {
    "prompts": [np.array(prompt, np.int32) for prompt in prompts],
    **{
        side: [[np.array(answer, np.int32)] for answer in of_side]
        for side, of_side in zip(("chosen", "rejected"), answers, strict=True)
    },
    "margins": [np.zeros(1, np.float32) for _ in prompts],
}


def step() -> dict[str, object]:
    batch = SequenceSample.from_rows([f"{row:02d}@0" for row in range(len(prompts))], rows)
    for call in calls:
        work = Work(1, call.name, 0, batch, (batch.ids,) if call.kind == "train_step" else ())
        outcome = getattr(roles[call.role], call.kind)(work, call)
        if outcome.sample is not None:
            batch = batch.merge(outcome.sample)
    means = {name: total / weight for name, (total, weight) in outcome.stats.items()}
    return {"loss": means["loss"], "logps/chosen": means.get("chosen_logp")}


serve(step)
