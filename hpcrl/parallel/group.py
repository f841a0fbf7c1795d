"""What several ranks do together: collectives, and messages between two of them.

Every reduction adds up in rank order, by hand, so that no library's choice of ring or tree decides a bit: on each node
first, if several of them have as many ranks each, and then between nodes, which few numbers cross so. `deterministic:
false` leaves it to the library.
Shape legend: N elements of a flat buffer; R ranks of a group; T rows, of which each rank has t = T/R.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from hpcrl.parallel.operations import Operations
from hpcrl.placement.buffers import shard_bounds
from hpcrl.whereabouts import BEGINNING, WAITING
from hpcrl.workers.meter import Meter

Message = tuple[torch.Tensor, int]
"""A contiguous tensor, and the index in a group of who gets or gives it."""


class Pending:
    """Messages on their way. Until `wait` returns, what is sent may not change and what is received means nothing."""

    def __init__(self, works: Sequence[Any], operations: Operations) -> None:
        self._works = works
        self._operations = operations

    def wait(self) -> None:
        """Raises PeerLostError."""
        if self._works:
            with self._operations(WAITING):
                for work in self._works:
                    work.wait()
        self._works = ()


class Group:
    """Some ranks in a fixed order. All of them call the same collectives in the same order.

    Owns no buffer; a group of one talks to nobody. At most `piece_bytes` are staged at a time, so that a collective
    needs little memory beside the buffers. Whatever a collective raises is a PeerLostError.
    """

    def __init__(
        self,
        ranks: Sequence[int],
        rank: int,
        device: torch.device,
        process_group: Any = None,
        piece_bytes: int = 64 * 2**20,
        *,
        neighbours: int = 1,
        deterministic: bool = True,
        meter: Meter | None = None,
    ) -> None:
        """`neighbours`: how many ranks there are on each node, if they are to add up among themselves first."""
        self.ranks = tuple(ranks)
        self.index = self.ranks.index(rank)
        self.size = len(self.ranks)
        self.device = device
        self._process_group = process_group
        self._piece_bytes = piece_bytes
        self._neighbours = neighbours
        self._deterministic = deterministic
        self.operations = Operations(self.ranks, rank, meter)

    @property
    def process_group(self) -> Any:
        """torch's, of a group of several: for a library that asks for one."""
        return dist.group.WORLD if self._process_group is None else self._process_group

    def bounds(self, total: int) -> tuple[int, int]:
        """(offset, length) of this rank's slice."""
        return shard_bounds(total, self.size)[self.index]

    def reduce_scatter(self, flat_N: torch.Tensor) -> torch.Tensor:
        """This rank's slice of the sum over ranks; alone, the buffer itself."""
        offset, length = self.bounds(len(flat_N))
        if self.size == 1:
            return flat_N
        total = torch.empty_like(flat_N[offset : offset + length])
        for start, stop in self._pieces(flat_N):
            staged = self._staged(flat_N, start, stop).view(self.size, -1)
            total[start:stop] = self._own_sum(staged, flat_N.dtype)[: max(0, length - start)]
        return total

    def all_gather(self, slice_: torch.Tensor, flat_N: torch.Tensor) -> None:
        """Fill `flat_N` with the slices of all ranks."""
        if self.size == 1:
            flat_N.copy_(slice_)
            return
        bounds = shard_bounds(len(flat_N), self.size)
        for start, stop in self._pieces(flat_N):
            sent = flat_N.new_zeros(stop - start)
            own = slice_[start:stop]
            sent[: len(own)] = own
            for (offset, length), row in zip(bounds, self._gathered(sent), strict=True):
                count = max(0, min(stop, length) - start)
                flat_N[offset + start : offset + start + count] = row[:count]

    def gather_into(self, whole: torch.Tensor, own: torch.Tensor) -> None:
        """Fill a contiguous `whole` with what all ranks have; all have equally much. Nothing is staged."""
        with self.operations("all-gather", own.nbytes * (self.size - 1)):
            # Renamed in torch 2.13, which warns about the old name.
            gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
            gather(whole, own, group=self._process_group)

    def total(self, vector: torch.Tensor) -> torch.Tensor:
        """The vector's sum over the ranks in rank order; for float64 statistics and int64 checksums."""
        if self.size == 1:
            return vector
        return _sum_in_order(self._gathered(vector.to(self.device))).to(vector.device)

    def gathered(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensors of all ranks, [R, …]; all have one shape."""
        if self.size == 1:
            return tensor[None]
        return self._gathered(tensor.reshape(-1)).view(self.size, *tensor.shape)

    def all_gather_rows(self, rows_t: torch.Tensor) -> torch.Tensor:
        """The rows of all ranks, [T, …], in rank order; all have equally many."""
        return rows_t if self.size == 1 else self.gathered(rows_t).flatten(0, 1)

    def reduce_scatter_rows(self, rows_T: torch.Tensor) -> torch.Tensor:
        """This rank's rows [t, …] of the sum over ranks, in at least fp32; R divides T."""
        if self.size == 1:
            return rows_T
        rows_Rt = rows_T.view(self.size, -1, *rows_T.shape[1:])
        wide, count = torch.promote_types(rows_T.dtype, torch.float32), rows_Rt.shape[1]
        steps = self._steps(count, rows_T.nbytes // max(1, count))
        if len(steps) == 1:
            return self._own_sum(rows_T.reshape(self.size, -1), wide).view_as(rows_Rt[0]).to(rows_T.dtype)
        total_t = torch.empty_like(rows_Rt[0])
        for start, stop in steps:
            sent = rows_Rt[:, start:stop].contiguous()
            total_t[start:stop] = self._own_sum(sent.view(self.size, -1), wide).view_as(total_t[start:stop])
        return total_t

    def broadcast(self, tensor: torch.Tensor, source: int) -> None:
        """Fill a contiguous tensor with that of the rank of index `source`."""
        if self.size > 1:
            with self.operations("broadcast", tensor.nbytes * (self.size - 1) * (self.index == source)):
                dist.broadcast(tensor, self.ranks[source], group=self._process_group)

    def told(self, data: bytes, source: int, among: Sequence[int] | None = None) -> bytes:
        """What the rank of index `source` has, on all, or on `among`: only they, by index, and it call it then."""
        if self.size == 1:
            return data
        fill = self.broadcast if among is None else partial(self._spread, among)
        size = torch.tensor([len(data)], device=self.device)
        fill(size, source)
        whole = torch.empty(int(size), dtype=torch.uint8, device=self.device)
        if self.index == source and data:
            whole.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        fill(whole, source)
        return whole.cpu().numpy().tobytes()

    def told_by_all(self, data: bytes) -> list[bytes]:
        """What each rank has, on all."""
        if self.size == 1:
            return [data]
        sizes = self.gathered(torch.tensor([len(data)], device=self.device))[:, 0].tolist()
        own = torch.zeros(max(1, *sizes), dtype=torch.uint8, device=self.device)
        own[: len(data)] = torch.frombuffer(bytearray(data or b"-"), dtype=torch.uint8)[: len(data)]
        rows = self.gathered(own).cpu().numpy()
        return [row[:size].tobytes() for row, size in zip(rows, sizes, strict=True)]

    def exchange(self, sends: Iterable[Message] = (), receives: Iterable[Message] = ()) -> Pending:
        """Begin to send and to receive. Between two ranks messages arrive in the order in which they were sent.

        What goes both ways between two ranks at a time is one exchange. A message without elements is none.
        """
        sends = list(sends)
        with self.operations(BEGINNING, sum(tensor.nbytes for tensor, _ in sends)):
            messages = [
                dist.P2POp(way, tensor, self.ranks[index], group=self._process_group)
                for way, tensors in ((dist.isend, sends), (dist.irecv, receives))
                for tensor, index in tensors
                if tensor.numel()
            ]
            works = dist.batch_isend_irecv(messages) if messages else ()
        return Pending(works, self.operations)

    def send(self, tensor: torch.Tensor, target: int) -> Pending:
        """Begin to send to the rank of this index."""
        return self.exchange(sends=[(tensor, target)])

    def receive(self, tensor: torch.Tensor, source: int) -> Pending:
        """Begin to receive from the rank of this index."""
        return self.exchange(receives=[(tensor, source)])

    def connect(self) -> None:
        """Let NCCL connect all ranks at once: messages between two of them could otherwise never begin."""
        if self.size > 1 and self.device.type == "cuda":
            self.total(torch.zeros(1, device=self.device))

    def _spread(self, among: Sequence[int], tensor: torch.Tensor, source: int) -> None:
        if self.index == source:
            self.exchange(sends=[(tensor, target) for target in among if target != source]).wait()
        else:
            self.receive(tensor, source).wait()

    def _own_sum(self, rows_RN: torch.Tensor, wide: torch.dtype) -> torch.Tensor:
        """This rank's row of the sum over ranks, of numbers of type `wide` on their way."""
        if not self._deterministic:
            own_N = torch.empty_like(rows_RN[0])
            with self.operations("reduce-scatter", rows_RN[1:].nbytes):
                dist.reduce_scatter_tensor(own_N, rows_RN.view(-1), group=self._process_group)
            return own_N
        near = self._neighbours
        if near == 1:
            return _sum_in_order(self._swapped(rows_RN, range(self.size)).to(wide))
        node, place = divmod(self.index, near)
        by_place = rows_RN.unflatten(0, (-1, near)).transpose(0, 1).contiguous()
        received = self._swapped(by_place.flatten(0, 1), range(node * near, (node + 1) * near))
        of_node = _sum_in_order(received.unflatten(0, (near, -1)).to(wide))
        return _sum_in_order(self._swapped(of_node, range(place, self.size, near)))

    def _swapped(self, rows: torch.Tensor, peers: range) -> torch.Tensor:
        """As many rows of each peer as each is given of these, in the order of the peers' indices."""
        each = len(rows) // len(peers)
        counts = [each * (index in peers) for index in range(self.size)] if len(peers) < self.size else None
        received = torch.empty_like(rows)
        with self.operations("all-to-all", rows.nbytes // len(peers) * (len(peers) - 1)):
            dist.all_to_all_single(received, rows, counts, counts, group=self._process_group)
        return received

    def _pieces(self, flat_N: torch.Tensor) -> list[tuple[int, int]]:
        """The bounds, within a slice, of what is staged at a time."""
        return self._steps(shard_bounds(len(flat_N), self.size)[0][1], flat_N.element_size() * self.size)

    def _steps(self, length: int, nbytes: int) -> list[tuple[int, int]]:
        """The bounds of what is staged at a time of `length` elements or rows that need `nbytes` each."""
        step = max(1, self._piece_bytes // max(1, nbytes))
        return [(start, min(start + step, length)) for start in range(0, length, step)]

    def _staged(self, flat_N: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        """Elements start…stop of every rank's slice, one rank after another; zeros where a slice is shorter."""
        rows = flat_N.new_zeros(self.size, stop - start)
        for row, (offset, length) in zip(rows, shard_bounds(len(flat_N), self.size), strict=True):
            count = max(0, min(stop, length) - start)
            row[:count] = flat_N[offset + start : offset + start + count]
        return rows.view(-1)

    def _gathered(self, vector: torch.Tensor) -> torch.Tensor:
        """The vectors of all ranks, [R, …]."""
        gathered = vector.new_empty(self.size * len(vector))
        self.gather_into(gathered, vector.contiguous())
        return gathered.view(self.size, -1)


def _sum_in_order(rows: torch.Tensor) -> torch.Tensor:
    if len(rows) == 1:
        return rows[0].clone()
    total = rows[0] + rows[1]
    for row in rows[2:]:
        total += row
    return total
