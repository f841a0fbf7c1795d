"""Which parameters a rank of a layout holds: its stage's layers, its tensor rank's part of each. Arithmetic only."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from hpcrl.data.partition import contiguous
from hpcrl.families.config import DecoderConfig
from hpcrl.families.family import Parameter
from hpcrl.families.places import Span
from hpcrl.families.reader import parameters_of
from hpcrl.placement.layouts import Layout

EMBEDDING = "layers.0.embedding"
"""The parameter that a tied head multiplies by too."""


@dataclass(frozen=True)
class Cut:
    """One rank's share of a model: tensor rank `tensor` of `tp`, in stage `stage` of `pp`."""

    tensor: int = 0
    tp: int = 1
    stage: int = 0
    pp: int = 1

    @property
    def is_first(self) -> bool:
        """Whether tokens enter here."""
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        """Whether logits, or values, arise here."""
        return self.stage == self.pp - 1


WHOLE = Cut()


@dataclass(frozen=True)
class Held:
    """A parameter as a rank has it, and the places of its elements, counted from its own first element."""

    parameter: Parameter
    spans: tuple[Span, ...]


def cut_of(layout: Layout, index: int) -> Cut:
    """That of the index-th rank of a layout: the same for all of its data-parallel parts."""
    return Cut(index % layout.tp, layout.tp, index // (layout.tp * layout.dp), layout.pp)


@lru_cache(maxsize=1024)
def stages(config: DecoderConfig, pp: int) -> tuple[range, ...]:
    """The layers of each stage, so that the stage with most parameters has as few as can be. Each has a block.

    The embedding goes with the first block, the final norm and the head with the last; a tied head counts as one.
    Adapters go with their layers. Raises ValueError where there are fewer blocks than stages.
    """
    config = config.base
    if pp > config.blocks:
        raise ValueError(f"{pp} stages need a block each, and the model has {config.blocks}.")
    sizes: defaultdict[int, int] = defaultdict(int)
    for parameter in parameters_of(config):
        sizes[min(max(parameter.layer, 1), config.blocks)] += parameter.numel
        if pp > 1 and config.shares_embedding and parameter.name == EMBEDDING:
            sizes[config.blocks] += parameter.numel
    runs = contiguous([sizes[block] for block in range(1, config.blocks + 1)], pp)
    last = len(runs) - 1
    return tuple(
        range(0 if stage == 0 else run.start + 1, run.stop + (2 if stage == last else 1))
        for stage, run in enumerate(runs)
    )


@lru_cache(maxsize=1024)
def stage_parameters(config: DecoderConfig, pp: int) -> tuple[tuple[Parameter, ...], ...]:
    """The parameters of each stage, whole, in the order in which its ranks hold them: layer by layer."""
    found: tuple[list[Parameter], ...] = tuple([] for _ in range(pp))
    stage_of = {layer: stage for stage, layers in enumerate(stages(config, pp)) for layer in layers}
    last = Cut(stage=pp - 1, pp=pp)
    for parameter in parameters_of(config):
        found[stage_of[parameter.layer]].append(parameter)
        if _is_copied(config, last, parameter):
            found[-1].append(parameter)
    return tuple(map(tuple, found))


@lru_cache(maxsize=4096)
def sizes_held(config: DecoderConfig, cut: Cut) -> tuple[int, ...]:
    """How many numbers of each of them a rank has, layer by layer, padding included: the same of all tensor ranks.
    Raises ValueError where the model cannot be cut so."""
    sizes = _sizes(config, cut.tp)
    return tuple(sizes[parameter.name] for parameter in stage_parameters(config, cut.pp)[cut.stage])


@lru_cache(maxsize=256)
def _sizes(config: DecoderConfig, tp: int) -> Mapping[str, int]:
    return {parameter.name: parameter.cut(tp).numel for parameter in parameters_of(config)}


@lru_cache(maxsize=256)
def held(config: DecoderConfig, cut: Cut) -> tuple[Held, ...]:
    """All that a rank holds, layer by layer. Raises ValueError where the model cannot be cut so."""
    return tuple(_held(config, cut))


def _held(config: DecoderConfig, cut: Cut) -> Iterator[Held]:
    for parameter in stage_parameters(config, cut.pp)[cut.stage]:
        spans = tuple(parameter.spans(cut.tensor, cut.tp))
        if _is_copied(config, cut, parameter):
            spans = tuple(span.disowned() for span in spans)
        yield Held(parameter.cut(cut.tp), spans)


def _is_copied(config: DecoderConfig, cut: Cut, parameter: Parameter) -> bool:
    """Whether the last stage has it besides the first, whose it is: a tied head's matrix."""
    return cut.is_last and not cut.is_first and config.shares_embedding and parameter.name == EMBEDDING
