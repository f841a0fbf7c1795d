"""Responses of several turns in a script: the calls of all rounds, in their order."""

from typing import Any

from hpcrl.config.environment import ENVIRONMENT
from hpcrl.controller.data_proto import DataProto
from hpcrl.controller.groups import WorkerGroup
from hpcrl.dataflow.graph import MFC
from hpcrl.recipes.environment import rounds


def respond(
    actor: WorkerGroup, environment: WorkerGroup, batch: DataProto, e: Any, first: str = "", **how: Any
) -> DataProto:
    """The batch with responses, logprobs, finished, response_mask, environment_scores and turns: `actor` generates and
    `environment` answers in turn, as `e.environment` says, until each chat is over. `first` is the first call,
    `base_gen` for ReMax's greedy responses; `how` goes with each."""
    name = first or ("eval_gen" if batch.dataset == "eval" else "actor_gen")
    for call in rounds(e.environment, MFC(name, actor.role, "generate", ("prompts",))):
        ask = environment.step if call.role == ENVIRONMENT else actor.generate
        batch = batch.union(ask(batch, name=call.name, **how))
    return batch
