"""Who computes with whom: the process group of all workers of an attempt, and groups of some of them.

Every reduction adds up in rank order, by hand, so that no library's choice of ring or tree decides a bit.
Shape legend: N elements of a flat buffer; R ranks of a group.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from hpcrl.parallel.operations import Operations
from hpcrl.wire.address import LOOPBACK_ONLY, Network, listen


def shard_bounds(total: int, ranks: int) -> list[tuple[int, int]]:
    """(offset, length) of each rank's contiguous slice of a flat buffer; the last ones may be shorter or empty."""
    length = -(-total // ranks)
    offsets = [min(i * length, total) for i in range(ranks)]
    return [(offset, min(length, total - offset)) for offset in offsets]


class Group:
    """Some ranks in a fixed order. All of them call the same methods in the same order.

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
    ) -> None:
        self.ranks = tuple(ranks)
        self.index = self.ranks.index(rank)
        self.size = len(self.ranks)
        self._device = device
        self._process_group = process_group
        self._piece_bytes = piece_bytes
        self.operations = Operations(self.ranks, rank)

    def bounds(self, total: int) -> tuple[int, int]:
        """(offset, length) of this rank's slice."""
        return shard_bounds(total, self.size)[self.index]

    def reduce_scatter(self, flat_N: torch.Tensor) -> torch.Tensor:
        """This rank's slice of the sum over ranks, added up in rank order; alone, the buffer itself."""
        offset, length = self.bounds(len(flat_N))
        if self.size == 1:
            return flat_N
        total = torch.empty_like(flat_N[offset : offset + length])
        for start, stop in self._pieces(flat_N):
            sent = self._staged(flat_N, start, stop)
            received = torch.empty_like(sent)
            with self.operations("all-to-all"):
                dist.all_to_all_single(received, sent, group=self._process_group)
            total[start:stop] = _sum_in_order(received.view(self.size, -1))[: max(0, length - start)]
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

    def total(self, vector: torch.Tensor) -> torch.Tensor:
        """The vector's sum over the ranks in rank order; for float64 statistics and int64 checksums."""
        if self.size == 1:
            return vector
        return _sum_in_order(self._gathered(vector.to(self._device))).to(vector.device)

    def _pieces(self, flat_N: torch.Tensor) -> list[tuple[int, int]]:
        """The bounds, within a slice, of what is staged at a time."""
        length = shard_bounds(len(flat_N), self.size)[0][1]
        step = max(1, self._piece_bytes // (flat_N.element_size() * self.size))
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
        sent = vector.contiguous()
        with self.operations("all-gather"):
            # Renamed in torch 2.13, which warns about the old name.
            gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
            gather(gathered, sent, group=self._process_group)
        return gathered.view(self.size, -1)


def _sum_in_order(rows: torch.Tensor) -> torch.Tensor:
    total = rows[0].clone()
    for row in rows[1:]:
        total += row
    return total


def socket_interfaces(network: Network, environ: Mapping[str, str]) -> dict[str, str]:
    """What gloo and NCCL read, so that they listen where all else of this process does.

    Without cluster.interface the user's own variables count, and NCCL looks for the fastest interface by itself.
    """
    if not network.interface:
        return {}
    if network.chosen:
        return {"GLOO_SOCKET_IFNAME": network.interface, "NCCL_SOCKET_IFNAME": f"={network.interface}"}
    return {"GLOO_SOCKET_IFNAME": environ.get("GLOO_SOCKET_IFNAME") or network.interface}


class ParallelContext:
    """This process among all workers of an attempt. Passed to whoever needs it; knows neither roles nor layouts."""

    def __init__(self, rank: int, world_size: int, device: torch.device, network: Network = LOOPBACK_ONLY) -> None:
        self.rank = rank
        self.device = device
        self._network = network
        self._store: dist.TCPStore | None = None
        self._groups: dict[tuple[int, ...], Group] = {}
        self._everyone = tuple(range(world_size))
        self._timeout = timedelta(0)
        self._together = Operations(self._everyone, rank)

    def invite(self) -> str:
        """On rank 0, open the store at which all meet; "host:port" for the others. Elsewhere, and alone, "".

        Raises ConfigurationError where none of the network's ports is free.
        """
        if self.rank != 0 or len(self._everyone) == 1:
            return ""
        # Left to itself the store listens at all addresses of the node, and it asks nobody for a key.
        listening = listen(self._network)
        host, port = listening.getsockname()
        self._store = dist.TCPStore(
            host, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach()
        )
        return f"{host}:{port}"

    def join(self, invitation: str, timeout_s: float = 1800.0) -> None:
        """Meet the others at what rank 0's `invite` returned. No collective, here or in a group, waits longer.

        Raises PeerLostError.
        """
        if len(self._everyone) == 1:
            return
        host, _, port = invitation.rpartition(":")
        timeout = self._timeout = timedelta(seconds=timeout_s)
        if self._store is None:
            with self._together("meeting at rank 0's store"):
                self._store = dist.TCPStore(host, int(port), is_master=False, wait_for_workers=False, timeout=timeout)
        os.environ.update(socket_interfaces(self._network, os.environ))
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
            # Errors of NCCL leave the collective that they break; torch would end this process without a word.
            os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "1"
        backend = "nccl" if self.device.type == "cuda" else "gloo"
        with self._together("joining the group of all"):
            dist.init_process_group(
                backend, store=self._store, rank=self.rank, world_size=len(self._everyone), timeout=timeout
            )

    def form(self, meshes: Iterable[Sequence[int]]) -> None:
        """Make the groups of these ranks. Every worker calls it with the same meshes, members or not. Raises
        PeerLostError.

        (Groups that only their members make are named by how many each of them has, and may never find each other.)
        """
        for mesh in meshes:
            ranks = tuple(mesh)
            if ranks in self._groups:
                continue
            assert ranks == tuple(sorted(ranks)), ranks
            alone = len(ranks) == 1 or ranks == self._everyone
            process_group = None if alone else self._new_group(ranks)
            if self.rank in ranks:
                self._groups[ranks] = Group(ranks, self.rank, self.device, process_group)

    def group(self, ranks: Sequence[int]) -> Group:
        """The group of these ranks, which has been formed and of which this one is a member."""
        return self._groups[tuple(ranks)]

    def begin_unit(self) -> None:
        """Count operations anew: a unit of work begins."""
        for operations in (self._together, *(group.operations for group in self._groups.values())):
            operations.count_anew()

    def _new_group(self, ranks: Sequence[int]) -> Any:
        with self._together("forming a group"):
            return dist.new_group(list(ranks), timeout=self._timeout)

    def leave(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()
        self._groups.clear()
        self._store = None
