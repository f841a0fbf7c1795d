"""The checksums of `hpcrl.ops.checksum`, of tensors on any device."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor

from hpcrl.engines.chunks import chunks
from hpcrl.families.places import Span, sliced, whole
from hpcrl.ops import checksum as on_host
from hpcrl.ops.checksum import MASK, ODD_STEP, number_of
from hpcrl.ops.rectangles import Memory

INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def checksums(tensors: Sequence[Tensor], spans: Sequence[Span]) -> list[int]:
    """Those of 1-D tensors of equal length, which all have their owned elements where `spans` say."""
    owned = [span for span in spans if span.owned]
    totals = [compiled_total(tensor, owned) for tensor in tensors] if tensors[0].device.type == "cpu" else []
    found = [total for total in totals if total is not None]
    if len(found) < len(tensors):
        found = totals_in_torch(tensors, owned)
    return [(total * ODD_STEP) & MASK for total in found]


def compiled_total(tensor: Tensor, spans: Sequence[Span]) -> int | None:
    """Σ bits · (2(n + i) + 1) mod 2^64 of host memory; None where it is not compiled."""
    assert tensor.is_contiguous()
    return on_host.compiled_total(Memory(tensor.data_ptr(), len(tensor), tensor.element_size()), spans)


def totals_in_torch(tensors: Sequence[Tensor], spans: Sequence[Span]) -> list[int]:
    """The same on any device, of several at once."""
    bits = [tensor.view(INTEGERS[tensor.element_size()]) for tensor in tensors]
    totals = torch.zeros(len(bits), dtype=torch.int64, device=tensors[0].device)
    for piece, here in placed_chunks(tensors[0], spans):
        weights = _weights(here, piece.stop - piece.start, totals.device)
        for total, of_part in zip(totals, bits, strict=True):
            total += (of_part[piece] * weights).sum()
    return [int(total) for total in totals.tolist()]


def digest_of(tensors: Sequence[Tensor], spans: Sequence[Span], total: Callable[[Tensor], Tensor]) -> str:
    """The checksums of what several ranks hold, whose `total` adds up."""
    return digest_of_parts([(tensors, spans)], len(tensors), total)


def digest_of_parts(
    parts: Iterable[tuple[Sequence[Tensor], Sequence[Span]]], count: int, total: Callable[[Tensor], Tensor]
) -> str:
    """The same of what comes part by part, each `count` tensors."""
    sums = [0] * count
    for tensors, spans in parts:
        sums = added(sums, checksums(tensors, spans))
    return in_all(sums, total)


def added(sums: Iterable[int], others: Iterable[int]) -> list[int]:
    """Checksums of more elements."""
    return [(one + other) & MASK for one, other in zip(sums, others, strict=True)]


def in_all(sums: Iterable[int], total: Callable[[Tensor], Tensor]) -> str:
    """As a digest, of what several ranks hold, whose `total` adds up."""
    totals = total(torch.tensor([_signed(number) for number in sums]))
    return "".join(f"{number & MASK:016x}" for number in totals.tolist())


def checksum(buffer: Tensor) -> int:
    """Of a 1-D buffer, whatever it holds: by the elements' index in it."""
    return checksums([buffer], [whole("", len(buffer))])[0]


def _signed(number: int) -> int:
    """The int64 with the same 64 bits, to be put into a tensor."""
    return number - 2**64 if number >= 2**63 else number


def placed_chunks(buffer: Tensor, spans: Sequence[Span]) -> Iterator[tuple[slice, tuple[Span, ...]]]:
    """Slices that cover a buffer in order, each with what of the spans lies in it, counted from its start."""
    waiting, active = deque(sorted(spans, key=lambda span: span.offset)), list[Span]()
    for piece in chunks(buffer):
        while waiting and waiting[0].offset < piece.stop:
            active.append(waiting.popleft())
        yield piece, sliced(active, piece.start, piece.stop)
        active = [span for span in active if span.stop > piece.stop]


def runs(buffer: Tensor, span: Span) -> Tensor:
    """What a 1-D buffer has of a span, [rows, run], as a view."""
    shape, strides = (span.place.rows, span.place.run), (span.step, 1)
    return buffer.as_strided(shape, strides, buffer.storage_offset() + span.offset)


def _weights(spans: Sequence[Span], count: int, device: torch.device) -> Tensor:
    """Of so many neighbouring elements; 0 for those in no span."""
    if len(spans) == 1 and spans[0].place.numel == count:
        return _of_runs(spans[0], device).view(-1)
    weights = torch.zeros(count, dtype=torch.int64, device=device)
    for span in spans:
        runs(weights, span).copy_(_of_runs(span, device))
    return weights


def _of_runs(span: Span, device: torch.device) -> Tensor:
    """[rows, run]."""
    place = span.place
    first = 2 * (number_of(place.parameter) + place.first) + 1
    columns = torch.arange(first, first + 2 * place.run, 2, device=device)[None]
    if place.rows == 1:
        return columns
    return columns + torch.arange(0, 2 * place.stride * place.rows, 2 * place.stride, device=device)[:, None]
