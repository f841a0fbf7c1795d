"""What ranks, or files, have of a model in one buffer each, told shortly enough to plan moves of large models.

Most parameters of a model are cut alike: a holding says once how (a pattern), and of each parameter only where it is.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from hpcrl.backends.backend import CutBy
from hpcrl.families.config import DecoderConfig
from hpcrl.families.family import Parameter
from hpcrl.families.places import Span, sliced
from hpcrl.placement.buffers import lay_out, shard_bounds
from hpcrl.placement.layouts import Layout, Ranks
from hpcrl.placement.own_parts import own_parts
from hpcrl.placement.shards import cut_of, held, stage_parameters

Pattern = tuple[tuple[int, int, int, int, int, int], ...]
"""Spans of any one parameter: first, rows, run, stride of each place, and offset, step from the pattern's begin."""


@dataclass(frozen=True)
class Holding:
    """The i-th parameter is `names[i]`; it lies in the pattern `patterns[kinds[i]]`, which begins at `offsets[i]`."""

    names: tuple[str, ...] = ()
    offsets: tuple[int, ...] = ()
    kinds: tuple[int, ...] = ()
    patterns: tuple[Pattern, ...] = ()


NOTHING = Holding()


def holding(spans: Iterable[Span]) -> Holding:
    """That of any spans of a buffer, or of a file."""
    found: defaultdict[str, list[Span]] = defaultdict(list)
    for span in spans:
        found[span.place.parameter].append(span)
    offsets = tuple(min(span.offset for span in parts) for parts in found.values())
    patterns = [_pattern(parts, begin) for parts, begin in zip(found.values(), offsets, strict=True)]
    numbers = {pattern: number for number, pattern in enumerate(dict.fromkeys(patterns))}
    return Holding(tuple(found), offsets, tuple(numbers[pattern] for pattern in patterns), tuple(numbers))


def holdings(config: DecoderConfig, layout: Layout, ranks: Ranks, world: int) -> tuple[Holding, ...]:
    """What each of `world` workers has in its flat buffer of a model that is laid out over `ranks`.

    Raises ValueError where the model cannot be cut so.
    """
    made = [_of_stage(parameters, layout.tp) for parameters in stage_parameters(config, layout.pp)]
    found = [NOTHING] * world
    for index, rank in enumerate(ranks):
        cut = cut_of(layout, index)
        found[rank] = made[cut.stage][cut.tensor]
    return tuple(found)


def slices(config: DecoderConfig, layout: Layout, ranks: Ranks, world: int) -> tuple[Holding, ...]:
    """What each worker has in its slice of such a buffer, which data-parallel ranks share: of masters and moments."""
    found = [NOTHING] * world
    for index, rank in enumerate(ranks):
        parts = held(config, cut_of(layout, index))
        buffer = lay_out(part.parameter for part in parts)
        spans = (span.moved(at) for part, at in zip(parts, buffer.offsets, strict=True) for span in part.spans)
        offset, length = shard_bounds(buffer.numel, layout.dp)[index // layout.tp % layout.dp]
        found[rank] = holding(sliced(spans, offset, offset + length))
    return tuple(found)


def part_holdings(config: DecoderConfig, ranks: Ranks, world: int, by: CutBy) -> tuple[Holding, ...]:
    """What each worker has of a model of which these ranks have their parts of every parameter, of masters too."""
    found = [NOTHING] * world
    for index, rank in enumerate(ranks):
        found[rank] = holding(own_parts(config, len(ranks), index, by).spans())
    return tuple(found)


def served_holdings(config: DecoderConfig, layout: Layout, ranks: Ranks, world: int) -> tuple[Holding, ...]:
    """What each worker has of a model that servers hold, until these have it: the first of each part all of it."""
    return holdings(config, Layout(dp=layout.dp), ranks[:: layout.tp], world)


def _of_stage(parameters: tuple[Parameter, ...], tp: int) -> tuple[Holding, ...]:
    """What each tensor rank has of a stage. All have it at the same offsets."""
    cuts = [(parameter.shape, parameter.tp_dim, parameter.tp_blocks) for parameter in parameters]
    cut_alike = dict(zip(cuts, parameters, strict=True))  # one of each
    numbers = {cut: number for number, cut in enumerate(cut_alike)}
    names = tuple(parameter.name for parameter in parameters)
    offsets = lay_out(parameter.cut(tp) for parameter in parameters).offsets
    kinds = tuple(numbers[cut] for cut in cuts)
    return tuple(
        Holding(names, offsets, kinds, tuple(_pattern(parameter.spans(tensor, tp)) for parameter in cut_alike.values()))
        for tensor in range(tp)
    )


def _pattern(spans: Iterable[Span], begin: int = 0) -> Pattern:
    return tuple(
        (place.first, place.rows, place.run, place.stride, span.offset - begin, span.step)
        for span in spans
        for place in [span.place]
    )
