"""Who makes what, as the plan of an attempt has it: as much of it as views need, of a plan of any version."""

from functools import cached_property
from pathlib import Path

import msgspec

from hpcrl.placement.layouts import parse_layout

TRAINS, BLENDS = "train_step", "blend"
"""Kinds of calls in which all workers of a role work on one part."""


class PlannedWorker(msgspec.Struct, frozen=True):
    node: int


class PlannedCall(msgspec.Struct, frozen=True):
    name: str
    role: str
    kind: str = ""
    blends: str = ""
    dataset: str = "train"
    outputs: tuple[str, ...] = ()


class PlannedModel(msgspec.Struct, frozen=True):
    role: str
    replica: int = 0


class PlannedReplica(msgspec.Struct, frozen=True):
    model: PlannedModel
    layout: str
    ranks: tuple[int, ...]

    def part(self, part: int) -> tuple[int, ...]:
        """The workers of a part; those of more parts than there are workers go round. None of a damaged plan."""
        try:
            layout = parse_layout(self.layout)
        except ValueError:
            return ()
        return layout.data_part(part % layout.dp, self.ranks) if layout.size == len(self.ranks) else ()


class Planned(msgspec.Struct, dict=True):
    """What is read of a plan."""

    workers: list[PlannedWorker]
    algorithm: str = ""
    calls: list[PlannedCall] = []
    at: dict[str, PlannedModel] = {}
    replicas: list[PlannedReplica] = []

    @cached_property
    def call_named(self) -> dict[str, PlannedCall]:
        return {call.name: call for call in self.calls}

    @property
    def changes(self) -> dict[str, str]:
        """train_step or blend → the role that it changes, in the order of the calls."""
        return {call.name: call.role for call in self.calls if call.kind in (TRAINS, BLENDS)}

    def kind(self, name: str) -> str:
        """Of a call (generate, inference, train_step, evaluate, blend); `move` of a move such as `actor@1`."""
        if "@" in name:
            return "move"
        return self.call_named[name].kind if name in self.call_named else ""

    def ranks(self, name: str, part: int) -> tuple[int, ...]:
        """The workers that have a part of a call, or a move (`actor@1`); none where the plan does not say it."""
        if "@" in name:
            role, _, replica = name.partition("@")
            return self._together([(role, 0), (role, int(replica) if replica.isdecimal() else -1)])
        call, model = self.call_named.get(name), self.at.get(name)
        if call is None or model is None:
            return ()
        if call.kind in (TRAINS, BLENDS):
            return self._together([(model.role, model.replica), (call.blends, 0)])
        placed = self._replica(model.role, model.replica)
        return () if placed is None else placed.part(part)

    def _together(self, models: list[tuple[str, int]]) -> tuple[int, ...]:
        found = [replica for model in models if (replica := self._replica(*model)) is not None]
        return tuple(sorted({rank for replica in found for rank in replica.ranks}))

    def _replica(self, role: str, number: int) -> PlannedReplica | None:
        return next((it for it in self.replicas if it.model == PlannedModel(role, number)), None)


def read_planned(path: Path) -> Planned:
    """Nothing where there is no plan, or one that cannot be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Planned)
    except (OSError, msgspec.DecodeError):
        return Planned([])
