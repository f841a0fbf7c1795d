"""What a call takes of memory on a stage of its model, in the parts that a search adds up, and what of the model waits
on the host between calls."""

from collections.abc import Collection, Iterable
from math import ceil
from typing import Literal

from hpcrl.dataflow.graph import MFC, Kind
from hpcrl.ops.search_problem import Stage
from hpcrl.placement.memory import Memory
from hpcrl.placement.plan import ReplicaPlan
from hpcrl.placement.worker_memory import MOVED, NEEDED, STATE, between, staged, stays, taken

Work = Kind | Literal["move"]
"""What is done with a model: a call of a kind, or a move of its parameters."""
WAYS = {"inference": 1, "generate": 1}
"""How often what waits on the host is copied for it: what is only read need not go back, all else comes and goes."""


def stage_of(call: MFC, memory: Memory, replica: ReplicaPlan, device: str, is_moved: bool) -> Stage:
    """Bytes on each worker of a stage. `is_moved`: whether copies of the model elsewhere are sent its parameters.

    Only what is changed leaves the device as its settings say: of a model that nothing changes, and of copies, the
    search decides it.
    """
    needed = NEEDED.get(call.kind, MOVED)
    gone = {kind: away(replica, memory, (kind,), device) for kind in (STATE if call.changes else ())}
    own = sum(size for kind, size in gone.items() if kind in needed and kind not in MOVED)
    sent = staged([memory.parameters or memory.merging]) + (memory.merging if call.changes else 0.0)
    return Stage(
        ceil(memory.lasting - sum(gone.values()) + (memory.offloaded if device != "cuda" else 0.0)),
        ceil(taken(call.kind, memory) + own),
        ceil(gone.get("parameters", 0.0)),
        ceil(sent) if is_moved else 0,
    )


def away(replica: ReplicaPlan, memory: Memory, kinds: Collection[str], device: str) -> float:
    """Bytes of these kinds that are on the device in the calls alone that need them."""
    return sum(getattr(memory, kind) for kind in kinds if not stays(between(replica, memory, kind), device))


def waiting_bytes(work: Work, replica: ReplicaPlan, stages: Iterable[Memory]) -> float:
    """What waits in the host's memory of what the work needs, on the worker with most."""
    needed = NEEDED.get(work, MOVED)
    return max(sum(getattr(it, of) for of in needed if between(replica, it, of) == "host") for it in stages)
