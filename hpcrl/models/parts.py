"""A rank's parts of whole parameters, as they come from files or a generator of random numbers."""

from collections.abc import Iterable, Iterator

from torch import Tensor

from hpcrl.families.config import DecoderConfig
from hpcrl.placement.shards import WHOLE, Cut, held


def parts_of(config: DecoderConfig, cut: Cut, parameters: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """What a rank has of each, one after another; nothing of those that it does not hold. Padding is zero."""
    if cut == WHOLE:
        yield from parameters
        return
    holds = {part.parameter.name: part for part in held(config, cut)}
    for name, parameter in parameters:
        if name not in holds:
            continue
        part = holds[name]
        own, whole = parameter.new_zeros(part.parameter.numel), parameter.reshape(-1)
        for span in part.spans:
            place = span.place
            begin = whole.storage_offset() + place.first
            theirs = whole.as_strided((place.rows, place.run), (place.stride, 1), begin)
            own.as_strided((place.rows, place.run), (span.step, 1), span.offset).copy_(theirs)
        yield name, own.view(part.parameter.shape)
