"""Workers for which others wait: how often each was the slowest of its call, and for how long it was waited.

Parts of a call that are sent together are compared: what the slowest takes longer than the middle one is waited for.
"""

from collections import defaultdict
from statistics import median

import msgspec

from hpcrl.inspect.reader import AttemptReader, RunReader

LEAST_SHARE = 0.05
"""What a part takes longer than the middle one, of that: less is nobody's fault."""
LEAST_S = 0.05
"""In all: who was waited for less than that is left out."""
OFTEN = 2.0
"""A node is named whose workers are waited for so many times as long as those of the middle node."""


class Straggler(msgspec.Struct, frozen=True):
    """A worker of an attempt on a node, and for how long others waited for it."""

    node: str
    worker: int
    attempts: list[int]
    slowest: int
    """Calls of which its part took longest, by more than a twentieth."""
    calls: int
    """Calls of several parts in whose steps it was there."""
    waited_s: float
    by_call: dict[str, float]
    """The same, by call."""


class Stragglers(msgspec.Struct, frozen=True):
    """The JSON of `hpcrl inspect RUN stragglers --json`, the worst first."""

    workers: list[Straggler]
    exclude: str
    """Nodes that stand out, as Slurm's `--exclude` takes them; empty where none does."""


def stragglers(reader: RunReader) -> Stragglers:
    waited: dict[tuple[str, int], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    slowest: dict[tuple[str, int], int] = defaultdict(int)
    seen: dict[tuple[str, int], set[int]] = defaultdict(set)
    calls: dict[int, int] = defaultdict(int)
    for number, attempt in reader.attempts.items():
        for call, worker, seconds in _waits(attempt):
            calls[number] += 1
            if worker is not None:
                key = attempt.host_of(worker), worker
                waited[key][call] += seconds
                slowest[key] += 1
                seen[key].add(number)
    found = [
        Straggler(
            node=node,
            worker=worker,
            attempts=sorted(seen[node, worker]),
            slowest=slowest[node, worker],
            calls=sum(calls[number] for number in seen[node, worker]),
            waited_s=round(sum(by_call.values()), 3),
            by_call={call: round(seconds, 3) for call, seconds in sorted(by_call.items(), key=lambda it: -it[1])},
        )
        for (node, worker), by_call in waited.items()
        if sum(by_call.values()) >= LEAST_S
    ]
    found.sort(key=lambda it: (-it.waited_s, it.worker))
    return Stragglers(found, ",".join(_standing_out(reader, found)))


def _waits(attempt: AttemptReader) -> list[tuple[str, int | None, float]]:
    """Of each call of several parts: its slowest worker, None where none stands out, and what it took longer."""
    found: list[tuple[str, int | None, float]] = []
    for row in attempt.costs():
        for call, cost in row.calls.items():
            spans = [span for span in cost.spans if span.slowest >= 0]
            if len(spans) < 2:
                continue
            last, middle = max(spans, key=lambda span: span.seconds), median(span.seconds for span in spans)
            late = last.seconds - middle > LEAST_SHARE * middle
            found.append((call, last.slowest if late else None, last.seconds - middle))
    return found


def _standing_out(reader: RunReader, found: list[Straggler]) -> list[str]:
    nodes = {host for attempt in reader.attempts.values() for host in attempt.hosts.values()}
    waited = dict.fromkeys(nodes, 0.0)
    for straggler in found:
        waited[straggler.node] = waited.get(straggler.node, 0.0) + straggler.waited_s
    if len(waited) < 3:
        return []
    bound = OFTEN * median(waited.values())
    return sorted(node for node, seconds in waited.items() if node and seconds > max(bound, 1.0))
