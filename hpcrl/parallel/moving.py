"""Moves carried out: what `placement.moving` plans, between flat buffers, by messages between two ranks each.

Both ranks of a transfer cut it alike without asking each other: at the edges of its larger parts. What is one run in a
rank's buffer goes from there, or comes to there; all else is packed. All ranks take their messages in one order: the
i-th step of everything that a round moves is one exchange. While it is on its way the one before is unpacked, and what
this rank has itself is copied.
"""

from collections.abc import Callable, Iterable, Sequence
from ctypes import CDLL
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain, islice, zip_longest
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hpcrl.ops.library import compiled_for_cuda
from hpcrl.ops.rectangles import Memory, Runs, copy_rectangles, launch
from hpcrl.parallel.group import Group, Message, Pending
from hpcrl.placement.moving import ALONE_BYTES, Moves, Round, Transfer
from hpcrl.placement.pass_memory import STAGED_BYTES
from hpcrl.placement.rectangles import NONE, Rectangles, joined

LAUNCHED_BYTES = 4 * 2**20
"""Rectangles of fewer bytes each go in one launch: torch has one for each, in whose time it copies about so much."""


def carry_out(
    view: Moves,
    source: Tensor,
    target: Tensor,
    group: Group,
    staged_bytes: int = STAGED_BYTES,
    parties: int | None = None,
) -> None:
    """This rank's part in a move from `source` to `target`, 1-D buffers of one type on one device.

    A rank without a source, or a target, gives an empty one. All of the group that have a part call it together,
    `parties` of them (None: all), in its other operations' order; ranks of the view are those of the world. Raises
    PeerLostError.
    """
    assert source.dtype == target.dtype and source.device == target.device, (source, target)
    numel = max(1, staged_bytes // (source.element_size() * max(1, (parties or group.size) - 1)))
    for buffer, round_, copied in zip((source, target), view.rounds, (view.copied, (NONE, NONE)), strict=True):
        _exchange(round_, buffer, target, group, numel, partial(copy, source, copied[0], target, copied[1]))


def copy(source: Tensor, sent: Rectangles, target: Tensor, received: Rectangles) -> None:
    """Rectangles of one buffer to rectangles, of equal rows and runs, of another."""
    if source.device.type == "cpu":
        copy_rectangles(*_sides(source, sent, target, received))
        return
    library = compiled_for_cuda() if source.device.type == "cuda" else None
    if library is None or sent.numel * source.element_size() > LAUNCHED_BYTES * len(sent):
        in_torch(source, sent, target, received)
        return
    in_one_launch(library, source, sent, target, received, torch.cuda.current_stream(source.device).cuda_stream)


def in_one_launch(
    library: CDLL, source: Tensor, sent: Rectangles, target: Tensor, received: Rectangles, stream: int
) -> None:
    """The same on a GPU, in the order of a stream of it, which is torch's current one."""
    launched = launch(*_sides(source, sent, target, received))
    columns = torch.from_numpy(launched.columns_7N).to(source.device)
    launched.begin(library, source.data_ptr(), target.data_ptr(), columns.data_ptr(), stream)


def in_torch(source: Tensor, sent: Rectangles, target: Tensor, received: Rectangles) -> None:
    """The same on any device, one rectangle after another."""
    for rows, run, first, step, at, to_step in zip(
        *(column.tolist() for column in (sent.rows_N, sent.runs_N, sent.offsets_N, sent.steps_N)),
        *(column.tolist() for column in (received.offsets_N, received.steps_N)),
        strict=True,
    ):
        _runs(target, at, to_step, rows, run).copy_(_runs(source, first, step, rows, run))


def _runs(buffer: Tensor, offset: int, step: int, rows: int, run: int) -> Tensor:
    return buffer.as_strided((rows, run), (step, 1), buffer.storage_offset() + offset)


def _sides(
    source: Tensor, sent: Rectangles, target: Tensor, received: Rectangles
) -> tuple[Memory, Runs, Memory, Runs, np.ndarray, np.ndarray]:
    runs = [Runs(rectangles.offsets_N, rectangles.steps_N) for rectangles in (sent, received)]
    return _memory(source), runs[0], _memory(target), runs[1], sent.rows_N, sent.runs_N


def _memory(buffer: Tensor) -> Memory:
    assert buffer.dim() == 1 and buffer.is_contiguous()
    return Memory(buffer.data_ptr(), buffer.numel(), buffer.element_size())


def cut(parts: Iterable[int], numel: int, alone: int) -> list[list[int]]:
    """The elements of each message of each step, a step having at most `numel`: of the same parts always the same.

    A part of `alone` elements or more shares its messages with no other.
    """
    messages, joined = [], 0
    for part in parts:
        fits = part < min(alone, numel)
        if joined and not (fits and joined + part <= numel):
            messages.append(joined)
            joined = 0
        if fits:
            joined += part
        else:
            messages += [numel] * (part // numel) + [part % numel] * (part % numel > 0)
    if joined:
        messages.append(joined)
    steps: list[list[int]] = []
    room = 0
    for message in messages:
        if message > room:
            steps.append([])
            room = numel
        steps[-1].append(message)
        room -= message
    return steps


class _Message(NamedTuple):
    """To or from one peer: so many elements from one on, of the buffer or of what is packed of it."""

    peer: int
    begin: int
    numel: int
    packed: bool


@dataclass(frozen=True, eq=False)
class _Step:
    """What a rank sends, or receives, in one exchange; of this is packed, message after message, what is no one run."""

    messages: tuple[_Message, ...] = ()
    packed: Rectangles = NONE

    def tensors(self, buffer: Tensor, staging: Tensor, group: Group) -> list[Message]:
        return [
            ((staging if packed else buffer)[begin : begin + numel], group.ranks.index(peer))
            for peer, begin, numel, packed in self.messages
        ]


@lru_cache(maxsize=256)
def _steps(transfers: tuple[Transfer, ...], numel: int, alone: int) -> tuple[_Step, ...]:
    """Those of one direction of a round. Kept, since the same moves come again and again."""
    return tuple(
        _step([(transfer.peer, piece) for transfer, of in zip(transfers, pieces, strict=True) for piece in of])
        for pieces in zip_longest(*(_pieces(transfer, numel, alone) for transfer in transfers), fillvalue=())
    )


def _pieces(transfer: Transfer, numel: int, alone: int) -> list[list[Rectangles]]:
    """What each message of each step consists of."""
    steps = cut(transfer.parts_N.tolist(), numel, alone)
    pieces = transfer.rectangles.pieces(chain.from_iterable(steps))
    return [list(islice(pieces, len(step))) for step in steps]


def _step(pieces: Sequence[tuple[int, Rectangles]]) -> _Step:
    messages, packed, end = [], [NONE], 0
    for peer, piece in pieces:
        if len(piece) == 1 and piece.rows_N[0] == 1:
            messages.append(_Message(peer, int(piece.offsets_N[0]), piece.numel, packed=False))
        else:
            messages.append(_Message(peer, end, piece.numel, packed=True))
            packed.append(piece)
            end += piece.numel
    return _Step(tuple(messages), joined(packed))


def _staging(steps: Sequence[_Step], buffer: Tensor) -> list[Tensor]:
    """Two buffers, for one step after another in turn."""
    numels = [max((step.packed.numel for step in steps[turn::2]), default=0) for turn in range(2)]
    return [buffer.new_empty(numel) for numel in numels]


def _exchange(
    round_: Round, source: Tensor, target: Tensor, group: Group, numel: int, meanwhile: Callable[[], None]
) -> None:
    """A round; `meanwhile` is done once the first messages are on their way."""
    alone = max(1, ALONE_BYTES // target.element_size())
    sends, receives = (_steps(transfers, numel, alone) for transfers in (round_.sends, round_.receives))
    rooms = list(zip(_staging(sends, source), _staging(receives, target), strict=True))
    for number, (sent, received) in enumerate(zip_longest(sends, receives, fillvalue=_Step())):
        leaving, arriving = rooms[number % 2]
        copy(source, sent.packed, leaving, sent.packed.dense())
        pending = group.exchange(sent.tensors(source, leaving, group), received.tensors(target, arriving, group))
        meanwhile()
        meanwhile = partial(_unpack, pending, arriving, received.packed, target)
    meanwhile()


def _unpack(pending: Pending, arriving: Tensor, packed: Rectangles, target: Tensor) -> None:
    pending.wait()
    copy(arriving, packed.dense(), target, packed)
