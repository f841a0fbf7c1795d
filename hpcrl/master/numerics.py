"""What the bits of an update depend on beside its inputs, as the journal has it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcrl.durable.journal import Numerics
from hpcrl.placement.plan import Plan
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
