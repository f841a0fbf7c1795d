"""Toy runs whose calls are made in layouts of their own, on four workers."""

import dataclasses
from typing import Any

from support.chaos import toy_experiment

from hpcrl.config.ema import EMAConfig
from hpcrl.config.model import PlacementConfig
from hpcrl.placement.plan import ModelName
from hpcrl.recipes.toy import ToyExperiment
from hpcrl.workers.exchange import Exchange
from hpcrl.workers.host import Arrived
from hpcrl.workers.toy import ToyHost

FLIPPED = 2
"""The version of the actor that `flip_a_bit` spoils."""


def _on(
    workers: int, homes: dict[str, tuple[str, str]], calls: dict[str, dict[str, str]], **cluster: Any
) -> ToyExperiment:
    toy = toy_experiment(workers_per_node=workers, **cluster)
    places: dict[str, Any] = {role: PlacementConfig(mesh=mesh, layout=layout) for role, (mesh, layout) in homes.items()}
    following = dataclasses.replace(toy.toy, reference_ema=EMAConfig(decay=0.9))
    return dataclasses.replace(toy, toy=following, calls=calls, **places)


def laid_out(**cluster: Any) -> ToyExperiment:
    """Every role is cut in another way; generation, values and references are made elsewhere."""
    homes = {"actor": ("0-3", "d2t2"), "critic": ("2-3", "p2"), "reference": ("1-3", "p3"), "reward": ("0", "d1")}
    calls = {
        "actor_gen": {"layout": "d2", "mesh": "0-1"},
        "critic_inf": {"layout": "t2", "mesh": "1-2"},
        "ref_inf": {"layout": "d2p2", "mesh": "0-3"},
    }
    return _on(4, homes, calls, **cluster)


def otherwise() -> ToyExperiment:
    """The same run on other workers: no layout and no replica stays as it was."""
    homes = {"actor": ("0-2", "t3"), "critic": ("0-1", "d2"), "reference": ("2", "d1"), "reward": ("1", "d1")}
    calls = {"actor_gen": {"layout": "p2", "mesh": "1-2"}, "ref_inf": {"layout": "d3", "mesh": "0-2"}}
    return _on(3, homes, calls)


def alone() -> ToyExperiment:
    """The same run on one worker."""
    return _on(1, dict.fromkeys(("actor", "critic", "reference", "reward"), ("0", "d1")), {})


def flip_a_bit(rank: int) -> None:
    """In a worker: rank 0 receives other parameters than it was sent, once."""
    move, swap = ToyHost.move, Exchange.swap

    def flipped(self: Exchange, *arguments: Any) -> list[bytes]:
        first, *others = swap(self, *arguments)
        return [bytes([first[0] ^ 1]) + first[1:], *others]

    def moved(self: ToyHost, replica: ModelName, version: int) -> Arrived:
        spoil = (rank, replica.role, version) == (0, "actor", FLIPPED)
        setattr(Exchange, "swap", flipped if spoil else swap)  # noqa: B010
        return move(self, replica, version)

    ToyHost.move = moved  # type: ignore[method-assign]
