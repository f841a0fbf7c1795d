"""hpcrl's SFT role, a train step of all texts a round, as its worker runs it. Argument: the model's folder."""

import sys
from pathlib import Path

import numpy as np
from roles import build, rows_of, settle
from serving import serve
from shapes import texts

from hpcrl.config.control import ControlConfig
from hpcrl.config.data import DataConfig
from hpcrl.config.model import OptimizerConfig
from hpcrl.placement.plan import plan_for
from hpcrl.recipes.sft import SFTExperiment, SFTModelConfig
from hpcrl.workers.host import Work

settle()
folder = sys.argv[1]
experiment = SFTExperiment(
    data=DataConfig(train="texts.jsonl", tokenizer=folder, batch_size=len(texts())),
    actor=SFTModelConfig(path=folder, optimizer=OptimizerConfig(lr=1e-4)),
    control=ControlConfig(steps=1000),
)
role = build("actor", experiment, Path(folder, "tokenizer.json"))
batch = rows_of(
    prompts=[p for p, _ in texts()],
    answers=[a for _, a in texts()],
    answer_mask=[np.ones(len(a), np.bool_) for _, a in texts()],
)
call = next(call for call in plan_for(experiment).calls if call.kind == "train_step")


def step() -> dict[str, object]:
    work = Work(step=1, call=call.name, part=0, batch=batch, minibatches=(batch.ids,))
    total, weight = role.train_step(work, call).stats["loss"]
    return {"loss": total / weight}


serve(step, tokens=int(sum(map(np.size, batch.rows("prompts") + batch.rows("answers")))))
