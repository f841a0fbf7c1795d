"""What the statistics of parts are together: totals over weights, added up in the order of the parts. Pure."""

import math
from collections.abc import Iterable

from hpcrl.durable.journal import Done, Event, Stats, Trained

MAX_EXPONENT = 700.0
"""e to more than this is no float64."""

GEOMETRIC = ("perplexity",)
"""Statistics that are reported as sums of logarithms: they add up, and their mean is a geometric one."""


def mean_of(name: str, total: float, weight: float) -> float:
    """A statistic of all parts together."""
    mean = total / weight if weight else 0.0
    return math.exp(min(mean, MAX_EXPONENT)) if name in GEOMETRIC else mean


def over_all(events: Iterable[Event]) -> dict[str, float]:
    """`call/statistic` → its mean over all steps of a run that trains nothing; none of one that does.

    Of a part that was made again the newest line counts.
    """
    parts: dict[tuple[str, int, int], Stats] = {}
    for event in events:
        if isinstance(event, Trained):
            return {}
        if isinstance(event, Done):
            parts[event.call, event.step, event.part] = event.stats
    sums: dict[tuple[str, str], tuple[float, float]] = {}
    for (call, _, _), stats in sorted(parts.items()):
        for name, (total, weight) in stats.items():
            before = sums.get((call, name), (0.0, 0.0))
            sums[call, name] = (before[0] + total, before[1] + weight)
    return {f"{call}/{name}": mean_of(name, *both) for (call, name), both in sums.items()}
