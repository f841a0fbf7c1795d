"""What an engine has on its device, by kind, and what of it waits in host memory, or has gone, between two calls."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from hpcrl.config.model import Between
from hpcrl.engines.engine import KINDS, Held, Kind

Layers = Mapping[int, slice]
"""Where the parameters of each layer lie in their buffer."""


def on_host(tensor: Tensor) -> Tensor:
    """A copy in host memory."""
    return tensor.to("cpu", copy=True)


class Arrival:
    """A buffer on its way back from host memory, layer by layer, in the order in which a forward pass needs them.

    A GPU copies on a stream of its own, ahead of the layers that wait; a CPU copies a layer when it is waited for.
    """

    def __init__(self, buffer: Tensor, copy: Tensor, layers: Layers) -> None:
        self._buffer, self._copy = buffer, copy
        self._left = dict(layers)
        self._stream = torch.cuda.Stream(buffer.device) if buffer.device.type == "cuda" else None
        self._events: dict[int, torch.cuda.Event] = {}
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(buffer.device))
            with torch.cuda.stream(self._stream):
                for layer in self._left:
                    self._bring(layer)
                    self._events[layer] = self._stream.record_event()

    @torch.no_grad()
    def wait(self, layer: int) -> None:
        """Until the layer is there."""
        if layer not in self._left:
            return
        if self._stream is None:
            self._bring(layer)
        else:
            torch.cuda.current_stream(self._buffer.device).wait_event(self._events[layer])
        del self._left[layer]

    def finish(self) -> None:
        """Until all of it is there."""
        for layer in tuple(self._left):
            self.wait(layer)

    def _bring(self, layer: int) -> None:
        """By tensors of their own: backward would take a change of the buffer for one of what earlier layers read."""
        piece = self._left[layer]
        here, there = (_apart(one, piece) for one in (self._buffer, self._copy))
        here.copy_(there, non_blocking=True)


class DeviceBuffers:
    """Tensors that own their storage. Released ones have none: they and their views are not to be read until `need`.

    Storage is freed and made anew beneath the tensors, so whoever has one, or a view of one, has it again. Knows
    nothing of what is in them, but where the parameters of each layer lie, if they are in one.
    """

    def __init__(self, buffers: Mapping[Kind, Sequence[Tensor]], layers: Layers | None = None) -> None:
        self._layers = layers or {}
        self._arriving: Arrival | None = None
        """Of parameters, of which the copies are still good: nothing has changed them."""
        self._buffers = {kind: tuple(buffers.get(kind, ())) for kind in KINDS}
        self._away: dict[Kind, tuple[Tensor, ...]] = {}
        """The copies of what waits; of what has gone, none."""
        self._pinned: dict[Kind, tuple[Tensor, ...]] = {}
        """Host memory that a GPU copies to fast is slow to get, and kept."""

    def held(self) -> Held:
        return {kind: sum(one.untyped_storage().nbytes() for one in self._buffers[kind]) for kind in KINDS}

    @torch.no_grad()
    def release(self, kind: Kind, between: Between) -> None:
        """Let a kind wait in host memory (`host`) or go (`drop`: then it comes back as zeros)."""
        if between == "keep":
            return
        if kind in self._away:
            self._leave(kind)
            return
        buffers = self._buffers[kind]
        copies = self._room(kind) if between == "host" else ()
        for buffer, copy in zip(buffers, copies, strict=False):
            copy.copy_(buffer, non_blocking=True)
        for buffer in buffers:
            if buffer.device.type == "cuda":
                torch.cuda.current_stream(buffer.device).synchronize()
        self._away[kind] = copies
        self._free(kind)

    @torch.no_grad()
    def read(self) -> None:
        """Begin to bring back parameters that are away, to be read and not changed. Who reads a layer awaits it."""
        copies = self._away.get("parameters", ())
        if not copies or not self._layers:
            self.need("parameters")
        elif self._arriving is None:
            (buffer,) = self._buffers["parameters"]
            try:
                buffer.untyped_storage().resize_(buffer.nbytes)
            except BaseException:
                self._free("parameters")
                raise
            self._arriving = Arrival(buffer, copies[0], self._layers)

    def awaited(self, layer: int) -> None:
        """Wait until a layer's parameters are there."""
        if self._arriving is not None:
            self._arriving.wait(layer)

    @torch.no_grad()
    def need(self, *kinds: Kind) -> None:
        """Bring back what of these is away. A kind for which the device has no room stays away as a whole."""
        for kind in (kind for kind in kinds if kind in self._away):
            if kind == "parameters" and self._arriving is not None:
                self._arriving.finish()
                self._arriving = None
                del self._away[kind]
                continue
            copies = self._away[kind]
            try:
                for number, buffer in enumerate(self._buffers[kind]):
                    buffer.untyped_storage().resize_(buffer.nbytes)
                    if copies:
                        buffer.copy_(copies[number], non_blocking=True)
                    else:
                        buffer.zero_()
            except BaseException:
                self._free(kind)
                raise
            del self._away[kind]

    def copied(self, tensor: Tensor) -> Tensor:
        """A copy, in host memory, of a buffer, of a view of one, or of any other tensor; also of what waits there."""
        for kind, copies in self._away.items():
            for buffer, copy in zip(self._buffers[kind], copies, strict=False):
                if tensor is buffer or tensor._base is buffer:
                    return copy.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset()).clone()
        return on_host(tensor)

    def _leave(self, kind: Kind) -> None:
        """What was brought back only to be read goes again: its copies are still those of it."""
        if kind == "parameters" and self._arriving is not None:
            self._arriving.finish()
            self._arriving = None
            self._free(kind)

    def _free(self, kind: Kind) -> None:
        for buffer in self._buffers[kind]:
            buffer.untyped_storage().resize_(0)

    def _room(self, kind: Kind) -> tuple[Tensor, ...]:
        buffers = self._buffers[kind]
        if kind in self._pinned:
            return self._pinned[kind]
        pinned = any(buffer.device.type == "cuda" for buffer in buffers)
        room = tuple(torch.empty_like(buffer, device="cpu", pin_memory=pinned) for buffer in buffers)
        if pinned:
            self._pinned[kind] = room
        return room


def _apart(buffer: Tensor, piece: slice) -> Tensor:
    """A piece of a 1-D buffer's memory, of which the buffer knows nothing."""
    empty = torch.empty(0, dtype=buffer.dtype, device=buffer.device)
    return empty.set_(
        buffer.untyped_storage(), buffer.storage_offset() + piece.start, (piece.stop - piece.start,), (1,)
    )
