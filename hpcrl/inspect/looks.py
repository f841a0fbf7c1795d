"""What agents saw of their nodes and workers, look by look."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from hpcrl.durable.resources import NodeUse, decode
from hpcrl.durable.rundir import RunDirectory
from hpcrl.inspect.held import BytesHeld, Window
from hpcrl.inspect.lines import Tail


@dataclass(frozen=True)
class Used:
    """By a worker, look by look."""

    resident: list[BytesHeld] = field(default_factory=list)
    """Of its processes together."""
    gpu: list[BytesHeld] = field(default_factory=list)
    """On its GPU, by whomever."""


def read_looks(run: RunDirectory, attempt: int) -> Iterator[tuple[int, list[NodeUse]]]:
    """The looks at each node, as far as its lines are whole."""
    for name in run.files.listing(run.resources(attempt)):
        number = name.removeprefix("node-").removesuffix(".jsonl")
        if number.isdecimal() and (uses := list(_uses(Tail(run.node_resources(attempt, int(number)))))):
            yield int(number), uses


def slots(uses: Sequence[NodeUse]) -> dict[int, int]:
    """Which of its node's devices a worker has."""
    ranks = {worker.rank for use in uses for worker in use.workers}
    return {rank: slot for slot, rank in enumerate(sorted(ranks))}


def read_used(run: RunDirectory, attempt: int, ahead: Mapping[int, float], window: Window) -> dict[int, Used]:
    """By worker. `ahead`: how many seconds nodes' clocks are ahead of the master's."""
    began, begin_s, end_s = window
    used: dict[int, Used] = {}
    for node, uses in read_looks(run, attempt):
        slot_of = slots(uses)
        for use in uses:
            at_s = round(use.time - ahead.get(node, 0.0) - began, 3)
            if not begin_s <= at_s <= end_s:
                continue
            for worker in use.workers:
                of_worker = used.setdefault(worker.rank, Used())
                of_worker.resident.append(BytesHeld(at_s, worker.rss))
                if slot_of[worker.rank] < len(use.gpus):
                    of_worker.gpu.append(BytesHeld(at_s, use.gpus[slot_of[worker.rank]].used))
    return used


def _uses(tail: Tail) -> Iterator[NodeUse]:
    for line in tail.lines():
        try:
            yield decode(line)
        except msgspec.DecodeError:
            continue
