"""Which weights of a model one rank keeps up to date: 1-D tensors of S elements, and what is done to have them so.

Shape legend: N elements of a flat buffer; S of this rank's slice.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from hpcrl.config.model import Offload
from hpcrl.engines.chunks import STAGED
from hpcrl.families.places import Span, sliced
from hpcrl.parallel.group import Group

Extent = tuple[int, int]
"""(offset, length) in a buffer."""


class Slice(Protocol):
    """One rank's master weights, in at least fp32. Together the data-parallel ranks have each element once."""

    master_S: Tensor
    spans: tuple[Span, ...]
    """Where the elements of the slice are in the model."""

    @property
    def decayed(self) -> Sequence[Extent]:
        """What of the slice is under weight decay."""
        ...

    @property
    def weights_S(self) -> Tensor:
        """The same elements as the model computes with them."""
        ...

    @property
    def is_the_model(self) -> bool:
        """Whether the masters are the model's own parameters, which need no memory beside these."""
        ...

    @property
    def offloaded(self) -> bool:
        """Whether the masters, and what an optimizer has beside them, are always in the host's memory."""
        ...

    def begin_from(self, parameter: Tensor, offset: int) -> None:
        """Let the masters of a parameter, of which the model's memory from `offset` on holds a rounded copy, begin as
        it is."""
        ...

    def reduced(self, gradient: Tensor) -> Tensor:
        """[S]: the sum of all data-parallel ranks' gradients, out of what the model's memory has after a backward
        pass, which may be overwritten."""
        ...

    def publish(self) -> None:
        """Have the model of every data-parallel rank compute with these masters."""
        ...


class FlatSlice:
    """A contiguous slice of a flat buffer that every data-parallel rank has whole: optimizer state is cut, weights and
    gradients are not (ZeRO stage 1). Where the buffer has the masters' type, they are a view of it."""

    def __init__(
        self,
        flat_N: Tensor,
        spans: Sequence[Span],
        dp: Group,
        undecayed: Iterable[Extent] = (),
        offloaded: bool = False,
    ) -> None:
        """`offloaded`: the masters are in the host's memory, beside the weights."""
        self._flat_N = flat_N
        self._dp = dp
        self._offset, length = dp.bounds(len(flat_N))
        self.weights_S = flat_N[self._offset : self._offset + length]
        self.spans = sliced(spans, self._offset, self._offset + length)
        self.decayed = complement(undecayed, self._offset, length)
        if offloaded:
            self.master_S = on_host(self.weights_S, torch.promote_types(flat_N.dtype, torch.float32))
        else:
            self.master_S = self.weights_S if flat_N.dtype == torch.float64 else self.weights_S.float()
        self.offloaded = offloaded
        self.is_the_model = not offloaded and self.master_S.dtype == flat_N.dtype

    def begin_from(self, parameter: Tensor, offset: int) -> None:
        start = max(offset, self._offset)
        stop = min(offset + parameter.numel(), self._offset + len(self.master_S))
        if start < stop and not self.is_the_model:
            own = self.master_S[start - self._offset : stop - self._offset]
            own.copy_(parameter.reshape(-1)[start - offset : stop - offset])

    def reduced(self, gradient: Tensor) -> Tensor:
        return self._dp.reduce_scatter(gradient)

    def publish(self) -> None:
        if self.is_the_model and self._dp.size == 1:
            return
        if not self.offloaded:
            self._dp.all_gather(self.master_S.to(self._flat_N.dtype), self._flat_N)
            return
        for piece in (slice(start, start + STAGED) for start in range(0, len(self.master_S), STAGED)):
            self.weights_S[piece].copy_(self.master_S[piece])
        if self._dp.size > 1:
            self._dp.all_gather(self.weights_S, self._flat_N)


class OwnSlice:
    """All that this rank has of a model whose parameters are cut over ranks: what gathers them, and reduces gradients,
    is the model. Its masters are the model's own memory, where that is in their type. It computes in `dtype`."""

    def __init__(
        self,
        data_S: Tensor,
        dtype: torch.dtype,
        spans: Sequence[Span],
        undecayed: Iterable[Extent] = (),
        offload: Offload = "none",
    ) -> None:
        """`offload`: `optimizer` has masters in the host's memory, beside the model's own; with `parameters` these are
        there already."""
        self._data_S = data_S
        wide = torch.promote_types(data_S.dtype, torch.float32)
        apart = offload == "optimizer" or (offload == "parameters" and data_S.dtype != wide)
        self.master_S = on_host(data_S, wide) if apart else data_S.to(wide)
        self.offloaded = offload != "none"
        self.is_the_model = self.master_S is data_S
        self.spans = tuple(spans)
        self.decayed = complement(undecayed, 0, len(data_S))
        self._dtype = dtype

    @property
    def weights_S(self) -> Tensor:
        return self._data_S.to(self._dtype)

    def begin_from(self, parameter: Tensor, offset: int) -> None:
        for span in () if self.is_the_model else self.spans:
            if span.offset == offset:
                first = span.place.first
                self.master_S[offset : span.stop].copy_(parameter.reshape(-1)[first : first + span.place.run])

    def reduced(self, gradient: Tensor) -> Tensor:
        return gradient

    def publish(self) -> None:
        if not self.is_the_model:
            self._data_S.copy_(self.master_S)


def on_host(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """A copy in the host's memory, in a type; pinned, where a GPU copies to and from it."""
    pinned = tensor.device.type == "cuda" or tensor.is_pinned()
    return torch.empty(tensor.shape, dtype=dtype, pin_memory=pinned).copy_(tensor)


def room_on_host(numel: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros in the host's memory, for a model that computes on a device."""
    return torch.zeros(numel, dtype=dtype, pin_memory=device.type == "cuda")


def complement(undecayed: Iterable[Extent], offset: int, length: int) -> list[Extent]:
    """The parts of a slice of a buffer outside the given intervals, counted from the slice's own start."""
    decayed, position = [], offset
    for start, size in [*sorted(undecayed), (offset + length, 0)]:
        stop = min(start, offset + length)
        if stop > position:
            decayed.append((position - offset, stop - position))
        position = max(position, start + size)
    return decayed
