"""Who computes with whom: the process group of all workers of an attempt, and groups of some of them."""

import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from hpcrl.parallel.group import Group
from hpcrl.parallel.operations import Operations
from hpcrl.placement.layouts import neighbours
from hpcrl.wire.address import LOOPBACK_ONLY, Network, listen
from hpcrl.workers.meter import Meter


def socket_interfaces(network: Network, environ: Mapping[str, str]) -> dict[str, str]:
    """What gloo and NCCL read, so that they listen where all else of this process does.

    Without cluster.interface the user's own variables count, and NCCL looks for the fastest interface by itself.
    """
    if not network.interface:
        return {}
    if network.chosen:
        return {"GLOO_SOCKET_IFNAME": network.interface, "NCCL_SOCKET_IFNAME": f"={network.interface}"}
    return {"GLOO_SOCKET_IFNAME": environ.get("GLOO_SOCKET_IFNAME") or network.interface}


def summing_order(deterministic: bool, environ: Mapping[str, str]) -> dict[str, str]:
    """What NCCL reads, so that what libraries add up with it has one order. (hpcrl's own sums have theirs anyway.)

    NCCL chooses among its algorithms by size and topology, and a tree adds up otherwise than a ring. The user's own
    variable counts.
    """
    return {} if not deterministic or environ.get("NCCL_ALGO") else {"NCCL_ALGO": "Ring"}


class ParallelContext:
    """This process among all workers of an attempt. Passed to whoever needs it; knows neither roles nor layouts."""

    def __init__(
        self,
        rank: int,
        world_size: int,
        device: torch.device,
        network: Network = LOOPBACK_ONLY,
        *,
        nodes: Sequence[int] = (),
        deterministic: bool = True,
        meter: Meter | None = None,
    ) -> None:
        """`nodes` has the node of every rank (none: all are on one); `meter` is told what groups do."""
        self.rank = rank
        self.device = device
        self._network = network
        self.nodes = tuple(nodes) or (0,) * world_size
        self._deterministic = deterministic
        self._meter = meter or Meter()
        self._store: dist.TCPStore | None = None
        self._groups: dict[tuple[int, ...], Group] = {}
        self._formed: set[tuple[int, ...]] = set()
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
        """Meet the others at what rank 0's `invite` returned, and form the group of all. No collective, here or in a
        group, waits longer.

        Raises PeerLostError.
        """
        if len(self._everyone) > 1:
            self._meet(invitation, timeout_s)
        self.form([self._everyone])

    def _meet(self, invitation: str, timeout_s: float) -> None:
        host, _, port = invitation.rpartition(":")
        timeout = self._timeout = timedelta(seconds=timeout_s)
        if self._store is None:
            with self._together("meeting at rank 0's store"):
                self._store = dist.TCPStore(host, int(port), is_master=False, wait_for_workers=False, timeout=timeout)
        os.environ.update(socket_interfaces(self._network, os.environ))
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
            os.environ.update(summing_order(self._deterministic, os.environ))
            # Errors of NCCL leave the collective that they break; torch would end this process without a word.
            os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "1"
        backend = "nccl" if self.device.type == "cuda" else "gloo"
        with self._together("joining the group of all"):
            dist.init_process_group(
                backend, store=self._store, rank=self.rank, world_size=len(self._everyone), timeout=timeout
            )

    def form(self, meshes: Iterable[Sequence[int]]) -> None:
        """Make and connect the groups of these ranks, once each. Every worker calls it with the same meshes, members or
        not. Raises PeerLostError.

        (Groups that only their members make are named by how many each of them has, and may never find each other.)
        """
        for mesh in meshes:
            ranks = tuple(mesh)
            if ranks in self._formed:
                continue
            self._formed.add(ranks)
            assert ranks == tuple(sorted(ranks)), ranks
            alone = len(ranks) == 1 or ranks == self._everyone
            process_group = None if alone else self._new_group(ranks)
            if self.rank in ranks:
                group = self._groups[ranks] = Group(
                    ranks,
                    self.rank,
                    self.device,
                    process_group,
                    neighbours=neighbours(ranks, self.nodes),
                    deterministic=self._deterministic,
                    meter=self._meter,
                )
                group.connect()

    @property
    def everyone(self) -> tuple[int, ...]:
        return self._everyone

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
        self._formed.clear()
        self._store = None
