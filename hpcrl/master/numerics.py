"""What the bits of an update depend on beside its inputs, as the journal has it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcrl.durable.journal import Numerics
from hpcrl.errors import HpcrlError
from hpcrl.placement.memory import estimate_models
from hpcrl.placement.plan import ModelName, Plan
from hpcrl.placement.worker_memory import loads_of
from hpcrl.recipes.algorithm import experiment_from
from hpcrl.wire.messages import WorkerHello, WorkerReady


@dataclass(frozen=True)
class Computing:
    """What workers, by rank, have said that they compute with."""

    hellos: Mapping[int, WorkerHello]
    ready: Mapping[int, WorkerReady]

    def attention(self, role: str, ranks: Sequence[int]) -> tuple[str, ...]:
        """That of a role at home; nothing where it has none."""
        kernels = tuple(self.ready[rank].attention.get(role, "") for rank in ranks)
        return kernels if any(kernels) else ()


def devices(by: Computing) -> tuple[dict[str, int], dict[str, float]]:
    """What workers with models compute on → how many do; and the mean of their speeds in each type of numbers."""
    models = [rank for rank in sorted(by.ready) if by.ready[rank].attention]
    speeds: dict[str, list[float]] = {}
    for rank in models:
        for dtype, speed in by.ready[rank].speeds.items():
            speeds.setdefault(dtype, []).append(speed)
    means = {dtype: float(f"{sum(found) / len(found):.4g}") for dtype, found in speeds.items()}
    return dict(Counter(by.hellos[rank].hardware for rank in models)), means


def expected_memory(plan: Plan) -> dict[str, float]:
    """Call → bytes that the fullest of its workers is to have in it; nothing where a model's folder does not say it."""
    experiment = experiment_from(plan.experiment)
    try:
        models = estimate_models(plan, experiment)
    except (HpcrlError, OSError):
        return {}
    found: dict[str, float] = {}
    alike = {_held(plan, worker.rank): worker.rank for worker in plan.workers}
    for rank in alike.values():
        for load in loads_of(plan, models, rank, experiment.cluster.device):
            if load.call in plan.at:
                found[load.call] = max(found.get(load.call, 0.0), float(round(load.bytes)))
    return {call: size for call, size in found.items() if size}


def _held(plan: Plan, rank: int) -> tuple[tuple[ModelName, int], ...]:
    """What a worker holds: others that hold the same stages have the same in memory."""
    here = (replica for replica in plan.replicas if rank in replica.places)
    return tuple((replica.model, replica.cut(rank).stage) for replica in here)


def numerics(
    plan: Plan, by: Computing, role: str, ranks: Sequence[int], inexact: tuple[str, ...], space: str
) -> Numerics:
    """What the bits of a role's train_step on these workers depend on; `space` is that of its parameters, if any."""
    section = plan.experiment[role]
    return Numerics(
        workers=len(ranks),
        hardware=tuple(by.hellos[rank].hardware for rank in ranks),
        software=tuple(by.hellos[rank].software for rank in ranks),
        threads=plan.experiment["cluster"]["threads_per_worker"],
        inexact=inexact,
        micro_batch_tokens=section.get("micro_batch_tokens", 0),
        deterministic=plan.experiment["deterministic"],
        layout=plan.cuts(plan.home(role)),
        backend=", ".join([section.get("backend", ""), *_reduced(section), *_offloaded(section), *_computed(space)]),
        neighbours=plan.neighbours(plan.home(role)),
        attention=by.attention(role, ranks),
    )


def _computed(space: str) -> list[str]:
    """Who computes it, if not hpcrl's own code."""
    return ["computed by transformers"] if space == "huggingface" else []


def _reduced(section: Mapping[str, Any]) -> list[str]:
    """How gradients are added up, if not once an update."""
    how = section.get("reduce", "update")
    return [] if how == "update" else [f"reduced each {how}"]


def _offloaded(section: Mapping[str, Any]) -> list[str]:
    """What of it is updated by the host's processor."""
    what = section.get("offload", "none")
    return [] if what == "none" else [f"{what} on the host"]
