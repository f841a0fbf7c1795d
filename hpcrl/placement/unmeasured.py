"""What a search has reckoned of models, since its profile lacks it. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from hpcrl.dataflow.graph import MFC
from hpcrl.placement.model_costs import ModelCosts, block_shape
from hpcrl.placement.rates import Pass

PASSES: Mapping[str, tuple[Pass, ...]] = MappingProxyType(
    {"train_step": ("taught", "backward"), "generate": ("prefill", "decode")}
)
"""Kind of call → the passes of its blocks; of others forward alone."""


class Unmeasured(NamedTuple):
    """Blocks in calls of a kind on workers of which so many have each matrix together."""

    role: str
    kind: str
    shape: str
    backend: str
    dtype: str
    tp: int


def unmeasured(call: MFC, costs: ModelCosts) -> Iterator[Unmeasured]:
    """Of a call; nothing without a profile, or where calls of this name were measured as a whole."""
    if not costs.rates.measured or call.name in costs.rates.ran.scales:
        return
    if not all(costs.is_measured(of) for of in PASSES.get(call.kind, ("forward",))):
        place = costs.place
        yield Unmeasured(call.role, call.kind, block_shape(costs.config), place.backend, costs.dtype, place.tp.size)


def in_words(found: Iterable[Unmeasured]) -> Iterator[str]:
    """A sentence for all that differ in tensor ranks alone."""
    ranks: dict[Unmeasured, list[str]] = {}
    for it in sorted(found):
        ranks.setdefault(it._replace(tp=0), []).append(str(it.tp))
    for it, tp in ranks.items():
        blocks = f"blocks of shape {it.shape} in {it.backend} {it.dtype} with tp = {', '.join(tp)}"
        yield f"The profile lacks {it.role}'s {it.kind} of {blocks}: that is reckoned from operations and bytes."
