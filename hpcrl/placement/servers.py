"""The servers that make responses beside workers: which of them a node has, and what each is told. Pure but for the
models' config.json."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcrl.config.data import tokenizer_of
from hpcrl.config.experiment import ExperimentConfig
from hpcrl.config.judge import drawing_of
from hpcrl.config.model import models_of
from hpcrl.families.reader import parameter_count
from hpcrl.placement.abilities import server_of
from hpcrl.placement.layouts import Ranks
from hpcrl.placement.memory import BYTES, head_model, longest_sequence
from hpcrl.placement.plan import Plan, ReplicaPlan
from hpcrl.placement.served_memory import cache_bytes
from hpcrl.recipes.algorithm import algorithm_of

WEIGHTS, TEMPORARY, PID, LOG, WHY = "weights", "tmp", "pid", "log", "why"
"""Beside a server's socket: the folder into which new weights are written; what is $TMPDIR to it; who serves; where it
prints; and why it serves no more, before it ends. (Its own file, which imports nothing of hpcrl, has the last, too.)"""
DTYPES = {"fp32": "float32", "bf16": "bfloat16"}


@dataclass(frozen=True)
class ServerPlan:
    """A server of one part of a copy. Two that are equal serve alike: an attempt takes over that of the one before."""

    model: str
    head: int
    """The worker that asks it."""
    ranks: Ranks
    """The part's workers, on whose devices it computes."""
    python: str
    """Empty: what runs hpcrl."""
    module: str
    settings: tuple[tuple[str, Any], ...]
    """What it is told of the model and of generation, by name."""
    weight_bytes: int
    """Of the whole model."""
    folders: tuple[str, ...]
    variables: tuple[tuple[str, str], ...]
    """Both as of a `Server`."""


def servers_of(plan: Plan, experiment: ExperimentConfig, ranks: Ranks) -> tuple[ServerPlan, ...]:
    """Those that workers of these ranks ask. Raises ConfigurationError where a model's config.json is gone."""
    return tuple(
        _server(replica, part.head, part.ranks, experiment)
        for replica in plan.replicas
        if replica.served
        for part in replica.parts
        if part.head in ranks
    )


def _server(replica: ReplicaPlan, head: int, ranks: Ranks, experiment: ExperimentConfig) -> ServerPlan:
    config = models_of(experiment)[replica.role]
    server, drawing = server_of(replica.backend), drawing_of(experiment, replica.role)
    tokenizer = tokenizer_of(experiment) if replica.role == "actor" else (f"{replica.role}.path", Path(config.path))
    assert server is not None and drawing is not None and tokenizer is not None, replica.backend
    generation, longest_prompt = drawing
    model = head_model(replica.role, config, algorithm_of(experiment))
    longest = longest_sequence(model, longest_prompt, generation)
    size = BYTES[config.dtype]
    settings = {
        "model": str(Path(config.path).absolute()),
        "tokenizer": str(tokenizer[1].absolute()) if generation.stop else "",
        "dtype": DTYPES[config.dtype],
        "tensor_parallel": replica.arrangement.tp,
        "longest": longest,
        "slots": generation.slots,
        "prefill_tokens": config.micro_batch_tokens,
        "cache_bytes": cache_bytes(model, replica.arrangement, generation.slots, longest, size),
    }
    weights = parameter_count(model) * size
    told = replica.python, server.module, tuple(settings.items()), weights, server.folders, server.variables
    return ServerPlan(str(replica.model), head, ranks, *told)
