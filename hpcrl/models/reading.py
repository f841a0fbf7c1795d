"""The tensors of a model's files, read by all ranks of a replica together, each byte by one of them, and moved to where
the replica has its parameters, as `placement.reading` plans it."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from hpcrl.families.config import DecoderConfig
from hpcrl.families.headers import StoredTensor, naming
from hpcrl.families.stored import untied
from hpcrl.models.rotary import interleave
from hpcrl.parallel.moving import carry_out
from hpcrl.parallel.replica import Readers
from hpcrl.placement.holdings import NOTHING, Holding, holding
from hpcrl.placement.moving import planned
from hpcrl.placement.reading import Read, Round, StoredPiece, Window, read_spans, wanted_spans, windows
from hpcrl.placement.shards import Cut, Held, held

TYPES: Mapping[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
}
"""What safetensors calls a type, and what torch does."""


def read_together(
    folder: Path, config: DecoderConfig, parameters: Iterable[Sequence[StoredPiece]], readers: Readers
) -> Iterator[tuple[str, Tensor]]:
    """What this rank has of parameters of a model, given by their tensors in a folder, in their order. Padding is zero.

    All readers go through it to its end. Raises DataError naming the file, and PeerLostError.
    """
    with TensorFiles(folder, config.head_dim) as files:
        of_cuts = {cut: {part.parameter.name: part for part in held(config, cut)} for cut in set(readers.cuts)}
        names = {name for parts in of_cuts.values() for name in parts}
        needed = [pieces for pieces in parameters if pieces[0].parameter.name in names]
        for window in windows(needed, len(readers.ranks)):
            rooms = {cut: _room(window, parts) for cut, parts in of_cuts.items()}
            own = rooms[readers.cut]
            size = sum(part.parameter.numel for part, _ in own.values())
            target = torch.zeros(size, dtype=TYPES[window.dtype], device=readers.group.device)
            for round_ in window.rounds:
                source = files.packed(round_[readers.index], target)
                _spread(round_, rooms, source, target, readers)
            for name, (part, begin) in own.items():
                yield name, target[begin : begin + part.parameter.numel].view(part.parameter.shape)


_Room = Mapping[str, tuple[Held, int]]
"""Parameters of a window as somebody has them, and where they begin in his buffer."""


def _room(window: Window, parts: Mapping[str, Held]) -> _Room:
    found, end = {}, 0
    for parameter in window.parameters:
        if parameter.name in parts:
            found[parameter.name] = parts[parameter.name], end
            end += parts[parameter.name].parameter.numel
    return found


def _spread(round_: Round, rooms: Mapping[Cut, _Room], source: Tensor, target: Tensor, readers: Readers) -> None:
    """Move what all have read to where everybody has it."""
    wanted = {cut: holding(wanted_spans(round_, room)) for cut, room in rooms.items()}
    have: list[Holding] = [NOTHING] * len(readers.nodes)
    want = list(have)
    for rank, cut, reads in zip(readers.ranks, readers.cuts, round_, strict=True):
        have[rank], want[rank] = holding(read_spans(reads)), wanted[cut]
    view = planned(have, want, readers.nodes, readers.rank)
    carry_out(view, source, target, readers.group, parties=len(readers.ranks))


class TensorFiles:
    """The files of a folder, opened as they are needed. Raises DataError naming the file."""

    def __init__(self, folder: Path, head_dim: int) -> None:
        self._folder = folder
        self._head_dim = head_dim
        self._opened: dict[str, BinaryIO] = {}
        self._closing = ExitStack()

    def __enter__(self) -> "TensorFiles":
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def packed(self, reads: Sequence[Read], like: Tensor) -> Tensor:
        """What these reads find, one behind another, as the model has it: of another tensor's type, where that is."""
        found = torch.empty(sum(read.numel for read in reads), dtype=like.dtype)
        begin = 0
        for read in reads:
            rows = self._rows(read)
            found[begin : begin + read.numel].view(rows.shape).copy_(rows)
            begin += read.numel
        return found.to(like.device)

    def _rows(self, read: Read) -> Tensor:
        stored, (first, stop) = read.stored, read.rows
        size = TYPES[stored.tensor.dtype].itemsize * stored.row_numel
        content = self._bytes(stored.tensor, first * size, stop * size)
        if stored.twin is not None and not torch.equal(content, self._bytes(stored.twin, first * size, stop * size)):
            raise untied(self._folder, stored.tensor, stored.twin)
        found = content.view(TYPES[stored.tensor.dtype]).view(stop - first, *stored.tensor.shape[1:])
        if stored.piece.paired:
            found = interleave(found, self._head_dim)
        return found.t() if stored.piece.transposed else found

    def _bytes(self, tensor: StoredTensor, begin: int, end: int) -> Tensor:
        """These of a tensor."""
        found = torch.empty(end - begin, dtype=torch.uint8)
        into, read = found.numpy().data, 0
        path = self._folder / tensor.file
        with naming(path):
            if tensor.file not in self._opened:
                self._opened[tensor.file] = self._closing.enter_context(path.open("rb", buffering=0))
            descriptor = self._opened[tensor.file].fileno()
            while read < len(into):
                count = os.preadv(descriptor, [into[read:]], tensor.begin + begin + read)
                if not count:
                    raise OSError(f"it ends before {tensor.name} does")
                read += count
        return found
